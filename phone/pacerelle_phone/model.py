"""What the phone's users see. `as_dict` gives the JSON shape that `pacerelle chat --json` prints (docs/phone.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from pacerelle_protocol.payload import FileRef
from pacerelle_protocol.widgets import Widget

Direction = Literal["in", "out"]
Kind = Literal["text", "widget", "widget_response", "widget_update", "undecryptable", "identity_changed"]
State = Literal["received", "queued", "sent", "read", "failed"]
Link = Literal["connecting", "connected", "reconnecting", "refused", "closed"]


@dataclass(frozen=True, slots=True)
class PairedAgent:
    """A new agent. The token is shown this once and kept nowhere on the phone."""

    agent_id: str
    agent_token: str = field(repr=False)
    conversation_id: str


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent of this account. `identity`: whether its key is not known yet, trusted, or changed since."""

    agent_id: str
    name: str
    conversation_id: str
    identity: Literal["unknown", "trusted", "changed"]
    connected: bool | None = None  # None: the relay could not be asked

    def as_dict(self) -> dict[str, Any]:
        return {
            "agent_id": self.agent_id,
            "name": self.name,
            "conversation_id": self.conversation_id,
            "identity": self.identity,
            "connected": self.connected,
        }


@dataclass(frozen=True, slots=True)
class Message:
    """One row of the phone's conversation, either direction.

    `seq` grows on this device and never repeats. `state` is `received` for what came in; what goes out is `queued`,
    then `sent` (the relay has it), then `read` (the agent took it), or `failed` with its `reason`. `archived` says
    whether it came with a history record that this device could open and that says the same (history-v1).
    """

    seq: int
    id: str
    direction: Direction
    agent_id: str  # "" for what goes out to a group
    conversation_id: str
    group: bool
    kind: Kind
    state: State
    at: str  # ISO 8601 UTC
    text: str = field(default="", repr=False)
    files: tuple[FileRef, ...] = ()
    reply_to: str | None = None
    widget: Widget | None = None
    ref: str | None = None  # the widget that a response or update is about
    value: Any = field(default=None, repr=False)  # a response's value, an update's patch
    cancelled: bool = False
    reason: str | None = None
    archived: bool = False

    def as_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "seq": self.seq,
            "id": self.id,
            "direction": self.direction,
            "agent_id": self.agent_id,
            "conversation_id": self.conversation_id,
            "group": self.group,
            "kind": self.kind,
            "state": self.state,
            "at": self.at,
            "text": self.text,
            "reply_to": self.reply_to,
            "files": [{"id": f.id, "name": f.name, "mime": f.mime, "size": f.size} for f in self.files],
            "reason": self.reason,
            "archived": self.archived,
        }
        if self.widget is not None:
            out["widget"] = {"id": self.widget.id, "kind": self.widget.kind, "spec": self.widget.spec}
        if self.ref is not None:
            out |= {"ref": self.ref, "value": self.value, "cancelled": self.cancelled}
        return out
