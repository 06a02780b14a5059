"""A person's agents. Runs on the database's thread."""

from __future__ import annotations

import sqlite3
from typing import Any

from . import conversations
from .accounts import (
    Agent,
    Device,
    add_mailbox,
    digest,
    iso,
    new_id,
    new_token,
    remove_mailbox,
    require_own,
    require_room,
)
from .limits import Limits


def create(db: sqlite3.Connection, device: Device, name: str, limits: Limits, now: float) -> dict[str, Any]:
    """The agent and its direct conversation."""
    require_room(db, "agents", device.account_id, limits.agents)
    agent_id, conversation_id, token = new_id("a"), new_id("c"), new_token()
    db.execute(
        "INSERT INTO agents (id, account_id, name, token, conversation_id, created_at) VALUES (?, ?, ?, ?, ?, ?)",
        (agent_id, device.account_id, name, digest(token), conversation_id, now),
    )
    add_mailbox(db, agent_id)
    conversations.add(db, conversation_id, device.account_id, "direct", None, [agent_id], now)
    return {"agent_id": agent_id, "agent_token": token, "conversation_id": conversation_id}


def list_of(db: sqlite3.Connection, device: Device) -> list[dict[str, Any]]:
    rows = db.execute(
        "SELECT id, name, conversation_id, last_seen, bundle IS NOT NULL FROM agents WHERE account_id = ?"
        " ORDER BY created_at, id",
        (device.account_id,),
    )
    return [
        {
            "agent_id": id,
            "name": name,
            "conversation_id": conversation_id,
            "last_seen": iso(last_seen),
            "has_prekeys": bool(has_prekeys),
        }
        for id, name, conversation_id, last_seen, has_prekeys in rows
    ]


def replace_token(db: sqlite3.Connection, device: Device, agent_id: str) -> dict[str, Any]:
    require_own_agent(db, device, agent_id)
    token = new_token()
    db.execute("UPDATE agents SET token = ? WHERE id = ?", (digest(token), agent_id))
    return {"agent_token": token}


def remove(db: sqlite3.Connection, device: Device, agent_id: str) -> None:
    """With its conversations, unless others are in them, and what waits for it."""
    require_own_agent(db, device, agent_id)
    remove_mailbox(db, agent_id)
    db.execute("DELETE FROM agents WHERE id = ?", (agent_id,))
    conversations.remove_empty(db, device.account_id)


def seen(db: sqlite3.Connection, agent: Agent, now: float) -> None:
    db.execute("UPDATE agents SET last_seen = ? WHERE id = ?", (now, agent.id))


def require_own_agent(db: sqlite3.Connection, device: Device, agent_id: str) -> None:
    """Raises NotFound or Forbidden."""
    require_own(db, "agents", agent_id, device.account_id)
