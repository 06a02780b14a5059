"""Group messages: one AES-256-GCM key per conversation and epoch, carried to each member as a 1:1 Signal message."""

from __future__ import annotations

import secrets
import uuid
from dataclasses import dataclass, field
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from . import _wire
from .errors import DecryptError, LocalProtocolError, PayloadError, RemoteProtocolError

KEY_BYTES = 32
IV_BYTES = 12

_ALGORITHM = "AES-256-GCM"
_MESSAGE = "pacerelle.group.message"
_SENDER_KEY = "pacerelle.group.sender_key"


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The key of one epoch of a group. Messages are sealed with the highest epoch."""

    conversation_id: str
    key_id: str
    epoch: int
    raw: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class GroupKeyEnvelope:
    """A group key on its way to one member: `envelope` is the framed Signal message around `encode_sender_key`."""

    conversation_id: str
    key_id: str
    epoch: int
    sender_id: str
    sender_device_id: str | None
    envelope: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class GroupHeader:
    """Which key opens a group message."""

    conversation_id: str
    key_id: str
    epoch: int


def new_group_key(conversation_id: str, epoch: int = 1) -> GroupKey:
    """Raises LocalProtocolError (bad_id) for a conversation that no group message can name."""
    if not _wire.is_plain_id(conversation_id):
        raise LocalProtocolError("bad_id", "the conversation's id is empty, too long, or has colons or controls")
    return GroupKey(conversation_id, str(uuid.uuid4()), epoch, secrets.token_bytes(KEY_BYTES))


def encode_sender_key(key: GroupKey) -> str:
    """The plaintext of the Signal message that carries the key."""
    return _wire.dumps({**_tagged(_SENDER_KEY, key), "raw_key_b64": _wire.b64(key.raw)})


def parse_sender_key(plaintext: bytes | str) -> GroupKey:
    """Raises PayloadError (bad_group_key). The caller compares it with the envelope it came in."""
    try:
        header, obj = _header(plaintext, _SENDER_KEY)
        if header.epoch < 1:
            raise _wire.WireError("bad_epoch")
        raw = _wire.unb64(obj.get("raw_key_b64"), KEY_BYTES)
    except _wire.WireError:
        raise PayloadError("bad_group_key") from None
    return GroupKey(header.conversation_id, header.key_id, header.epoch, raw)


def parse_group_key_envelopes(
    obj: Any, conversation_id: str
) -> tuple[list[GroupKeyEnvelope], list[RemoteProtocolError]]:
    """The answer of `GET /agent/group-keys`, in its order: one bad envelope never hides the good ones."""
    if not isinstance(obj, list):
        return [], [PayloadError("bad_group_keys", "the list of group keys is not a list")]
    good: list[GroupKeyEnvelope] = []
    bad: list[RemoteProtocolError] = []
    for index, item in enumerate(obj):
        try:
            good.append(_key_envelope(item, conversation_id))
        except _wire.WireError as error:
            bad.append(PayloadError("bad_group_key_envelope", f"group key envelope {index}: {error.reason}"))
    return good, bad


def _key_envelope(item: Any, conversation_id: str) -> GroupKeyEnvelope:
    if not isinstance(item, dict):
        raise _wire.WireError("not_object")
    if item.get("conversation_id") != conversation_id:
        raise _wire.WireError("other_conversation")
    if not (_wire.is_id(item.get("key_id")) and _wire.is_plain_id(item.get("sender_id"))):
        raise _wire.WireError("bad_id")
    if not _wire.is_count(item.get("epoch"), at_least=1):
        raise _wire.WireError("bad_epoch")
    device = item.get("sender_device_id") or None
    if device is not None and not _wire.is_plain_id(device):
        raise _wire.WireError("bad_id")
    sealed = _wire.unb64(item.get("envelope_b64"))
    return GroupKeyEnvelope(conversation_id, item["key_id"], item["epoch"], item["sender_id"], device, sealed)


def group_header(payload_b64: str) -> GroupHeader:
    """Which key a group message needs. Raises PayloadError (bad_group_message)."""
    return _sealed(payload_b64)[0]


def seal_group(plaintext: bytes, key: GroupKey) -> str:
    """The `payload_b64` of a group message."""
    iv = secrets.token_bytes(IV_BYTES)
    ciphertext = AESGCM(key.raw).encrypt(iv, plaintext, _additional_data(key))
    sealed = {**_tagged(_MESSAGE, key), "iv_b64": _wire.b64(iv), "ciphertext_b64": _wire.b64(ciphertext)}
    return _wire.b64(_wire.dumps(sealed).encode())


def open_group(payload_b64: str, key: GroupKey) -> bytes:
    """Raises PayloadError (bad_group_message) and DecryptError: wrong_key, not_authentic."""
    header, iv, ciphertext = _sealed(payload_b64)
    if header != GroupHeader(key.conversation_id, key.key_id, key.epoch):
        raise DecryptError("wrong_key", "the group message is sealed with another key")
    try:
        return AESGCM(key.raw).decrypt(iv, ciphertext, _additional_data(key))
    except (InvalidTag, ValueError):
        raise DecryptError("not_authentic", "the group message was changed or its key is another one") from None


def _tagged(kind: str, key: GroupKey) -> dict[str, Any]:
    return {
        "type": kind,
        "v": 1,
        "alg": _ALGORITHM,
        "conversation_id": key.conversation_id,
        "key_id": key.key_id,
        "epoch": key.epoch,
    }


def _additional_data(key: GroupKey) -> bytes:
    return f"pacerelle:group-message:v1:{key.conversation_id}:{key.key_id}:{key.epoch}".encode()


def _header(data: bytes | str, kind: str) -> tuple[GroupHeader, dict[str, Any]]:
    obj = _wire.loads_object(data)
    if obj.get("type") != kind or obj.get("v") != 1 or obj.get("alg") != _ALGORITHM:
        raise _wire.WireError("other_type")
    if not (_wire.is_plain_id(obj.get("conversation_id")) and _wire.is_id(obj.get("key_id"))):
        raise _wire.WireError("bad_id")
    if not _wire.is_count(obj.get("epoch")):
        raise _wire.WireError("bad_epoch")
    return GroupHeader(obj["conversation_id"], obj["key_id"], obj["epoch"]), obj


def _sealed(payload_b64: str) -> tuple[GroupHeader, bytes, bytes]:
    try:
        header, obj = _header(_wire.unb64(payload_b64), _MESSAGE)
        return header, _wire.unb64(obj.get("iv_b64"), IV_BYTES), _wire.unb64(obj.get("ciphertext_b64"))
    except _wire.WireError:
        raise PayloadError("bad_group_message") from None
