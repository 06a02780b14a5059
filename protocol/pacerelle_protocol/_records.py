"""The forms of keys and records in a Signal state, checked before libsignal gets to see them.

Records are libsignal's protocol buffers. Lengths and type bytes: X25519 keys 0x05 and 32 bytes, Kyber-1024 keys 0x08
and 1568 (public) or 3168 (private) bytes.
"""

from __future__ import annotations

import struct

from . import _protobuf
from .errors import StateError

PUBLIC_KEY_BYTES = 33
PRIVATE_KEY_BYTES = 32
SIGNATURE_BYTES = 64
KYBER_PUBLIC_BYTES = 1569
KYBER_PRIVATE_BYTES = 3169

_U32 = struct.Struct("<I")


def u32(data: bytes, at: int) -> tuple[int, int]:
    """The number at `at`, and where it ends. Raises struct.error past the end."""
    return int(_U32.unpack_from(data, at)[0]), at + 4


def u32_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """The bytes at `at` whose length stands before them, and where they end. Raises struct.error past the end."""
    length, start = u32(data, at)
    end = start + length
    if end > len(data):
        raise struct.error("ends early")
    return data[start:end], end


def as_u32(number: int) -> bytes:
    return _U32.pack(number)


def is_public_key(key: bytes) -> bool:
    return len(key) == PUBLIC_KEY_BYTES and key[0] == 5


def identity_in(entry: bytes) -> bytes:
    """The public key in an identity's entry."""
    return entry[-PUBLIC_KEY_BYTES:]


def check_head(head: bytes) -> None:
    """`head` without its magic: the identity key pair and the registration id. Raises StateError."""
    try:
        pair, _ = u32_bytes(head, 0)
        public, private = _protobuf.single_bytes(pair, 1), _protobuf.single_bytes(pair, 2)
    except (struct.error, _protobuf.ProtobufError):
        raise _damaged() from None
    if not (is_public_key(public) and len(private) == PRIVATE_KEY_BYTES):
        raise _damaged()


def check(kind: str, value: bytes) -> None:
    """`value` is a piece of that kind whose outer form is known to be right. Raises StateError."""
    try:
        right = _is_right(kind, value)
    except _protobuf.ProtobufError:
        right = False
    if not right:
        raise _damaged()


def _is_right(kind: str, value: bytes) -> bool:
    if kind == "basekey":
        return is_public_key(value[8:])
    if kind in ("identity", "session"):
        _, at = u32_bytes(value, 0)
        record, _ = u32_bytes(value, at + 4)
        return is_public_key(record) if kind == "identity" else _is_session(record)
    number, at = u32(value, 0)
    record, _ = u32_bytes(value, at)
    return _is_key_record(record, number, kyber=kind == "kyber", signed=kind != "prekey")


def _is_key_record(record: bytes, number: int, *, kyber: bool, signed: bool) -> bool:
    public, private = _protobuf.single_bytes(record, 2), _protobuf.single_bytes(record, 3)
    if kyber:
        right = (
            len(public) == KYBER_PUBLIC_BYTES and len(private) == KYBER_PRIVATE_BYTES and public[0] == private[0] == 8
        )
    else:
        right = is_public_key(public) and len(private) == PRIVATE_KEY_BYTES
    if signed:
        right = right and len(_protobuf.single_bytes(record, 4)) == SIGNATURE_BYTES
    # Protocol buffers leave out a zero.
    return right and [value for field, value in _protobuf.fields(record) if field == 1] == [number] * bool(number)


def _is_session(record: bytes) -> bool:
    """A current state (1) and archived ones (2)."""
    for field, state in _protobuf.fields(record):
        if field not in (1, 2) or not isinstance(state, bytes):
            return False
        _protobuf.fields(state)
    return True


def _damaged() -> StateError:
    return StateError("damaged", "the Signal state has a key or record of the wrong form")
