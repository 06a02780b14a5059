"""Agents, conversations and their keys: what the phone knows about whom it talks to. Called in the store's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from pacerelle_protocol.groups import GroupKey
from pacerelle_protocol.history import HistoryKey

from .store import Store


@dataclass(frozen=True, slots=True)
class AgentRow:
    agent_id: str
    name: str
    conversation_id: str
    trusted_key: bytes | None  # what this device encrypts for
    offered_key: bytes | None  # what the relay hands out now, when that is another one
    suspect: bool  # the relay says the key changed; not looked at yet
    history: bool  # the agent understands history-v1


@dataclass(frozen=True, slots=True)
class ConversationRow:
    conversation_id: str
    kind: str
    title: str
    made_here: bool
    members: tuple[str, ...]

    @property
    def is_group(self) -> bool:
        return self.kind == "group"


class Peers:
    def __init__(self, store: Store) -> None:
        self._store = store

    # agents

    def put_agent(self, agent_id: str, name: str, conversation_id: str, *, made_here: bool = False) -> None:
        self._store.execute(
            "INSERT INTO agents (agent_id, name, conversation_id) VALUES (?, ?, ?)"
            " ON CONFLICT (agent_id) DO UPDATE SET name = excluded.name, conversation_id = excluded.conversation_id",
            (agent_id, name, conversation_id),
        )
        self.put_conversation(conversation_id, "direct", "", [agent_id], made_here=made_here)

    def agent(self, agent_id: str) -> AgentRow | None:
        row = self._store.one("SELECT * FROM agents WHERE agent_id = ?", (agent_id,))
        return _agent(row) if row is not None else None

    def agents(self) -> list[AgentRow]:
        return [_agent(row) for row in self._store.all("SELECT * FROM agents ORDER BY name, agent_id")]

    def suspects(self) -> list[str]:
        return [row[0] for row in self._store.all("SELECT agent_id FROM agents WHERE suspect")]

    def suspect(self, agent_id: str) -> None:
        self._store.execute("UPDATE agents SET suspect = 1 WHERE agent_id = ?", (agent_id,))

    def trust(self, agent_id: str, key: bytes) -> None:
        self._store.execute(
            "UPDATE agents SET trusted_key = ?, offered_key = NULL, suspect = 0 WHERE agent_id = ?",
            (key, agent_id),
        )

    def offer(self, agent_id: str, key: bytes | None) -> None:
        """`key` is what the relay hands out; None when that is the trusted one again."""
        self._store.execute("UPDATE agents SET offered_key = ?, suspect = 0 WHERE agent_id = ?", (key, agent_id))

    def set_history(self, agent_id: str, understood: bool) -> None:
        self._store.execute("UPDATE agents SET history = ? WHERE agent_id = ?", (understood, agent_id))

    # conversations

    def put_conversation(
        self, conversation_id: str, kind: str, title: str, agent_ids: Iterable[str], *, made_here: bool
    ) -> None:
        self._store.execute(
            "INSERT INTO conversations (conversation_id, kind, title, made_here) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (conversation_id) DO UPDATE SET title = excluded.title,"
            " made_here = max(made_here, excluded.made_here)",
            (conversation_id, kind, title, made_here),
        )
        for agent_id in agent_ids:
            self._store.execute("INSERT OR IGNORE INTO members VALUES (?, ?)", (conversation_id, agent_id))

    def conversation(self, conversation_id: str) -> ConversationRow | None:
        row = self._store.one(
            "SELECT kind, title, made_here FROM conversations WHERE conversation_id = ?", (conversation_id,)
        )
        if row is None:
            return None
        members = self._store.all(
            "SELECT agent_id FROM members WHERE conversation_id = ? ORDER BY agent_id", (conversation_id,)
        )
        return ConversationRow(conversation_id, row[0], row[1], bool(row[2]), tuple(m[0] for m in members))

    def conversations(self, agent_id: str | None = None) -> list[ConversationRow]:
        """All, or those the agent takes part in."""
        rows = self._store.all(
            "SELECT DISTINCT conversation_id FROM members WHERE agent_id = coalesce(?, agent_id)", (agent_id,)
        )
        found = [self.conversation(row[0]) for row in rows]
        return [c for c in found if c is not None]

    # history-v1

    def history_key(self, conversation_id: str) -> tuple[HistoryKey | None, bool]:
        """The key and whether the agent has proved that it has it."""
        row = self._store.one(
            "SELECT history_key_id, history_epoch, history_key, history_confirmed FROM conversations"
            " WHERE conversation_id = ?",
            (conversation_id,),
        )
        if row is None or row[2] is None:
            return None, False
        return HistoryKey(row[0], row[1], row[2]), bool(row[3])

    def set_history_key(self, conversation_id: str, key: HistoryKey) -> None:
        self._store.execute(
            "UPDATE conversations SET history_key_id = ?, history_epoch = ?, history_key = ?, history_confirmed = 0"
            " WHERE conversation_id = ?",
            (key.key_id, key.epoch, key.raw, conversation_id),
        )

    def confirm_history(self, conversation_id: str, confirmed: bool) -> None:
        self._store.execute(
            "UPDATE conversations SET history_confirmed = ? WHERE conversation_id = ?", (confirmed, conversation_id)
        )

    # group keys

    def add_group_key(self, key: GroupKey) -> None:
        self._store.execute(
            "INSERT INTO group_keys VALUES (?, ?, ?, ?)", (key.conversation_id, key.key_id, key.epoch, key.raw)
        )

    def group_key(self, conversation_id: str, key_id: str, epoch: int) -> GroupKey | None:
        row = self._store.one(
            "SELECT * FROM group_keys WHERE conversation_id = ? AND key_id = ? AND epoch = ?",
            (conversation_id, key_id, epoch),
        )
        return GroupKey(*row) if row is not None else None

    def newest_group_key(self, conversation_id: str) -> GroupKey | None:
        row = self._store.one(
            "SELECT * FROM group_keys WHERE conversation_id = ? ORDER BY epoch DESC LIMIT 1", (conversation_id,)
        )
        return GroupKey(*row) if row is not None else None


def _agent(row: sqlite3.Row) -> AgentRow:
    return AgentRow(
        agent_id=row["agent_id"],
        name=row["name"],
        conversation_id=row["conversation_id"],
        trusted_key=row["trusted_key"],
        offered_key=row["offered_key"],
        suspect=bool(row["suspect"]),
        history=bool(row["history"]),
    )
