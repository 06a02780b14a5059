"""What somebody is to be reminded of: requests that wait for long, widgets that expire without an answer.

How long requests wait is told by marks: at a moment of the store's own time (clock.py), which requests there were. So a
request's arrival writes nothing for it, and neither a restart nor a clock that jumps changes how long it has waited.
"""

from __future__ import annotations

from typing import Any

from .database import Tx
from .requests import AUTHORIZED


def mark(tx: Tx, lived: float) -> None:
    """Notes which requests there are by now, if there are others than at the mark before."""
    tx.execute(
        "INSERT INTO overdue_marks (request_seq, lived) SELECT seq, ? FROM sqlite_sequence WHERE name = 'requests'"
        " AND seq > (SELECT coalesce(max(request_seq), 0) FROM (SELECT request_seq FROM overdue_marks"
        " UNION ALL SELECT request_seq FROM overdue_seen))",
        (lived,),
    )


def due(tx: Tx, until: float) -> tuple[int, int] | None:
    """(after, up to) the numbers of the requests that were there at `until`, and were not asked for before."""
    row = tx.one("SELECT max(request_seq) FROM overdue_marks WHERE lived <= ?", (until,))
    if row[0] is None:
        return None
    seen = tx.one("SELECT request_seq FROM overdue_seen")
    return (seen[0] if seen else 0), row[0]


def seen(tx: Tx, upto: int) -> None:
    tx.execute("REPLACE INTO overdue_seen (one, request_seq) VALUES (1, ?)", (upto,))
    tx.execute("DELETE FROM overdue_marks WHERE request_seq <= ?", (upto,))


def next_mark(tx: Tx) -> float | None:
    """When, in the store's time, the oldest mark was made."""
    found: float | None = tx.one("SELECT min(lived) FROM overdue_marks")[0]
    return found


def unanswered(tx: Tx, after: int, upto: int) -> list[Any]:
    """(agent id, message id, conversation id, sender, received at): nobody marked them, or sent anything for them."""
    return tx.all(
        "SELECT r.agent_id, r.message_id, r.conversation_id, r.sender, r.received_at FROM requests r"
        f" WHERE r.seq > ? AND r.seq <= ? AND r.processed_at IS NULL AND {AUTHORIZED}"
        " AND NOT EXISTS (SELECT 1 FROM replies p WHERE p.agent_id = r.agent_id"
        " AND p.conversation_id = r.conversation_id AND p.source_id = r.message_id"
        " AND p.state NOT IN ('failed', 'dropped')) ORDER BY r.seq",
        (after, upto),
    )


def expect_answer(tx: Tx, agent_id: str, message_id: str, conversation_id: str, expires: float | None) -> None:
    """A widget that was sent, or changed, expires then (Unix seconds), or not any more."""
    if expires is None:
        answered(tx, agent_id, message_id)
        return
    tx.execute(
        "REPLACE INTO widget_expiries (agent_id, message_id, conversation_id, expires) VALUES (?, ?, ?, ?)",
        (agent_id, message_id, conversation_id, expires),
    )


def answered(tx: Tx, agent_id: str, message_id: str) -> None:
    tx.execute("DELETE FROM widget_expiries WHERE agent_id = ? AND message_id = ?", (agent_id, message_id))


def expired(tx: Tx, now: float) -> list[tuple[str, str, str]]:
    """(agent id, message id, conversation id) of those that have expired; they are forgotten with that."""
    rows = tx.all("SELECT agent_id, message_id, conversation_id FROM widget_expiries WHERE expires <= ?", (now,))
    for row in rows:
        answered(tx, row[0], row[1])
    return [(row[0], row[1], row[2]) for row in rows]


def next_expiry(tx: Tx) -> float | None:
    found: float | None = tx.one("SELECT min(expires) FROM widget_expiries")[0]
    return found
