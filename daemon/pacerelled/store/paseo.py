"""What is known of a Paseo daemon's agents, and which calls to it were made, so that neither is done twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .database import Tx

KEEP_CALLS = 1000


@dataclass(frozen=True, slots=True)
class Call:
    """A call that changes something at Paseo, where `tag` finds it. Without `result` it may not be through."""

    digest: str
    tag: str
    result: dict[str, Any] | None


def known_agents(tx: Tx, server_id: str) -> dict[str, dict[str, Any]] | None:
    """By agent id; None for a Paseo daemon that was never looked at."""
    if not tx.all("SELECT 1 FROM paseo_servers WHERE server_id = ?", (server_id,)):
        return None
    rows = tx.all("SELECT agent_id, state FROM paseo_agents WHERE server_id = ?", (server_id,))
    return {row[0]: json.loads(row[1]) for row in rows}


def looked_at(tx: Tx, server_id: str) -> None:
    tx.execute("INSERT OR IGNORE INTO paseo_servers (server_id) VALUES (?)", (server_id,))


def save_agent(tx: Tx, server_id: str, agent_id: str, state: Mapping[str, Any] | None) -> None:
    """None forgets the agent."""
    if state is None:
        tx.execute("DELETE FROM paseo_agents WHERE server_id = ? AND agent_id = ?", (server_id, agent_id))
        return
    tx.execute(
        "REPLACE INTO paseo_agents (server_id, agent_id, state) VALUES (?, ?, ?)",
        (server_id, agent_id, json.dumps(state)),
    )


def call(tx: Tx, key: str) -> Call | None:
    row = tx.one("SELECT digest, tag, result FROM paseo_calls WHERE call_key = ?", (key,))
    return Call(row[0], row[1], json.loads(row[2]) if row[2] is not None else None) if row else None


def begin_call(tx: Tx, key: str, digest: str, tag: str) -> None:
    cursor = tx.execute(
        "REPLACE INTO paseo_calls (call_key, digest, tag, result) VALUES (?, ?, ?, NULL)", (key, digest, tag)
    )
    tx.execute("DELETE FROM paseo_calls WHERE seq <= ?", (cursor.lastrowid - KEEP_CALLS,))


def end_call(tx: Tx, key: str, result: Mapping[str, Any]) -> None:
    tx.execute("UPDATE paseo_calls SET result = ? WHERE call_key = ?", (json.dumps(result), key))


def forget_call(tx: Tx, key: str) -> None:
    """It was refused: making it again is a new call."""
    tx.execute("DELETE FROM paseo_calls WHERE call_key = ?", (key,))
