"""What the relay sends: every frame is taken, whatever is in it, in one commit with the Signal state that opened it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from pacerelle_protocol.envelope import IdentityChanged, IncomingMessage, UnknownFrame, parse_frame
from pacerelle_protocol.errors import FrameError, ProtocolError
from pacerelle_protocol.payload import Text, WidgetResponse, WidgetUpdate
from pacerelle_protocol.widgets import Widget

from . import sealing
from .core import Core
from .model import Kind, Message


@dataclass(slots=True)
class Taken:
    """The outcome of one commit. `seq` is the relay's number up to which everything is durably ours."""

    seq: int | None = None
    messages: list[Message] = field(default_factory=list)
    read: list[str] = field(default_factory=list)  # our messages that an agent has taken
    new_prekeys: bool = False
    suspects: bool = False
    unreadable: int = 0


def take(core: Core, frames: Sequence[str | bytes]) -> Taken:
    """Store a burst of frames in one transaction. Raises HomeUnusable, and then nothing was stored."""
    taken = Taken()
    rows: list[int] = []
    with core.store.transaction():
        for raw in frames:
            row = _take_one(core, raw, taken)
            if row is not None:
                rows.append(row)
    taken.messages = [core.log.message(row) for row in rows]
    return taken


def _take_one(core: Core, raw: str | bytes, taken: Taken) -> int | None:
    notice = _object(raw)
    seq = notice.get("seq")
    if type(seq) is int and seq >= 0:
        taken.seq = max(taken.seq or 0, seq)
    match notice:
        case {"type": "READ", "message_id": str(message_id)} if message_id.isascii():  # ours are UUIDs
            core.log.mark_read(message_id)
            taken.read.append(message_id)
            return None
        case {"type": "PREKEYS_CHANGED"}:
            taken.new_prekeys = True
            return None
    try:
        frame = parse_frame(raw)
    except FrameError as error:
        return _unreadable(core, error, taken)
    if isinstance(frame, IdentityChanged):
        if frame.peer_kind == "agent":
            core.peers.suspect(frame.peer_id)
            taken.suspects = True
        return None
    return None if isinstance(frame, UnknownFrame) else _message(core, frame)


def _message(core: Core, message: IncomingMessage) -> int | None:
    if core.log.has_incoming(message.sender, message.id):
        return None
    try:
        opened, archived = sealing.open_message(core, message)
    except ProtocolError as error:
        return _undecryptable(
            core,
            message.sender,
            message.id,
            message.conversation_id,
            error,
            group=message.is_group,
            reply_to=message.reply_to_message_id,
        )
    kind: Kind
    ref: str | None
    match opened.content:
        case Text():
            kind, ref = "text", None
        case Widget(id=widget_id):
            kind, ref = "widget", widget_id
        case WidgetResponse(ref=widget_id):
            kind, ref = "widget_response", widget_id
        case WidgetUpdate(ref=widget_id):
            kind, ref = "widget_update", widget_id
    return core.log.add(
        direction="in",
        agent_id=message.sender,
        id=message.id,
        conversation_id=message.conversation_id,
        group=message.is_group,
        kind=kind,
        state="received",
        body=opened.body,
        attachments=message.attachments,
        reply_to=message.reply_to_message_id,
        ref=ref,
        archived=archived,
    )


def _unreadable(core: Core, error: FrameError, taken: Taken) -> int | None:
    """A frame whose sender can be read is shown as that sender's; any other is only counted."""
    if error.sender is None or error.conversation_id is None:
        taken.unreadable += 1
        return None
    message_id = error.message_id or f"unreadable-{uuid.uuid4()}"
    if core.log.has_incoming(error.sender, message_id):
        return None
    return _undecryptable(core, error.sender, message_id, error.conversation_id, error)


def _undecryptable(
    core: Core,
    sender: str,
    message_id: str,
    conversation_id: str,
    error: ProtocolError,
    *,
    group: bool = False,
    reply_to: str | None = None,
) -> int:
    return core.log.add(
        direction="in",
        agent_id=sender,
        id=message_id,
        conversation_id=conversation_id,
        group=group,
        kind="undecryptable",
        state="received",
        reply_to=reply_to,
        reason=error.reason,
    )


def _object(raw: str | bytes) -> dict[str, object]:
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
