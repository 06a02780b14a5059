"""The outbox. A reply's envelope is stored as it will be sent; nothing is ever encrypted twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .database import Tx

COLUMNS = (
    "seq, message_id, conversation_id, recipient, device_id, kind, text, state, created_at, reason, widget_id,"
    " widget, source_id,"
    " reply_to"
)


@dataclass(frozen=True, slots=True)
class NewReply:
    message_id: str
    conversation_id: str
    recipient: str
    device_id: str | None
    kind: str
    text: str
    widget_id: str | None
    widget: str | None
    source_id: str | None
    reply_to: str | None
    envelope: str
    call_key: str | None


def insert_reply(tx: Tx, agent_id: str, reply: NewReply) -> int:
    cursor = tx.execute(
        "INSERT INTO replies (agent_id, message_id, conversation_id, recipient, device_id, kind, text,"
        " widget_id, widget, source_id,"
        " reply_to, envelope, state, call_key, created_at, updated_at, day) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?,"
        " ?, 'queued', ?, ?, ?, ?)",
        (
            agent_id, reply.message_id, reply.conversation_id, reply.recipient, reply.device_id, reply.kind, reply.text,
            reply.widget_id, reply.widget, reply.source_id, reply.reply_to, reply.envelope, reply.call_key,
            tx.now, tx.now, tx.day,
        ),
    )  # fmt: skip
    seq: int = cursor.lastrowid
    return seq


def by_call(tx: Tx, agent_id: str, call_key: str) -> Any:
    """The reply that an earlier, identical call made; None if there was none."""
    return tx.one(f"SELECT {COLUMNS} FROM replies WHERE agent_id = ? AND call_key = ?", (agent_id, call_key))


def by_message_id(tx: Tx, agent_id: str, message_id: str) -> Any:
    return tx.one(f"SELECT {COLUMNS} FROM replies WHERE agent_id = ? AND message_id = ?", (agent_id, message_id))


def by_seq(tx: Tx, seq: int) -> Any:
    return tx.one(f"SELECT {COLUMNS} FROM replies WHERE seq = ?", (seq,))


def select(
    tx: Tx, agent_id: str, *, state: str | None = None, conversation_id: str | None = None, limit: int
) -> list[Any]:
    """The newest matching replies, oldest first."""
    where, parameters = "agent_id = ?", [agent_id]
    if state is not None:
        where += " AND state = ?"
        parameters.append(state)
    if conversation_id is not None:
        where += " AND conversation_id = ?"
        parameters.append(conversation_id)
    return tx.all(f"SELECT {COLUMNS} FROM replies WHERE {where} ORDER BY seq DESC LIMIT ?", (*parameters, limit))[::-1]


def begin_sending(tx: Tx, agent_id: str, limit: int) -> list[tuple[int, str, str]]:
    """The oldest queued replies as (seq, message id, envelope), now `sending`: from here on they may have left."""
    rows = tx.all(
        "SELECT seq, message_id, envelope FROM replies WHERE agent_id = ? AND state = 'queued' ORDER BY seq LIMIT ?",
        (agent_id, limit),
    )
    set_state(tx, [row[0] for row in rows], "sending", None)
    return [(row[0], row[1], row[2]) for row in rows]


def set_state(tx: Tx, seqs: list[int], state: str, reason: str | None) -> None:
    for seq in seqs:
        tx.execute(
            "UPDATE replies SET state = ?, reason = ?, updated_at = ?, day = ? WHERE seq = ?",
            (state, reason, tx.now, tx.day, seq),
        )


def interrupted(tx: Tx, agent_id: str) -> list[int]:
    """Replies that a crash left in `sending`."""
    return [r[0] for r in tx.all("SELECT seq FROM replies WHERE agent_id = ? AND state = 'sending'", (agent_id,))]


def requeue_uncertain(tx: Tx, agent_id: str, message_id: str | None = None) -> int:
    """Makes uncertain replies `queued` again: the identical envelope goes out once more. Returns how many."""
    where, parameters = "agent_id = ? AND state = 'uncertain'", [agent_id]
    if message_id is not None:
        where += " AND message_id = ?"
        parameters.append(message_id)
    result = tx.execute(
        f"UPDATE replies SET state = 'queued', reason = NULL, updated_at = ? WHERE {where}",
        (tx.now, *parameters),
    )
    count: int = result.rowcount
    return count


def counts(tx: Tx, agent_id: str) -> dict[str, int]:
    """queued (with sending) and uncertain."""
    rows = tx.all(
        "SELECT state, count(*) FROM replies WHERE agent_id = ? AND state IN ('queued', 'sending', 'uncertain')"
        " GROUP BY state",
        (agent_id,),
    )
    found = {row[0]: row[1] for row in rows}
    return {
        "queued": found.get("queued", 0) + found.get("sending", 0),
        "uncertain": found.get("uncertain", 0),
    }
