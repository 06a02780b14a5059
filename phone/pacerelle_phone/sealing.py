"""Plaintext to envelope and back, with this device's sessions and keys. Called inside a transaction of the store.

History-v1. A conversation has one history key for ever, and an agent refuses a second one. The devices of a person have
no secret channel between them, so only the device that made a conversation makes its key and delivers it, inside every
message until a history record from the agent opens with it, which proves that the agent has it. Other devices send and
receive without records.
"""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from pacerelle_protocol.envelope import IncomingMessage, PublicAttachment, message_frame
from pacerelle_protocol.errors import DecryptError, GroupKeyMissing, PayloadError, ProtocolError
from pacerelle_protocol.groups import GroupKey, encode_sender_key, group_header, open_group, seal_group
from pacerelle_protocol.history import HistoryKey, open_record, seal_record
from pacerelle_protocol.payload import Opened, encode_delivery, open_plaintext, pack_b64, unpack_b64
from pacerelle_protocol.signal import PreKeyBundle

from .core import Core
from .store import session_label

HISTORY_FEATURE = "history-v1"


@dataclass(frozen=True, slots=True)
class Draft:
    """What an outgoing message says and where it goes. `agent_id` is empty for a group."""

    id: str
    conversation_id: str
    agent_id: str
    body: str = field(repr=False)
    attachments: Sequence[PublicAttachment] = ()
    reply_to: str | None = None


def has_session(core: Core, agent_id: str, conversation_id: str) -> bool:
    return core.store.signal.has_session(session_label(agent_id, conversation_id))


def start_session(core: Core, agent_id: str, conversation_id: str, bundle: PreKeyBundle) -> None:
    """Raises ProtocolError for a bundle that libsignal refuses. The caller has compared its identity key."""
    core.store.signal.process_bundle(session_label(agent_id, conversation_id), bundle)


def forget_session(core: Core, agent_id: str, conversation_id: str) -> None:
    """The session and the identity key that was accepted with it: what libsignal itself never replaces."""
    label = session_label(agent_id, conversation_id)
    signal = core.store.signal
    signal.drop(name for name in signal.pieces() if name.startswith((f"session/{label}/", f"identity/{label}/")))


def seal(core: Core, draft: Draft) -> str:
    """The body of `POST /messages`. Raises ProtocolError (no session, too large, no group key)."""
    if draft.agent_id:
        record, plaintext = _archive(core, draft)
        sealed = core.store.signal.encrypt(session_label(draft.agent_id, draft.conversation_id), plaintext.encode())
        return _envelope(draft, draft.agent_id, pack_b64(sealed), record)
    key = core.peers.newest_group_key(draft.conversation_id)
    if key is None:
        raise GroupKeyMissing(draft.conversation_id, "", 0)
    return _envelope(draft, f"group:{draft.conversation_id}", seal_group(draft.body.encode(), key), None)


def _envelope(draft: Draft, to: str, payload_b64: str, record: dict[str, object] | None) -> str:
    frame = message_frame(
        id=draft.id,
        conversation_id=draft.conversation_id,
        to=to,
        payload_b64=payload_b64,
        reply_to_message_id=draft.reply_to,
        attachments=draft.attachments,
        history_record=record,
    )
    return json.dumps({name: value for name, value in json.loads(frame).items() if name != "type"})


def _archive(core: Core, draft: Draft) -> tuple[dict[str, object] | None, str]:
    """The history record, if there is a key, and the plaintext, with the key in it where the agent still needs that."""
    key, confirmed = core.peers.history_key(draft.conversation_id)
    if key is None:
        conversation, agent = core.peers.conversation(draft.conversation_id), core.peers.agent(draft.agent_id)
        if conversation is None or agent is None or not (conversation.made_here and agent.history):
            return None, draft.body
        key = HistoryKey(str(uuid.uuid4()), 1, secrets.token_bytes(32))
        core.peers.set_history_key(draft.conversation_id, key)
    record = seal_record(
        draft.body,
        key,
        conversation_id=draft.conversation_id,
        message_id=draft.id,
        sender_id=core.device.user_id,
        sender_type="human",
    )
    return record, draft.body if confirmed else encode_delivery(draft.body, key)


def seal_group_key(core: Core, key: GroupKey, agent_ids: Sequence[str]) -> str:
    """The body of `POST /group-keys`: the key for each agent, over the sessions of the group's conversation."""
    envelopes = [
        {
            "recipient_id": agent_id,
            "key_id": key.key_id,
            "epoch": key.epoch,
            "envelope_b64": pack_b64(
                core.store.signal.encrypt(session_label(agent_id, key.conversation_id), encode_sender_key(key).encode())
            ),
        }
        for agent_id in agent_ids
    ]
    return json.dumps({"conversation_id": key.conversation_id, "envelopes": envelopes})


def open_message(core: Core, message: IncomingMessage) -> tuple[Opened, bool]:
    """The content, and whether the message's history record holds the same. Raises ProtocolError."""
    if not message.encrypted:
        raise PayloadError("not_encrypted", "the message was not encrypted")
    if message.is_group:
        header = group_header(message.payload_b64)
        key = core.peers.group_key(message.conversation_id, header.key_id, header.epoch)
        if key is None:
            raise GroupKeyMissing(message.conversation_id, header.key_id, header.epoch)
        plaintext = open_group(message.payload_b64, key)
    else:
        label = session_label(message.sender, message.conversation_id)
        if not core.store.signal.has_session(label):
            raise DecryptError("no_session", "this device has no session with the agent in this conversation")
        plaintext = core.store.signal.decrypt(label, unpack_b64(message.payload_b64))
    opened = open_plaintext(plaintext, message.attachments)
    return opened, _check_record(core, message, opened.body)


def _check_record(core: Core, message: IncomingMessage, body: str) -> bool:
    key, confirmed = core.peers.history_key(message.conversation_id)
    if key is None or message.history_record is None:
        return False
    try:
        archived = open_record(
            message.history_record,
            key,
            conversation_id=message.conversation_id,
            message_id=message.id,
            sender_id=message.sender,
            sender_type="agent",
        )
    except ProtocolError:
        return False
    if archived == body and not confirmed:
        core.peers.confirm_history(message.conversation_id, True)
    return archived == body
