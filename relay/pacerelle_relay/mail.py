"""Messages and notices: who may send to whom, what waits for whom, and what has been acknowledged.

Runs on the database's thread. Functions that put something into mailboxes return the mailboxes' ids (an agent's or a
device's), so that whoever is connected can be woken after the commit.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

from . import conversations
from .accounts import Agent, Device, device_ids
from .conversations import Conversation
from .errors import Conflict, Malformed, NotFound, OverQuota
from .frames import AckRead, Message, dump
from .limits import Limits

READ_AHEAD_BYTES = 1024 * 1024  # what one look into a mailbox returns, or one frame if that is larger
READ_AHEAD_FRAMES = 128


@dataclass(frozen=True, slots=True)
class Accepted:
    """A message that is stored. `duplicate`: it had been before, and nothing was done."""

    duplicate: bool
    mailboxes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Waiting:
    """One frame in a mailbox; `seq` grows in the order in which a mailbox's frames were accepted."""

    seq: int
    frame: str
    notice: bool  # the relay's own: there is no acknowledgement by message id


def send_from_device(
    db: sqlite3.Connection, device: Device, message: Message, device_less: bool, limits: Limits, now: float
) -> Accepted:
    """A person's message to an agent of the conversation, or to everybody else in the group.

    Raises NotFound, Forbidden, Malformed, Conflict (another message has the id), OverQuota.
    """
    conversation = conversations.of_device(db, device, message.conversation_id)
    frame = message.frame(device.account_id, from_device_id=None if device_less else device.id)
    if _is_repeated(db, message.id, frame):
        return Accepted(True, ())
    if message.is_group:
        _require_group(conversation)
        agent_ids = list(conversation.agent_ids)
        other_devices = [id for id in device_ids(db, device.account_id) if id != device.id]
    elif message.to in conversation.agent_ids:
        agent_ids, other_devices = [message.to], []
    else:
        raise NotFound("`to` is no agent of this conversation", code="recipient")
    if len(_with_room(db, agent_ids, len(frame), limits)) < len(agent_ids):
        raise OverQuota("too many messages are waiting for the agent: try again when it has read some")
    recipients = agent_ids + _with_room(db, other_devices, len(frame), limits)
    return Accepted(False, _store(db, message, device.account_id, frame, recipients, now))


def send_from_agent(
    db: sqlite3.Connection, agent: Agent, message: Message, limits: Limits, now: float
) -> tuple[str, ...]:
    """An agent's message to one device, to all devices of the person, or to everybody else in the group.

    A receiver whose mailbox is full gets nothing more until it acknowledges. Raises as `send_from_device`.
    """
    conversation = conversations.of_agent(db, agent, message.conversation_id)
    frame = message.frame(agent.id)
    if _is_repeated(db, message.id, frame):
        return ()
    devices = device_ids(db, conversation.account_id)
    if message.is_group:
        _require_group(conversation)
        recipients = [id for id in conversation.agent_ids if id != agent.id] + devices
    elif message.to != conversation.account_id:
        raise NotFound("`to` is no person of this conversation", code="recipient")
    elif message.to_device_id is None:
        recipients = devices
    elif message.to_device_id in devices:
        recipients = [message.to_device_id]
    else:
        raise NotFound("the person has no such device", code="recipient")
    recipients = _with_room(db, recipients, len(frame), limits)
    if not recipients:
        raise OverQuota("too many messages are waiting for the receiver")
    return _store(db, message, None, frame, recipients, now)


def acknowledge_read(db: sqlite3.Connection, agent: Agent, ack: AckRead, limits: Limits, now: float) -> tuple[str, ...]:
    """Ends the redelivery of a message to this agent, and tells the devices of the person who wrote it."""
    row = db.execute(
        "SELECT number, account_id FROM messages WHERE id = ? AND conversation_id = ?",
        (ack.message_id, ack.conversation_id),
    ).fetchone()
    if row is None:
        return ()
    number, account_id = row
    removed = db.execute("DELETE FROM queue WHERE message = ? AND mailbox = ?", (number, agent.id)).rowcount
    if not removed or account_id is None:
        return ()
    notice = {
        "type": "READ",
        "message_id": ack.message_id,
        "conversation_id": ack.conversation_id,
        "agent_id": agent.id,
    }
    return notify(db, device_ids(db, account_id), dump(notice), limits, now)


