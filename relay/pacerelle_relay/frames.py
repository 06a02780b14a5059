"""The frames that agents and devices send, and those the relay makes of them. Pure: strings in, values out.

Field names are those of the relay protocol reference.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .fields import Fields, parse_object

MAX_ATTACHMENTS = 64


@dataclass(frozen=True, slots=True)
class Message:
    """What a sender says. `content` holds the fields that the relay passes on without looking at them."""

    id: str
    conversation_id: str
    to: str
    to_device_id: str | None
    content: dict[str, Any]

    @property
    def is_group(self) -> bool:
        return self.to == f"group:{self.conversation_id}"

    def frame(self, sender: str, *, from_device_id: str | None = None) -> str:
        """The MSG frame for the receivers. The same message always gives the same string."""
        fields = {
            **self.content,
            "type": "MSG",
            "id": self.id,
            "from": sender,
            "conversation_id": self.conversation_id,
            "to": self.to,
        }
        if self.to_device_id is not None:
            fields["to_device_id"] = self.to_device_id
        if from_device_id is not None:
            fields["from_device_id"] = from_device_id
        return dump(fields)


@dataclass(frozen=True, slots=True)
class AckRead:
    """An agent has made a message durably its own."""

    message_id: str
    conversation_id: str


@dataclass(frozen=True, slots=True)
class Ack:
    """A device has made everything up to `seq` durably its own."""

    seq: int


def dump(value: dict[str, Any]) -> str:
    """ASCII JSON in one canonical form, so that equal content is equal text."""
    return json.dumps(value, separators=(",", ":"), sort_keys=True)


def numbered(frame: str, seq: int) -> str:
    """The frame (a non-empty JSON object) with its `seq`, as devices get it."""
    return f'{{"seq":{seq},{frame[1:]}'


def read_message(fields: Fields) -> Message:
    """A message from an agent's frame or a device's request. Raises Malformed."""
    content: dict[str, Any] = {
        "payload_b64": fields.base64("payload_b64"),
        "encrypted": fields.flag("encrypted"),
    }
    optional: dict[str, Any] = {
        "reply_to_message_id": fields.optional(fields.identifier, "reply_to_message_id"),
        "attachments": fields.optional(
            lambda name: fields.objects(name, limit=MAX_ATTACHMENTS),
            "attachments",
        ),
        "history_record": fields.optional(fields.object, "history_record"),
    }
    content.update((name, value) for name, value in optional.items() if value is not None)
    return Message(
        id=fields.identifier("id"),
        conversation_id=fields.identifier("conversation_id"),
        to=fields.target("to"),
        to_device_id=fields.optional(fields.identifier, "to_device_id"),
        content=content,
    )


def read_agent_frame(text: str) -> Message | AckRead:
    """What an agent's frame says. Raises Malformed, also for a type that is not ours."""
    fields = parse_object(text)
    if fields.one_of("type", "MSG", "ACK_READ") == "MSG":
        return read_message(fields)
    return AckRead(fields.identifier("message_id"), fields.identifier("conversation_id"))


def read_device_frame(text: str) -> Ack:
    """What a device's frame says. Raises Malformed, also for a type that is not ours."""
    fields = parse_object(text)
    fields.one_of("type", "ACK")
    return Ack(fields.integer("seq"))
