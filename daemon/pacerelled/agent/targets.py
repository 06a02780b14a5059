"""Where a reply goes: the request it answers decides; an explicit target is for those who know."""

from __future__ import annotations

from dataclasses import dataclass

from pacerelle_protocol.envelope import group_target
from pacerelled.errors import InvalidArgument, UnknownMessage
from pacerelled.store import conversations, requests
from pacerelled.store.database import Tx

from . import shapes


@dataclass(frozen=True, slots=True)
class Target:
    conversation_id: str
    recipient: str  # a person, or group:<conversation>
    device_id: str | None
    reply_to: str | None
    source_id: str | None


def resolve_target(
    tx: Tx,
    agent_id: str,
    source_message_id: str | None,
    conversation_id: str | None,
    to: str | None,
    reply_to_message_id: str | None,
) -> Target:
    """Raises UnknownMessage and InvalidArgument.

    A reply goes to the device that asked, and for a group message to the group (the relay protocol reference,
    "Signal sessions").
    """
    if source_message_id is not None:
        row = requests.by_message_id(tx, agent_id, source_message_id)
        if row is None:
            raise UnknownMessage(
                f"There is no request {source_message_id} in this agent's inbox",
                hint="Use a message_id as wait_for_messages or get_history gave it.",
            )
        source = shapes.request(row)
        recipient = group_target(source.conversation_id) if source.group else source.sender
        for name, given, wanted in (
            ("conversationId", conversation_id, source.conversation_id),
            ("to", to, recipient),
        ):
            if given is not None and given != wanted:
                raise InvalidArgument(
                    f"`{name}` contradicts `sourceMessageId`: that request came from {wanted}",
                    argument=name,
                    hint="Give sourceMessageId alone: it routes the reply by itself.",
                )
        return Target(
            source.conversation_id,
            recipient,
            None if source.group else source.device_id,
            reply_to_message_id or source_message_id,
            source_message_id,
        )
    if conversation_id is None:
        raise InvalidArgument(
            "It is not said where this goes: `sourceMessageId` is missing",
            argument="sourceMessageId",
            hint="Give the message_id of the request you answer. For another target give conversationId (and to).",
        )
    if to is None:
        known = conversations.conversation(tx, agent_id, conversation_id)
        if known is None or known.last_sender is None:
            raise InvalidArgument(
                f"Nobody has written in conversation {conversation_id} yet",
                argument="conversationId",
                hint="Use the conversation_id of a request, or give `to` as well.",
            )
        to = group_target(conversation_id) if known.is_group else known.last_sender
    device = None
    if to != group_target(conversation_id):
        device = conversations.last_device(tx, agent_id, conversation_id, to)
    return Target(conversation_id, to, device, reply_to_message_id, None)
