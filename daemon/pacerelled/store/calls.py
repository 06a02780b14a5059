"""Calls that were carried out and made no reply: with what they are answered when they are made again.

A call is repeated by a session that lost the daemon before it had the answer, which is soon: only the newest are kept.
"""

from __future__ import annotations

from .database import Tx

KEEP = 1000  # calls of all agents


def find(tx: Tx, agent_id: str, call_key: str) -> tuple[str, str] | None:
    """The digest of what a call under this key said, and its result."""
    row = tx.one("SELECT digest, result FROM calls WHERE agent_id = ? AND call_key = ?", (agent_id, call_key))
    return (row[0], row[1]) if row else None


def save(tx: Tx, agent_id: str, call_key: str, digest: str, result: str) -> None:
    cursor = tx.execute(
        "REPLACE INTO calls (agent_id, call_key, digest, result) VALUES (?, ?, ?, ?)",
        (agent_id, call_key, digest, result),
    )
    tx.execute("DELETE FROM calls WHERE seq <= ?", (cursor.lastrowid - KEEP,))
