"""Conversations with their history keys, and group keys."""

from __future__ import annotations

from dataclasses import dataclass

from pacerelle_protocol.groups import GroupKey
from pacerelle_protocol.history import HistoryKey

from .database import Tx


@dataclass(frozen=True, slots=True)
class ConversationRow:
    is_group: bool
    last_sender: str | None  # None: only its history key is known


def touch(tx: Tx, agent_id: str, conversation_id: str, *, group: bool, sender: str) -> None:
    """Notes who wrote last in a conversation; writes only what changes."""
    tx.execute(
        "INSERT INTO conversations (agent_id, conversation_id, is_group, last_sender) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (agent_id, conversation_id)"
        " DO UPDATE SET is_group = excluded.is_group, last_sender = excluded.last_sender"
        " WHERE is_group <> excluded.is_group OR last_sender IS NOT excluded.last_sender",
        (agent_id, conversation_id, int(group), sender),
    )


def conversation(tx: Tx, agent_id: str, conversation_id: str) -> ConversationRow | None:
    row = tx.one(
        "SELECT is_group, last_sender FROM conversations WHERE agent_id = ? AND conversation_id = ?",
        (agent_id, conversation_id),
    )
    return ConversationRow(bool(row[0]), row[1]) if row else None


def last_device(tx: Tx, agent_id: str, conversation_id: str, user_id: str) -> str | None:
    """The device from which this person wrote last in this conversation."""
    row = tx.one(
        "SELECT device_id FROM requests WHERE agent_id = ? AND conversation_id = ? AND sender = ? ORDER BY seq"
        " DESC LIMIT 1",
        (agent_id, conversation_id, user_id),
    )
    return row[0] if row else None


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
