"""Checkpoints: progress that an assistant saved on a request. One a request; the newest counts."""

from __future__ import annotations

from typing import Any

from .database import Tx

COLUMNS = "seq, source_id, conversation_id, summary, next_action, label, status, updated_at"


def save(
    tx: Tx,
    agent_id: str,
    source_id: str,
    conversation_id: str,
    summary: str,
    next_action: str,
    label: str | None,
    status: str,
) -> Any:
    # Replaced, not updated: the new row is the last, whatever the clock says.
    tx.execute(
        "REPLACE INTO checkpoints (agent_id, source_id, conversation_id, summary, next_action, label, status,"
        " updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (agent_id, source_id, conversation_id, summary, next_action, label, status, tx.now),
    )
    return tx.one(f"SELECT {COLUMNS} FROM checkpoints WHERE agent_id = ? AND source_id = ?", (agent_id, source_id))


def select(
    tx: Tx, agent_id: str, *, conversation_id: str | None, include_completed: bool, after: int, limit: int
) -> list[Any]:
    """Oldest first."""
    where = "agent_id = ? AND seq > ?"
    parameters: list[Any] = [agent_id, after]
    if not include_completed:
        where += " AND status = 'active'"
    if conversation_id is not None:
        where += " AND conversation_id = ?"
        parameters.append(conversation_id)
    return tx.all(f"SELECT {COLUMNS} FROM checkpoints WHERE {where} ORDER BY seq LIMIT ?", (*parameters, limit))
