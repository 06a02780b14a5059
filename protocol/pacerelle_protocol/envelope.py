"""The JSON text frames of the agent's WebSocket (the relay protocol reference, "WebSocket")."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from . import _wire
from .errors import FrameError, LocalProtocolError, TooLarge

MAX_FRAME = 1 << 20
"""Bytes of an outgoing frame: the official client's connection ends over a longer one."""

_DIGESTED = (
    "from",
    "from_device_id",
    "to",
    "conversation_id",
    "payload_b64",
    "encrypted",
    "reply_to_message_id",
    "attachments",
)


@dataclass(frozen=True, slots=True)
class PublicAttachment:
    """What the relay may know of a file. `size` in bytes."""

    id: str
    name: str = field(repr=False)
    mime: str
    size: int
    blob_id: str
    sha256: str | None = None
    thumbnail_blob_id: str | None = None


@dataclass(frozen=True, slots=True)
class IncomingMessage:
    """A `MSG` whose routing is well-formed; nothing is decoded or believed yet."""

    id: str
    sender: str
    conversation_id: str
    payload_b64: str = field(repr=False)  # plaintext, where nothing is encrypted
    encrypted: bool
    sender_device_id: str | None
    to: str | None
    reply_to_message_id: str | None
    attachments: tuple[PublicAttachment, ...]
    history_record: dict[str, Any] | None = field(repr=False)
    digest: str  # SHA-256 over routing and payload: tells a redelivery from a reused id

    @property
    def is_group(self) -> bool:
        return self.to == group_target(self.conversation_id)


@dataclass(frozen=True, slots=True)
class IdentityChanged:
    """The relay says that a peer's identity key changed. A notice, never permission to reset anything."""

    peer_id: str
    peer_kind: Literal["user", "agent"]


@dataclass(frozen=True, slots=True)
class UnknownFrame:
    """A type we do not know: to be ignored. `type` is cut at 64 characters."""

    type: str


def group_target(conversation_id: str) -> str:
    """The `to` of a message to everyone in a conversation."""
    return f"group:{conversation_id}"


def parse_frame(raw: str | bytes) -> IncomingMessage | IdentityChanged | UnknownFrame:
    """Raises FrameError, and nothing else."""
    try:
        frame = _wire.loads_object(raw)
    except _wire.WireError as error:
        raise FrameError(error.reason) from None
    kind = frame.get("type")
    if kind == "MSG":
        return _message(frame)
    if kind == "IDENTITY_CHANGED":
        return _identity_changed(frame)
    if not isinstance(kind, str):
        raise FrameError("no_type")
    return UnknownFrame("".join(c if c.isprintable() else "?" for c in kind[:64]))


def _message(frame: dict[str, Any]) -> IncomingMessage:
    message_id = frame.get("id") if _wire.is_id(frame.get("id")) else None
    sender, conversation_id = (
        frame.get(name) if _wire.is_plain_id(frame.get(name)) else None for name in ("from", "conversation_id")
    )

    def bad(name: str) -> FrameError:
        reason = "bad_field" if frame.get(name) is not None else "missing_field"
        return FrameError(
            reason,
            f"{reason.replace('_', ' ')} {name}",
            message_id=message_id,
            sender=sender,
            conversation_id=conversation_id,
        )

    def optional(name: str, *, plain: bool = False) -> str | None:
        value = frame.get(name)
        if value is None or value == "":
            return None
        if not (_wire.is_plain_id(value) if plain else _wire.is_id(value)):
            raise bad(name)
        return str(value)

    if message_id is None:
        raise bad("id")
    if sender is None:
        raise bad("from")
    if conversation_id is None:
        raise bad("conversation_id")
    payload = frame.get("payload_b64")
    if not isinstance(payload, str):
        raise bad("payload_b64")
    record = frame.get("history_record")
    digested = _wire.dumps([frame.get(name) for name in _DIGESTED])
    return IncomingMessage(
        id=message_id,
        sender=sender,
        conversation_id=conversation_id,
        payload_b64=payload,
        encrypted=frame.get("encrypted") is True,
        sender_device_id=optional("from_device_id", plain=True),
        to=optional("to"),
        reply_to_message_id=optional("reply_to_message_id"),
        attachments=_attachments(frame.get("attachments")),
        history_record=record if isinstance(record, dict) else None,
        digest=hashlib.sha256(digested.encode()).hexdigest(),
    )


