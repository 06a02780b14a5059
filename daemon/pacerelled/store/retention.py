"""What is not kept for ever: the oldest rows of those that nobody waits for any more.

Rows go by number (the newest N of an agent stay) and by age, counted in the store's own days (clock.py), so that a
clock that is set wrong ages nothing. What still waits is of no kind below, however old: pending requests, replies that
are queued, being sent or uncertain, and the checkpoints of pending requests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from .database import Tx

CHUNK = 8  # rows between two looks at the clock
SPARE = 256  # free pages that stay in the file: the next rows go there
SPARE_SHARE = 4  # as does a quarter of its pages
VACUUM_PAGES = 32  # given back in one go


@dataclass(frozen=True, slots=True)
class Policy:
    """How much is kept: rows an agent (events and receipts: of all agents together), and days since their last change.

    A processed request that goes leaves its receipt, by which the relay's repeating it would be recognised.
    """

    requests: int
    replies: int
    events: int
    receipts: int
    days: int
    receipt_days: int


@dataclass(slots=True)
class Due:
    """Oldest first, `excess` rows of a kind are due, and those last changed on day `until` or before.

    `rows` selects (row, day), in this order.
    """

    table: str
    rows: str
    parameters: tuple[str, ...]
    excess: int
    until: int


def look(tx: Tx, policy: Policy) -> list[Due]:
    """What there is to do, to be given to `prune`."""
    until = tx.day - policy.days
    due = []
    for table, at_rest, keep in (
        ("requests", "processed_at IS NOT NULL", policy.requests),
        ("replies", "state IN ('submitted', 'failed', 'dropped')", policy.replies),
    ):
        rows = f"SELECT seq, day FROM {table} WHERE agent_id = ? AND {at_rest} ORDER BY day, seq"
        for agent_id, count in tx.all(f"SELECT agent_id, count(*) FROM {table} WHERE {at_rest} GROUP BY agent_id"):
            due.append(Due(table, rows, (agent_id,), count - keep, until))
    for table, keep, oldest in (
        ("events", policy.events, until),
        ("receipts", policy.receipts, tx.day - policy.receipt_days),
    ):
        low, high = tx.one(f"SELECT min(seq), max(seq) FROM {table}")
        if high is not None:
            due.append(Due(table, f"SELECT seq, day FROM {table} ORDER BY seq", (), high - low + 1 - keep, oldest))
    return due


def prune(tx: Tx, due: list[Due], budget: float) -> bool:
    """Removes some of the rows for at most `budget` seconds, about. False when none was left to remove."""
    end = time.monotonic() + budget
    while due:
        kind = due[-1]
        rows = tx.all(f"{kind.rows} LIMIT {CHUNK}", kind.parameters)
        gone = [seq for place, (seq, day) in enumerate(rows) if place < kind.excess or day <= kind.until]
        for seq in gone:
            if kind.table == "requests":
                _leave_receipt(tx, seq)
            tx.execute(f"DELETE FROM {kind.table} WHERE seq = ?", (seq,))
        kind.excess -= len(gone)
        if len(gone) < CHUNK:
            due.pop()
        if time.monotonic() >= end:
            return True
    return False


def shrink(tx: Tx) -> bool:
    """Gives some free pages back to the file system. False when the file has no more than it should."""
    pages, free = tx.one("PRAGMA page_count")[0], tx.one("PRAGMA freelist_count")[0]
    if free <= max(SPARE, pages // SPARE_SHARE):
        return False
    tx.all(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
    return True


def _leave_receipt(tx: Tx, seq: int) -> None:
    tx.execute(
        "INSERT OR IGNORE INTO receipts (agent_id, message_id, digest, day) SELECT agent_id, message_id, digest, ?"
        " FROM requests WHERE seq = ?",
        (tx.day, seq),
    )
    tx.execute(
        "DELETE FROM checkpoints WHERE (agent_id, source_id) ="
        " (SELECT agent_id, message_id FROM requests WHERE seq = ?)",
        (seq,),
    )
