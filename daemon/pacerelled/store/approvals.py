"""Which conversations are asked for coding agents' permissions, where these agents are from, and what was asked."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

from .database import Tx

State = Literal["open", "answered", "closed"]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One that its user chose. It is asked about the agents that were started from it, or about every agent."""

    agent_id: str
    conversation_id: str
    every_agent: bool


@dataclass(frozen=True, slots=True)
class Origin:
    """From which request a coding agent was started."""

    agent_id: str
    conversation_id: str
    source_message_id: str


@dataclass(frozen=True, slots=True)
class Ask:
    """A permission request as it was put to a person. `decision` once they answered."""

    coding_agent_id: str
    request_id: str
    agent_id: str
    message_id: str  # of the reply that shows the widget
    conversation_id: str
    person: str
    device_id: str | None
    authorization: dict[str, Any] = field(repr=False)
    expires_at: str
    state: State = "open"
    decision: str | None = None


KEEP_CLOSED = 1000
_COLUMNS = (
    "coding_agent_id, request_id, agent_id, message_id, conversation_id, person, device_id, authorization, expires_at,"
    " state, decision"
)


def choose(tx: Tx, chosen: Conversation) -> None:
    tx.execute(
        "REPLACE INTO approval_conversations (agent_id, conversation_id, every_agent) VALUES (?, ?, ?)",
        (chosen.agent_id, chosen.conversation_id, chosen.every_agent),
    )


def leave(tx: Tx, agent_id: str, conversation_id: str) -> bool:
    """Whether it had been chosen."""
    where = "agent_id = ? AND conversation_id = ?"
    done: int = tx.execute(f"DELETE FROM approval_conversations WHERE {where}", (agent_id, conversation_id)).rowcount
    return done > 0


def chosen(tx: Tx) -> list[Conversation]:
    rows = tx.all("SELECT agent_id, conversation_id, every_agent FROM approval_conversations ORDER BY rowid")
    return [Conversation(row[0], row[1], bool(row[2])) for row in rows]


def save_origin(tx: Tx, coding_agent_id: str, origin: Origin) -> None:
    tx.execute(
        "INSERT OR IGNORE INTO coding_origins (coding_agent_id, agent_id, conversation_id, source_id)"
        " VALUES (?, ?, ?, ?)",
        (coding_agent_id, origin.agent_id, origin.conversation_id, origin.source_message_id),
    )


def origin(tx: Tx, coding_agent_id: str) -> Origin | None:
    row = tx.one(
        "SELECT agent_id, conversation_id, source_id FROM coding_origins WHERE coding_agent_id = ?", (coding_agent_id,)
    )
    return Origin(*row) if row else None


def insert(tx: Tx, ask: Ask) -> None:
    """Nothing, if it was asked before."""
    tx.execute(
        f"INSERT OR IGNORE INTO approvals ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            ask.coding_agent_id,
            ask.request_id,
            ask.agent_id,
            ask.message_id,
            ask.conversation_id,
            ask.person,
            ask.device_id,
            json.dumps(ask.authorization),
            ask.expires_at,
            ask.state,
            ask.decision,
        ),
    )
    tx.execute(
        "DELETE FROM approvals WHERE state = 'closed' AND rowid <= (SELECT max(rowid) FROM approvals) - ?",
        (KEEP_CLOSED,),
    )


def find(tx: Tx, coding_agent_id: str, request_id: str) -> Ask | None:
    row = tx.one(
        f"SELECT {_COLUMNS} FROM approvals WHERE coding_agent_id = ? AND request_id = ?", (coding_agent_id, request_id)
    )
    return _ask(row) if row else None


def unfinished(tx: Tx) -> list[Ask]:
    return [_ask(row) for row in tx.all(f"SELECT {_COLUMNS} FROM approvals WHERE state <> 'closed' ORDER BY rowid")]


def is_ask(tx: Tx, agent_id: str, message_id: str) -> bool:
    """Whether the widget in this reply asks for an approval: its answer is for us, and no host's work."""
    return bool(tx.all("SELECT 1 FROM approvals WHERE agent_id = ? AND message_id = ?", (agent_id, message_id)))


def answer(tx: Tx, ask: Ask, decision: str) -> bool:
    """Notes the answer; only the first counts."""
    done: int = tx.execute(
        "UPDATE approvals SET state = 'answered', decision = ?"
        " WHERE coding_agent_id = ? AND request_id = ? AND state = 'open'",
        (decision, ask.coding_agent_id, ask.request_id),
    ).rowcount
    return done > 0


def close(tx: Tx, ask: Ask) -> None:
    tx.execute(
        "UPDATE approvals SET state = 'closed' WHERE coding_agent_id = ? AND request_id = ?",
        (ask.coding_agent_id, ask.request_id),
    )


def _ask(row: Any) -> Ask:
    return Ask(**dict(zip(Ask.__slots__, row, strict=True)) | {"authorization": json.loads(row[7])})