def _identity_changed(frame: dict[str, Any]) -> IdentityChanged:
    if _wire.is_id(frame.get("user_id")):
        return IdentityChanged(frame["user_id"], "user")
    if _wire.is_id(frame.get("agent_id")):
        return IdentityChanged(frame["agent_id"], "agent")
    raise FrameError("missing_field", "missing field user_id or agent_id")


def _attachments(value: Any) -> tuple[PublicAttachment, ...]:
    """One unusable entry costs that file, not the message."""
    if not isinstance(value, list):
        return ()
    found = (_attachment(item) for item in value if isinstance(item, dict))
    return tuple(item for item in found if item is not None)


def _attachment(item: dict[str, Any]) -> PublicAttachment | None:
    ids = (item.get("id"), item.get("blob_id"), item.get("name"), item.get("mime"))
    if not all(_wire.is_id(value) for value in ids) or not _wire.is_count(item.get("size")):
        return None
    sha256, thumbnail = item.get("sha256"), item.get("thumbnail_blob_id")
    return PublicAttachment(
        id=item["id"],
        name=item["name"],
        mime=item["mime"],
        size=item["size"],
        blob_id=item["blob_id"],
        sha256=sha256 if _wire.is_id(sha256) else None,
        thumbnail_blob_id=thumbnail if _wire.is_id(thumbnail) else None,
    )


def message_frame(
    *,
    id: str,
    conversation_id: str,
    to: str,
    payload_b64: str,
    encrypted: bool = True,
    to_device_id: str | None = None,
    reply_to_message_id: str | None = None,
    attachments: Sequence[PublicAttachment] = (),
    history_record: dict[str, Any] | None = None,
) -> str:
    """An outgoing `MSG`. Raises LocalProtocolError (bad_id, bad_value) and TooLarge."""
    frame: dict[str, Any] = {
        "type": "MSG",
        "id": _own(id),
        "conversation_id": _own(conversation_id),
        "to": _own(to),
        "payload_b64": payload_b64,
        "encrypted": encrypted,
    }
    if to_device_id is not None:
        frame["to_device_id"] = _own(to_device_id)
    if reply_to_message_id is not None:
        frame["reply_to_message_id"] = _own(reply_to_message_id)
    if attachments:
        frame["attachments"] = [attachment_json(item) for item in attachments]
    if history_record is not None:
        frame["history_record"] = history_record
    try:
        text = _wire.dumps(frame)
    except _wire.WireError:
        raise LocalProtocolError("bad_value", "a history record that JSON cannot say") from None
    size = len(text.encode())
    if size > MAX_FRAME:
        raise TooLarge("the message", size=size, limit=MAX_FRAME)
    return text


def attachment_json(item: PublicAttachment) -> dict[str, Any]:
    """The public form of one attachment; what is not known is left out."""
    out: dict[str, Any] = {
        "id": item.id,
        "name": item.name,
        "mime": item.mime,
        "size": item.size,
        "blob_id": item.blob_id,
    }
    if item.sha256 is not None:
        out["sha256"] = item.sha256
    if item.thumbnail_blob_id is not None:
        out["thumbnail_blob_id"] = item.thumbnail_blob_id
    return out


def ack_read_frame(*, to: str, message_id: str, conversation_id: str) -> str:
    """Says that a request is durably ours; `to` is the person who wrote it. Raises LocalProtocolError (bad_id)."""
    return _wire.dumps(
        {
            "type": "ACK_READ",
            "to": _own(to),
            "message_id": _own(message_id),
            "conversation_id": _own(conversation_id),
        }
    )


def _own(value: str) -> str:
    if not _wire.is_id(value):
        raise LocalProtocolError("bad_id", "an identifier is empty, too long or has control characters")
    return value
