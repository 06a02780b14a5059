"""Conversation history, version 1: a second copy of each message, readable by everyone who has the conversation's key.

The key reaches an agent inside a Signal message (`pacerelle.delivery`, see `payload`); the relay stores the sealed
records. Sealing and opening is the SDK's public `pacerelle.history`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, cast

from cryptography.exceptions import InvalidTag
from pacerelle.history import (
    ConversationHistoryContext,
    ConversationHistoryEnvelope,
    open_conversation_history,
    seal_conversation_history,
)

from . import _wire
from .errors import DecryptError, LocalProtocolError, PayloadError

KEY_BYTES = 32
EPOCH = 1  # explicit rotation does not exist yet

SenderType = Literal["human", "agent"]


@dataclass(frozen=True, slots=True)
class HistoryKey:
    """One conversation's history key. A different one for the same conversation must be refused."""

    key_id: str
    epoch: int
    raw: bytes = field(repr=False)


def parse_history_key(obj: Any) -> HistoryKey:
    """Raises PayloadError (bad_history_key)."""
    if (
        not isinstance(obj, dict)
        or not _wire.is_plain_id(obj.get("key_id"))
        or type(obj.get("epoch")) is not int
        or obj["epoch"] != EPOCH
    ):
        raise PayloadError("bad_history_key")
    try:
        return HistoryKey(obj["key_id"], EPOCH, _wire.unb64(obj.get("raw_key_b64"), KEY_BYTES))
    except _wire.WireError:
        raise PayloadError("bad_history_key") from None


def history_key_json(key: HistoryKey) -> dict[str, Any]:
    return {"key_id": key.key_id, "epoch": key.epoch, "raw_key_b64": _wire.b64(key.raw)}


def seal_record(
    plaintext: str, key: HistoryKey, *, conversation_id: str, message_id: str, sender_id: str, sender_type: SenderType
) -> dict[str, Any]:
    """The `history_record` of an outgoing message. Raises LocalProtocolError (bad_id) for ids with a colon."""
    context = ConversationHistoryContext(conversation_id, message_id, sender_id, sender_type, key.key_id, key.epoch)
    try:
        return dict(seal_conversation_history(plaintext, key.raw, context))
    except ValueError:
        raise LocalProtocolError("bad_id", "a history record needs ids without colons or control characters") from None


def open_record(
    record: Any, key: HistoryKey, *, conversation_id: str, message_id: str, sender_id: str, sender_type: SenderType
) -> str:
    """The message's plaintext string. Raises DecryptError: bad_record (also another key's), not_authentic."""
    context = ConversationHistoryContext(conversation_id, message_id, sender_id, sender_type, key.key_id, key.epoch)
    try:
        return open_conversation_history(cast(ConversationHistoryEnvelope, record), key.raw, context)
    except InvalidTag:
        raise DecryptError("not_authentic", "the history record was changed or belongs to another message") from None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DecryptError("bad_record", "the history record is malformed or sealed with another key") from None
