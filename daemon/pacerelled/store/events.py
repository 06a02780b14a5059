"""The numbered log of what happened. An event has ids, and no message text unless a preview is configured.

Numbers grow by one for ever: a transaction that is rolled back gives its numbers back. Together with the epoch, which
only a restored backup changes, a number is a cursor that tells whether anything was missed.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .database import Tx

SCAN = 500  # rows looked at in one transaction
START = "start"  # the cursor before the oldest event that is kept

Event = dict[str, Any]
"""`id`, `epoch`, `seq`, `at`, `type`, `agent` (id, or None where it concerns all), `data` (ids, by type)."""


@dataclass(frozen=True, slots=True)
class Page:
    """Events in order; `cursor` is where to go on.

    `gap`: some are gone, or the cursor is of another log; then there are none. `more`: not all were looked at yet.
    """

    events: list[Event]
    cursor: str
    gap: bool = False
    more: bool = False


def add(tx: Tx, agent_id: str | None, type_: str, /, **data: Any) -> int:
    """Notes that something happened, with what this transaction changes. Returns the event's number."""
    cursor = tx.execute(
        "INSERT INTO events (at, agent_id, type, data, day) VALUES (?, ?, ?, ?, ?)",
        (tx.now, agent_id, type_, json.dumps(data), tx.day),
    )
    seq: int = cursor.lastrowid
    tx.has_events = True
    return seq


def epoch(tx: Tx) -> str:
    """Which log this is: made with the store, and kept as long as its numbers go on from where they were."""
    found: str = tx.one("SELECT epoch FROM event_log")[0]
    return found


def new_epoch(tx: Tx) -> str:
    """For a store that was restored from a backup: what followers know of later events is not true of it."""
    fresh = secrets.token_hex(6)
    tx.execute("UPDATE event_log SET epoch = ?", (fresh,))
    return fresh


def newest(tx: Tx) -> int:
    """The number of the last event there has been, or 0."""
    found: int = tx.one("SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'events'), 0)")[0]
    return found


def page(tx: Tx, cursor: str | None, wanted: Callable[[Event], bool], limit: int) -> Page:
    """The wanted events after a cursor. None: after the newest."""
    of, last = epoch(tx), newest(tx)
    first = tx.one("SELECT coalesce(min(seq), ?) FROM events", (last + 1,))[0]
    after = _after(cursor, of, first, last)
    if after is None:
        return Page([], f"{of}:{last}", gap=True)
    rows = rows_after(tx, of, after)
    found: list[Event] = []
    for event in rows:
        after = event["seq"]
        if wanted(event):
            found.append(event)
            if len(found) == limit:
                break
    return Page(found, f"{of}:{after}", more=after < last)


def rows_after(tx: Tx, of: str, after: int) -> list[Event]:
    """The next `SCAN` events, whatever they are."""
    rows = tx.all("SELECT seq, at, agent_id, type, data FROM events WHERE seq > ? ORDER BY seq LIMIT ?", (after, SCAN))
    return [_event(of, row) for row in rows]


def rows_before(tx: Tx, of: str, before: int) -> list[Event]:
    """The `SCAN` events before a number, newest first."""
    rows = tx.all(
        "SELECT seq, at, agent_id, type, data FROM events WHERE seq < ? ORDER BY seq DESC LIMIT ?", (before, SCAN)
    )
    return [_event(of, row) for row in rows]


def _after(cursor: str | None, of: str, first: int, last: int) -> int | None:
    """The number that a cursor stands after; None if what follows it is not all here."""
    if cursor is None:
        return last
    if cursor == START:
        return first - 1
    log, _, number = cursor.rpartition(":")
    if log != of or not (number.isascii() and number.isdecimal() and len(number) < 20):
        return None
    return int(number) if first - 1 <= int(number) <= last else None


def _event(of: str, row: Any) -> Event:
    seq, at, agent_id, type_, data = row
    return {
        "id": f"{of}:{seq}",
        "epoch": of,
        "seq": seq,
        "at": at,
        "type": type_,
        "agent": agent_id,
        "data": json.loads(data),
    }
