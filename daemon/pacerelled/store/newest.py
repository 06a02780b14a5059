"""The newest rows of the two tables that make up the history, by number only: their texts can be long."""

from __future__ import annotations

from typing import Any, Literal

from .database import Tx


def seqs(
    tx: Tx,
    table: Literal["requests", "replies"],
    agent_id: str,
    *,
    conversation_id: str | None,
    before: int | None,
    limit: int,
) -> list[int]:
    """Newest first, `before` a seq if there is one."""
    where = "agent_id = ?"
    parameters: list[Any] = [agent_id]
    for clause, value in (("conversation_id = ?", conversation_id), ("seq < ?", before)):
        if value is not None:
            where += f" AND {clause}"
            parameters.append(value)
    rows = tx.all(f"SELECT seq FROM {table} WHERE {where} ORDER BY seq DESC LIMIT ?", (*parameters, limit))
    return [row[0] for row in rows]
