"""How claims change hands: given back by their session or by a person, or taken over by another session.

What a session gave back is not handed to it again; what was taken over from it, it is told of when it comes back to it.
"""

from __future__ import annotations

from .database import Tx


def give_back(tx: Tx, seq: int, session_id: str) -> bool:
    """The session wants to be without this request, now and later. Whether it held it."""
    ended: int = tx.execute("DELETE FROM claims WHERE request_seq = ? AND session_id = ?", (seq, session_id)).rowcount
    _part(tx, seq, session_id, None)
    return ended > 0


def release(tx: Tx, seq: int) -> bool:
    """Ends the claim, whoever has it. Whether anybody had."""
    ended: int = tx.execute("DELETE FROM claims WHERE request_seq = ?", (seq,)).rowcount
    return ended > 0


def take_over(tx: Tx, seq: int, session_id: str, label: str) -> str | None:
    """Makes the session the holder; returns the one before."""
    row = tx.one("SELECT session_id FROM claims WHERE request_seq = ?", (seq,))
    if row is not None:
        release(tx, seq)
        _part(tx, seq, row[0], label)
    tx.execute(
        "INSERT INTO claims (request_seq, agent_id, session_id, call_id, fresh, since)"
        " SELECT seq, agent_id, ?, NULL, 0, ? FROM requests WHERE seq = ?",
        (session_id, tx.now, seq),
    )
    if row is None:
        tx.execute("UPDATE requests SET handed_out = handed_out + 1 WHERE seq = ?", (seq,))
    reunite(tx, seq, session_id)
    return row[0] if row else None


def taken_from(tx: Tx, seq: int, session_id: str) -> tuple[str, str] | None:
    """Who took the request over from this session (a label), and when."""
    row = tx.one(
        "SELECT taken_by, at FROM past_claims WHERE request_seq = ? AND session_id = ? AND taken_by IS NOT NULL",
        (seq, session_id),
    )
    return (row[0], row[1]) if row else None


def reunite(tx: Tx, seq: int, session_id: str) -> None:
    """The session has the request again, or may use it: how it parted from it is forgotten."""
    tx.execute("DELETE FROM past_claims WHERE request_seq = ? AND session_id = ?", (seq, session_id))


def _part(tx: Tx, seq: int, session_id: str, taken_by: str | None) -> None:
    tx.execute(
        "REPLACE INTO past_claims (request_seq, session_id, taken_by, at) VALUES (?, ?, ?, ?)",
        (seq, session_id, taken_by, tx.now),
    )
