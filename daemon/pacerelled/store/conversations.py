"""Conversations with their history keys, the devices that wrote in them, and group keys."""

from __future__ import annotations

from dataclasses import dataclass

from pacerelle_protocol.groups import GroupKey
from pacerelle_protocol.history import HistoryKey

from .database import Tx


@dataclass(frozen=True, slots=True)
class ConversationRow:
    conversation_id: str
    is_group: bool
    last_sender: str | None
    last_device: str | None
    last_message_id: str | None
    last_at: str | None


@dataclass(frozen=True, slots=True)
class DeviceRow:
    identity_key: bytes | None
    legacy: bool  # its Signal session has the name older clients without devices used


def touch(
    tx: Tx,
    agent_id: str,
    conversation_id: str,
    *,
    group: bool,
    sender: str,
    device: str | None,
    message_id: str,
) -> None:
    """Notes the newest message of a conversation."""
    tx.execute(
        "INSERT INTO conversations"
        " (agent_id, conversation_id, is_group, last_sender, last_device, last_message_id, last_at) VALUES (?,"
        " ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (agent_id, conversation_id) DO UPDATE SET is_group = excluded.is_group, last_sender ="
        " excluded.last_sender,"
        " last_device = excluded.last_device, last_message_id = excluded.last_message_id, last_at = excluded.last_at",
        (agent_id, conversation_id, int(group), sender, device, message_id, tx.now),
    )


def conversation(tx: Tx, agent_id: str, conversation_id: str) -> ConversationRow | None:
    return _one(tx, "agent_id = ? AND conversation_id = ?", (agent_id, conversation_id))


def newest(tx: Tx, agent_id: str) -> ConversationRow | None:
    """The conversation of the newest request."""
    row = tx.one("SELECT conversation_id FROM requests WHERE agent_id = ? ORDER BY seq DESC LIMIT 1", (agent_id,))
    return conversation(tx, agent_id, row[0]) if row else None


def last_device(tx: Tx, agent_id: str, conversation_id: str, user_id: str) -> str | None:
    """The device from which this person wrote last in this conversation."""
    row = tx.one(
        "SELECT device_id FROM requests WHERE agent_id = ? AND conversation_id = ? AND sender = ? ORDER BY seq"
        " DESC LIMIT 1",
        (agent_id, conversation_id, user_id),
    )
    return row[0] if row else None


def _one(tx: Tx, where: str, parameters: tuple[str, ...]) -> ConversationRow | None:
    row = tx.one(
        "SELECT conversation_id, is_group, last_sender, last_device, last_message_id, last_at FROM conversations WHERE "
        + where,
        parameters,
    )
    return ConversationRow(row[0], bool(row[1]), *row[2:]) if row else None


def history_key(tx: Tx, agent_id: str, conversation_id: str) -> HistoryKey | None:
    row = tx.one(
        "SELECT history_key_id, history_epoch, history_key FROM conversations WHERE agent_id = ? AND"
        " conversation_id = ?",
        (agent_id, conversation_id),
    )
    return HistoryKey(row[0], row[1], bytes(row[2])) if row and row[0] else None


def set_history_key(tx: Tx, agent_id: str, conversation_id: str, key: HistoryKey) -> None:
    tx.execute(
        "INSERT INTO conversations (agent_id, conversation_id, history_key_id, history_epoch, history_key)"
        " VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (agent_id, conversation_id) DO UPDATE SET history_key_id = excluded.history_key_id,"
        " history_epoch = excluded.history_epoch, history_key = excluded.history_key",
        (agent_id, conversation_id, key.key_id, key.epoch, key.raw),
    )


def device(tx: Tx, agent_id: str, user_id: str, conversation_id: str, device_id: str) -> DeviceRow | None:
    row = tx.one(
        "SELECT identity_key, legacy FROM devices WHERE agent_id = ? AND user_id = ? AND conversation_id = ? AND"
        " device_id = ?",
        (agent_id, user_id, conversation_id, device_id),
    )
    return DeviceRow(bytes(row[0]) if row[0] is not None else None, bool(row[1])) if row else None


def save_device(
    tx: Tx,
    agent_id: str,
    user_id: str,
    conversation_id: str,
    device_id: str,
    *,
    identity_key: bytes | None,
    legacy: bool,
) -> None:
    """Notes that a device wrote. An identity key, once recorded, is not replaced here."""
    tx.execute(
        "INSERT INTO devices (agent_id, user_id, conversation_id, device_id, identity_key, legacy, first_seen,"
        " last_seen)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (agent_id, user_id, conversation_id, device_id) DO UPDATE SET"
        " identity_key = coalesce(identity_key, excluded.identity_key), legacy = excluded.legacy, last_seen ="
        " excluded.last_seen",
        (agent_id, user_id, conversation_id, device_id, identity_key, int(legacy), tx.now, tx.now),
    )


def group_key(tx: Tx, agent_id: str, conversation_id: str, key_id: str, epoch: int) -> GroupKey | None:
    row = tx.one(
        "SELECT raw FROM group_keys WHERE agent_id = ? AND conversation_id = ? AND key_id = ? AND epoch = ?",
        (agent_id, conversation_id, key_id, epoch),
    )
    return GroupKey(conversation_id, key_id, epoch, bytes(row[0])) if row else None


def newest_group_key(tx: Tx, agent_id: str, conversation_id: str) -> GroupKey | None:
    """The key of the highest epoch, which sending uses."""
    row = tx.one(
        "SELECT key_id, epoch, raw FROM group_keys WHERE agent_id = ? AND conversation_id = ? ORDER BY epoch"
        " DESC, rowid DESC LIMIT 1",
        (agent_id, conversation_id),
    )
    return GroupKey(conversation_id, row[0], row[1], bytes(row[2])) if row else None


def save_group_key(tx: Tx, agent_id: str, key: GroupKey) -> None:
    tx.execute(
        "INSERT OR IGNORE INTO group_keys (agent_id, conversation_id, key_id, epoch, raw) VALUES (?, ?, ?, ?, ?)",
        (agent_id, key.conversation_id, key.key_id, key.epoch, key.raw),
    )