def acknowledge_up_to(db: sqlite3.Connection, device: Device, seq: int) -> None:
    """Ends the redelivery of everything up to `seq` to this device."""
    db.execute("DELETE FROM queue WHERE mailbox = ? AND seq <= ?", (device.id, seq))


def acknowledge_notices(db: sqlite3.Connection, agent: Agent, seq: int) -> None:
    """The relay's notices up to `seq` have reached the agent."""
    db.execute("DELETE FROM queue WHERE mailbox = ? AND seq <= ? AND message IS NULL", (agent.id, seq))


def notify(
    db: sqlite3.Connection, mailboxes: Iterable[str], notice: str, limits: Limits, now: float
) -> tuple[str, ...]:
    """Puts a notice of the relay's own into the mailboxes that have room."""
    room = _with_room(db, mailboxes, len(notice), limits)
    db.executemany(
        "INSERT INTO queue (mailbox, notice, size, created_at) VALUES (?, ?, ?, ?)",
        [(id, notice, len(notice), now) for id in room],
    )
    return tuple(room)


def waiting(db: sqlite3.Connection, mailbox: str, after: int) -> list[Waiting]:
    """What lies in the mailbox behind `after`, oldest first; a portion of it if it is much."""
    found: list[Waiting] = []
    size = 0
    rows = db.execute(
        "SELECT seq, coalesce(notice, frame), notice IS NOT NULL FROM queue LEFT JOIN messages ON number = message"
        " WHERE mailbox = ? AND seq > ? ORDER BY seq LIMIT ?",
        (mailbox, after, READ_AHEAD_FRAMES),
    )
    for seq, frame, notice in rows:
        size += len(frame)
        if found and size > READ_AHEAD_BYTES:
            break
        found.append(Waiting(seq, frame, bool(notice)))
    return found


def prune(db: sqlite3.Connection, limits: Limits, now: float) -> int:
    """Forgets some of what is too old; returns how much, 0 when nothing is left to forget."""
    undelivered = db.execute(
        "DELETE FROM queue WHERE seq IN (SELECT seq FROM queue WHERE created_at < ? LIMIT 1000)",
        (now - limits.unacknowledged_s,),
    ).rowcount
    messages = db.execute(
        "DELETE FROM messages WHERE number IN (SELECT number FROM messages WHERE created_at < ?"
        " AND NOT EXISTS (SELECT 1 FROM queue WHERE message = number) ORDER BY created_at LIMIT 1000)",
        (now - limits.acknowledged_s,),
    ).rowcount
    return undelivered + messages


def _require_group(conversation: Conversation) -> None:
    if conversation.kind != "group":
        raise Malformed("`to` names a group, but the conversation is direct")


def _is_repeated(db: sqlite3.Connection, id: str, frame: str) -> bool:
    row = db.execute("SELECT frame FROM messages WHERE id = ?", (id,)).fetchone()
    if row is None:
        return False
    if row[0] != frame:
        raise Conflict("another message has this id", code="duplicate_id")
    return True


def _with_room(db: sqlite3.Connection, mailboxes: Iterable[str], size: int, limits: Limits) -> list[str]:
    """Those of the mailboxes that can take `size` bytes more."""
    room = []
    for id in mailboxes:
        row = db.execute("SELECT pending, pending_bytes FROM mailboxes WHERE id = ?", (id,)).fetchone()
        if row[0] < limits.pending_per_mailbox and row[1] + size <= limits.pending_bytes_per_mailbox:
            room.append(id)
    return room


def _store(
    db: sqlite3.Connection,
    message: Message,
    account_id: str | None,
    frame: str,
    recipients: list[str],
    now: float,
) -> tuple[str, ...]:
    number = db.execute(
        "INSERT INTO messages (id, conversation_id, account_id, frame, created_at) VALUES (?, ?, ?, ?, ?)",
        (message.id, message.conversation_id, account_id, frame, now),
    ).lastrowid
    size = len(frame)
    db.executemany(
        "INSERT INTO queue (mailbox, message, size, created_at) VALUES (?, ?, ?, ?)",
        [(id, number, size, now) for id in recipients],
    )
    return tuple(recipients)
