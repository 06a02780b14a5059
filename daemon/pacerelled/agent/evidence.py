"""A person's answer proves that what it answers has arrived, where the relay's proof is missing.

It answers a reply that it quotes, and a widget that it responds to. Quotes are the relay's word, as its pongs are.
"""

from __future__ import annotations

from typing import Any

from pacerelle_protocol.envelope import IncomingMessage, group_target
from pacerelled.store import events, replies
from pacerelled.store.database import Tx

from . import shapes, widgets

CONFIRMED = "confirmed by their answer"


def confirm(tx: Tx, agent_id: str, message: IncomingMessage, widget: dict[str, Any] | None) -> list[str]:
    """Makes `submitted` what was not sure to have arrived and is answered by this message; the message ids.

    `widget` is what `widgets.about` returned for it.
    """
    answered = {message.reply_to_message_id} if message.reply_to_message_id else set()
    if widget is not None and len(widgets.shown_to(tx, agent_id, message, widget["widget_id"])) == 1:
        answered.add(widget["message_id"])  # of several with the same id, only a quote tells which was seen
    return [message_id for message_id in sorted(answered) if _confirm(tx, agent_id, message, message_id)]


def _confirm(tx: Tx, agent_id: str, message: IncomingMessage, message_id: str) -> bool:
    row = replies.by_message_id(tx, agent_id, message_id)
    if row is None:
        return False
    reply = shapes.reply(row)
    if reply.state not in ("queued", "sending", "uncertain") or not reply.attempts:
        return False
    if reply.conversation_id != message.conversation_id:
        return False
    if reply.to not in (message.sender, group_target(message.conversation_id)):
        return False
    replies.set_state(tx, [reply.seq], "submitted", CONFIRMED)
    events.add(tx, agent_id, "reply.submitted", **replies.ids(tx, reply.seq), by_message_id=message.id)
    return True
