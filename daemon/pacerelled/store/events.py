"""The daemon's numbered log of what happened. The data of an event never holds message text."""

from __future__ import annotations

import json
from typing import Any

from .database import Tx


def add(tx: Tx, agent_id: str | None, type_: str, **data: Any) -> int:
    cursor = tx.execute(
        "INSERT INTO events (at, agent_id, type, data, day) VALUES (?, ?, ?, ?, ?)",
        (tx.now, agent_id, type_, json.dumps(data), tx.day),
    )
    seq: int = cursor.lastrowid
    tx.has_events = True
    return seq


def select(tx: Tx, *, after: int, limit: int) -> tuple[list[dict[str, Any]], int, bool]:
    """Events after a cursor, where to go on, and whether some of them are gone (then: all that is kept is skipped)."""
    low, high = tx.one("SELECT coalesce(min(seq), 0), coalesce(max(seq), 0) FROM events")
    newest = tx.one("SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)")[0]
    if after > newest or (after < low - 1 and high):
        return [], newest, True
    rows = tx.all("SELECT seq, at, agent_id, type, data FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit))
    found = [{"seq": r[0], "at": r[1], "agent_id": r[2], "type": r[3], "data": json.loads(r[4])} for r in rows]
    return found, (found[-1]["seq"] if found else after), False
