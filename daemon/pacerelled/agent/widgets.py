"""Widgets that were sent: how one stands now, what may be changed in it, and which one a person's answer is about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pacerelle_protocol.envelope import IncomingMessage, group_target
from pacerelle_protocol.errors import InvalidWidget
from pacerelle_protocol.payload import Content, WidgetResponse, WidgetUpdate
from pacerelle_protocol.widgets import Widget, parse_widget, widget_json
from pacerelled.errors import InvalidArgument, NotPossible, UnknownMessage
from pacerelled.store import replies
from pacerelled.store.database import Tx

from . import shapes
from .model import Reply
from .targets import Target


def parsed(widget: str | Mapping[str, Any]) -> Widget:
    """Raises InvalidArgument with a right widget of the kind that was meant."""
    try:
        return parse_widget(widget)
    except InvalidWidget as error:
        raise InvalidArgument(
            f"`widgetJson` is not a usable widget: {error}",
            argument="widgetJson",
            hint=f"A right one: {json.dumps(error.example)}",
        ) from error


def check_sendable(widget: Widget, to: Target) -> None:
    """What a widget alone cannot tell. Raises InvalidArgument."""
    if is_over(widget):
        raise InvalidArgument(
            f"`widgetJson` expired before it was sent: expires_at is {widget.expires_at}",
            argument="widgetJson",
            hint=f"It is {datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} now. Give a later expires_at, or none.",
        )
    if widget.response_mode == "collective" and to.recipient != group_target(to.conversation_id):
        raise InvalidArgument(
            '`widgetJson` has response_mode "collective", which is for groups: this goes to one person',
            argument="widgetJson",
            hint="Leave response_mode out.",
        )


def title_of(widget: Widget) -> str:
    title = widget.spec.get("title")
    return title if isinstance(title, str) else widget.kind


def is_over(widget: Widget) -> bool:
    """Whether it has expired by the clock of this machine, whose time zone a time without one is in."""
    expires = expiry(widget)
    return expires is not None and expires <= datetime.now(UTC)


def expiry(widget: Widget) -> datetime | None:
    return None if widget.expires_at is None else datetime.fromisoformat(widget.expires_at).astimezone()


def find(tx: Tx, agent_id: str, message_id: str) -> Reply:
    """The reply that showed a widget. Raises UnknownMessage, and NotPossible for other replies."""
    row = replies.by_message_id(tx, agent_id, message_id)
    if row is None:
        raise UnknownMessage(f"There is no reply {message_id}", hint="Give the message_id that send_widget returned.")
    reply = shapes.reply(row)
    if reply.kind != "widget":
        raise NotPossible(f"Reply {message_id} is no widget", hint="Give the message_id that send_widget returned.")
    if reply.state in ("failed", "dropped"):
        raise NotPossible(f"The widget in {message_id} is {reply.state}", hint="Send a new one with send_widget.")
    return reply


def standing(tx: Tx, agent_id: str, reply: Reply) -> Widget:
    """A sent widget with the changes that were sent since."""
    assert reply.widget is not None
    assert reply.widget_id is not None
    widget = parse_widget(reply.widget)
    for patch in replies.widget_patches(tx, agent_id, reply.conversation_id, reply.widget_id, reply.message_id):
        widget = _patched(widget, json.loads(patch))
    return widget


def changed(tx: Tx, agent_id: str, reply: Reply, patch: Mapping[str, Any]) -> Widget:
    """The widget as `patch` makes it. Raises InvalidArgument if that is no right widget of its kind."""
    try:
        return _patched(standing(tx, agent_id, reply), patch)
    except InvalidWidget as error:
        raise InvalidArgument(
            f"`{'expiresAt' if error.field == 'expires_at' else 'spec'}` does not fit this widget: {error}",
            argument="expiresAt" if error.field == "expires_at" else "spec",
            hint=f"A right spec of this kind: {json.dumps(error.example['spec'])}",
        ) from error


def about(tx: Tx, agent_id: str, message: IncomingMessage, content: Content) -> dict[str, Any] | None:
    """The widget of ours that a person's response or update names, as a request shows it; None for other messages.

    The one that the message quotes; or else, where the id was used several times, the newest that can have arrived.
    """
    if not isinstance(content, WidgetResponse | WidgetUpdate):
        return None
    shown = shown_to(tx, agent_id, message, content.ref)
    reply = next((r for r in shown if r.message_id == message.reply_to_message_id), shown[0] if shown else None)
    if reply is None:
        return None
    widget = standing(tx, agent_id, reply)
    return {
        "widget_id": widget.id,
        "message_id": reply.message_id,
        "kind": widget.kind,
        "title": title_of(widget),
        "source_message_id": reply.source_message_id,
        "expires_at": widget.expires_at,
        "late": is_over(widget),
    }


def shown_to(tx: Tx, agent_id: str, message: IncomingMessage, widget_id: str) -> list[Reply]:
    """The widgets of this id that the sender can have seen in this conversation, newest first."""
    audience = (message.sender, group_target(message.conversation_id))
    found = map(shapes.reply, replies.widgets(tx, agent_id, message.conversation_id, widget_id))
    return [reply for reply in found if reply.to in audience and reply.attempts]


def _patched(widget: Widget, patch: Mapping[str, Any]) -> Widget:
    whole = widget_json(widget)
    whole["spec"] = {**widget.spec, **patch.get("spec", {})}
    if patch.get("expires_at") is not None:
        whole["expires_at"] = patch["expires_at"]
    return parse_widget(whole)
