"""The outbox. A reply's envelope is stored as it will be sent; nothing is ever encrypted twice."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .database import Tx

COLUMNS = (
    "seq, message_id, conversation_id, recipient, device_id, kind, text, state, created_at, reason, widget_id,"
    " widget, source_id, reply_to, attempts"
)
# Few of many: the planner does not see it by itself, and knows the index's condition only in its own words.
FROM_OPEN = "FROM replies INDEXED BY replies_open"
OPEN = "state IN ('queued', 'sending', 'uncertain')"
ALONE = 64 * 1024  # characters; a longer envelope goes alone, so that a relay that refuses it refuses just it


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
    call_key: str | None  # what recognises a repetition of the call that made it
    digest: str = ""  # of what that call said


def insert_reply(tx: Tx, agent_id: str, reply: NewReply) -> int:
    cursor = tx.execute(
        "INSERT INTO replies (agent_id, message_id, conversation_id, recipient, device_id, kind, text,"
        " widget_id, widget, source_id,"
        " reply_to, envelope, state, call_key, digest, created_at, updated_at, day) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?,"
        " ?, ?, ?, 'queued', ?, ?, ?, ?, ?)",
        (
            agent_id, reply.message_id, reply.conversation_id, reply.recipient, reply.device_id, reply.kind, reply.text,
            reply.widget_id, reply.widget, reply.source_id, reply.reply_to, reply.envelope, reply.call_key,
            reply.digest, tx.now, tx.now, tx.day,
        ),
    )  # fmt: skip
    seq: int = cursor.lastrowid
    return seq


def by_call(tx: Tx, agent_id: str, call_key: str) -> tuple[Any, str] | None:
    """The reply that an earlier call under this key made, and the digest of what it said."""
    row = tx.one(f"SELECT {COLUMNS}, digest FROM replies WHERE agent_id = ? AND call_key = ?", (agent_id, call_key))
    return (row[:-1], row[-1]) if row else None


def forget_call(tx: Tx, agent_id: str, call_key: str) -> None:
    tx.execute("UPDATE replies SET call_key = NULL WHERE agent_id = ? AND call_key = ?", (agent_id, call_key))


def ids(tx: Tx, seq: int) -> dict[str, Any]:
    """What names a reply in an event."""
    row = tx.one("SELECT message_id, conversation_id, source_id FROM replies WHERE seq = ?", (seq,))
    return {"message_id": row[0], "conversation_id": row[1], "source_message_id": row[2]}


def by_message_id(tx: Tx, agent_id: str, message_id: str) -> Any:
    return tx.one(f"SELECT {COLUMNS} FROM replies WHERE agent_id = ? AND message_id = ?", (agent_id, message_id))


def by_seq(tx: Tx, seq: int) -> Any:
    return tx.one(f"SELECT {COLUMNS} FROM replies WHERE seq = ?", (seq,))


def widgets(tx: Tx, agent_id: str, conversation_id: str, widget_id: str) -> list[Any]:
    """The replies that showed a widget under this id in a conversation, newest first: ids may be used again."""
    return tx.all(
        f"SELECT {COLUMNS} FROM replies WHERE agent_id = ? AND conversation_id = ? AND widget_id = ?"
        " AND kind = 'widget' ORDER BY seq DESC",
        (agent_id, conversation_id, widget_id),
    )


def widget_patches(tx: Tx, agent_id: str, conversation_id: str, widget_id: str, message_id: str) -> list[str]:
    """The patches sent for one such widget, oldest first, as JSON."""
    rows = tx.all(
        "SELECT widget FROM replies WHERE agent_id = ? AND conversation_id = ? AND widget_id = ?"
        " AND kind = 'widget_update' AND reply_to = ? AND state NOT IN ('failed', 'dropped') ORDER BY seq",
        (agent_id, conversation_id, widget_id, message_id),
    )
    return [row[0] for row in rows]


def select(
    tx: Tx, agent_id: str, *, state: str | None = None, conversation_id: str | None = None, limit: int
) -> list[Any]:
    """The newest matching replies, oldest first. State `open`: those that were neither submitted nor dropped."""
    source, where, parameters = "FROM replies", "agent_id = ?", [agent_id]
    if state in ("queued", "sending", "uncertain"):
        source, where = FROM_OPEN, f"{where} AND {OPEN}"
    if state == "open":
        where += f" AND ({OPEN} OR state = 'failed')"
    elif state is not None:
        where += " AND state = ?"
        parameters.append(state)
    if conversation_id is not None:
        where += " AND conversation_id = ?"
        parameters.append(conversation_id)
    return tx.all(f"SELECT {COLUMNS} {source} WHERE {where} ORDER BY seq DESC LIMIT ?", (*parameters, limit))[::-1]


def begin_sending(tx: Tx, agent_id: str, limit: int) -> list[tuple[int, str, str]]:
    """Queued replies as (seq, message id, envelope), now `sending`: from here on they may have left.

    The oldest first, several at once. One that was tried before may be what ends the connection: it goes alone when
    none is left that was tried less often, and only what follows it in its own conversation waits for it. Long ones go
    alone as well.
    """
    queued = f"{FROM_OPEN} WHERE agent_id = ? AND {OPEN} AND state = 'queued'"
    tried: dict[str, tuple[int, int]] = {}  # conversation -> attempts and seq of its oldest
    for conversation_id, attempts, seq in tx.all(
        f"SELECT conversation_id, attempts, seq {queued} AND attempts > 0 ORDER BY seq", (agent_id,)
    ):
        tried.setdefault(conversation_id, (attempts, seq))
    rows = tx.all(
        f"SELECT seq, message_id, envelope {queued} AND conversation_id NOT IN (SELECT value FROM json_each(?))"
        " ORDER BY seq LIMIT ?",
        (agent_id, json.dumps(list(tried)), limit),
    )
    if not rows and tried:
        _, seq = min(tried.values())
        rows = [tx.one("SELECT seq, message_id, envelope FROM replies WHERE seq = ?", (seq,))]
    long = next((place for place, row in enumerate(rows) if len(row[2]) > ALONE), len(rows))
    batch = [(row[0], row[1], row[2]) for row in rows[: max(long, 1)]]
    for seq, _, _ in batch:
        tx.execute("UPDATE replies SET attempts = attempts + 1 WHERE seq = ?", (seq,))
    set_state(tx, [seq for seq, _, _ in batch], "sending", None)
    return batch


def set_state(tx: Tx, seqs: list[int], state: str, reason: str | None) -> None:
    for seq in seqs:
        tx.execute(
            "UPDATE replies SET state = ?, reason = ?, updated_at = ?, day = ? WHERE seq = ?",
            (state, reason, tx.now, tx.day, seq),
        )


def is_sending(tx: Tx, seq: int) -> bool:
    """Whether nothing else has decided meanwhile what became of it."""
    return tx.one("SELECT 1 FROM replies WHERE seq = ? AND state = 'sending'", (seq,)) is not None


def take_back(tx: Tx, seqs: list[int]) -> None:
    """These were not written after all."""
    set_state(tx, seqs, "queued", None)
    for seq in seqs:
        tx.execute("UPDATE replies SET attempts = attempts - 1 WHERE seq = ?", (seq,))


def in_state(tx: Tx, agent_id: str, state: str) -> list[tuple[int, str]]:
    """(seq, message id) of the replies in an open state, oldest first."""
    rows = tx.all(
        f"SELECT seq, message_id {FROM_OPEN} WHERE agent_id = ? AND {OPEN} AND state = ? ORDER BY seq",
        (agent_id, state),
    )
    return [(row[0], row[1]) for row in rows]


def requeue_uncertain(tx: Tx, agent_id: str, *, tries: int | None = None) -> None:
    """Makes uncertain replies `queued` again, but those that were tried `tries` times: the identical envelope goes
    out once more.
    """
    where, parameters = f"agent_id = ? AND {OPEN} AND state = 'uncertain'", [tx.now, tx.day, agent_id]
    if tries is not None:
        where += " AND attempts < ?"
        parameters.append(tries)
    tx.execute(
        f"UPDATE replies SET state = 'queued', reason = NULL, updated_at = ?, day = ? WHERE {where}",
        tuple(parameters),
    )


def counts(tx: Tx, agent_id: str) -> dict[str, int]:
    """queued (with sending) and uncertain."""
    rows = tx.all(
        f"SELECT state, count(*) {FROM_OPEN} WHERE agent_id = ? AND {OPEN} GROUP BY state",
        (agent_id,),
    )
    found = {row[0]: row[1] for row in rows}
    return {
        "queued": found.get("queued", 0) + found.get("sending", 0),
        "uncertain": found.get("uncertain", 0),
    }
