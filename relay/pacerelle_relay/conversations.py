"""Conversations and who is in them: one person with all devices, and agents. Runs on the database's thread."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import Any

from .accounts import Agent, Device, new_id, require_own, require_room
from .errors import Forbidden, NotFound
from .limits import Limits


@dataclass(frozen=True, slots=True)
class Conversation:
    """`kind` is `direct` or `group`."""

    kind: str
    account_id: str
    agent_ids: tuple[str, ...]


def create(
    db: sqlite3.Connection,
    device: Device,
    kind: str,
    agent_ids: list[str],
    title: str | None,
    limits: Limits,
    now: float,
) -> dict[str, Any]:
    """Raises NotFound, Forbidden, OverQuota."""
    for agent_id in agent_ids:
        require_own(db, "agents", agent_id, device.account_id)
    require_room(db, "conversations", device.account_id, limits.conversations)
    conversation_id = new_id("c")
    add(db, conversation_id, device.account_id, kind, title, agent_ids, now)
    return {"conversation_id": conversation_id}


def add(
    db: sqlite3.Connection,
    conversation_id: str,
    account_id: str,
    kind: str,
    title: str | None,
    agent_ids: list[str],
    now: float,
) -> None:
    db.execute("INSERT INTO conversations VALUES (?, ?, ?, ?, ?)", (conversation_id, account_id, kind, title, now))
    db.executemany("INSERT INTO members VALUES (?, ?)", [(conversation_id, agent_id) for agent_id in agent_ids])


def list_of(db: sqlite3.Connection, device: Device) -> dict[str, Any]:
    rows = db.execute(
        "SELECT id, kind, title, agent_id FROM conversations JOIN members ON conversation_id = id"
        " WHERE account_id = ? ORDER BY created_at, id, agent_id",
        (device.account_id,),
    )
    found: dict[str, dict[str, Any]] = {}
    for id, kind, title, agent_id in rows:
        new = {"conversation_id": id, "kind": kind, "title": title, "agent_ids": [], "user_ids": [device.account_id]}
        found.setdefault(id, new)["agent_ids"].append(agent_id)
    return {"conversations": list(found.values())}


def remove_empty(db: sqlite3.Connection, account_id: str) -> None:
    """Removes the conversations that no agent is in any more."""
    db.execute(
        "DELETE FROM conversations WHERE account_id = ?"
        " AND NOT EXISTS (SELECT 1 FROM members WHERE conversation_id = conversations.id)",
        (account_id,),
    )


def of_device(db: sqlite3.Connection, device: Device, id: str) -> Conversation:
    """Raises NotFound, or Forbidden unless it is the person's."""
    conversation = _get(db, id)
    if conversation.account_id != device.account_id:
        raise Forbidden("the conversation is not yours")
    return conversation


def of_agent(db: sqlite3.Connection, agent: Agent, id: str) -> Conversation:
    """Raises NotFound, or Forbidden unless the agent is in it."""
    conversation = _get(db, id)
    if agent.id not in conversation.agent_ids:
        raise Forbidden("the agent is not in this conversation")
    return conversation


def _get(db: sqlite3.Connection, id: str) -> Conversation:
    rows = db.execute(
        "SELECT kind, account_id, agent_id FROM conversations JOIN members ON conversation_id = id WHERE id = ?", (id,)
    ).fetchall()
    if not rows:
        raise NotFound("there is no such conversation", code="conversation")
    return Conversation(rows[0][0], rows[0][1], tuple(row[2] for row in rows))
