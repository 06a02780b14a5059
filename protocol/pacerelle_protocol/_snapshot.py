"""The layout of a Signal snapshot, as pieces that can be stored one by one.

What `_SignalStore.export_bytes` gives (seen by experiment; numbers are little-endian u32, `bytes` is a length and that
many bytes)::

    bytes "AGSP", version 1, bytes identity key pair, registration id          → head
    count, (bytes name, device, bytes public key)…                             → identity/<name>/<device>
    count, (id, bytes record)…                              one-time prekeys   → prekey/<id>
    count, (id, bytes record)…                              signed prekeys     → signed/<id>
    count, (id, bytes record)…                              Kyber prekeys      → kyber/<id>
    count, (kyber id, signed id, count, bytes base key…)…   base keys seen     → basekey/<kyber>/<signed>/<key in hex>
    count, (bytes name, device, bytes record)…                                 → session/<name>/<device>

The order inside a section is a hash map's. A list of base keys grows with every session that uses its prekeys, so each
key is its own piece. A piece's value is its entry's bytes, names and ids included: its name can be computed from it,
and is, when a state is loaded.

libsignal ends the process over some malformed snapshots and loads another agent's without a word, so a further piece
says whose the state is, and `join` checks all that it can before libsignal sees anything.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from . import _protobuf
from .errors import StateError

HEAD = "head"
OWNER = "owner"
PUBLIC_KEY_BYTES = 33
PRIVATE_KEY_BYTES = 32
SIGNATURE_BYTES = 64
KYBER_PUBLIC_BYTES = 1569
KYBER_PRIVATE_BYTES = 3169

_MAGIC = b"\x04\x00\x00\x00AGSP\x01\x00\x00\x00"
_u32 = struct.Struct("<I")
_2u32 = struct.Struct("<II")
_3u32 = struct.Struct("<III")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a section: its bytes in the snapshot and the pieces it is stored as (several for base keys)."""

    raw: bytes
    pieces: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A parsed snapshot of the store named `owner`. `sections` in the order of the layout."""

    owner: str
    head: bytes
    sections: tuple[tuple[Entry, ...], ...]

    def pieces(self) -> dict[str, bytes]:
        out = {OWNER: self.owner.encode(), HEAD: self.head}
        for entry in chain.from_iterable(self.sections):
            out.update(entry.pieces)
        return out


Reader = Callable[[bytes, int], tuple[Entry, int]]


def split(data: bytes, owner: str, previous: Snapshot | None = None) -> Snapshot:
    """Parses a snapshot. Entries that stand as in `previous` are recognised, not parsed: that is most of the cost.

    Raises StateError for anything but the whole layout.
    """
    try:
        if not data.startswith(_MAGIC):
            raise StateError("unknown_layout", "the Signal state has an unknown layout")
        _, at = _bytes(data, len(_MAGIC))
        at += _u32.size
        head = _cut(data, 0, at)
        sections = []
        for number, (_, read) in enumerate(_SECTIONS):
            known = previous.sections[number] if previous else ()
            entries, at = _section(data, at, read, known)
            sections.append(entries)
    except (struct.error, UnicodeDecodeError):
        raise StateError("damaged", "the Signal state ends early or has an unreadable name") from None
    if at != len(data):
        raise StateError("unknown_layout", "the Signal state has more sections than are known")
    return Snapshot(owner, head, tuple(sections))


def _section(data: bytes, at: int, read: Reader, known: tuple[Entry, ...]) -> tuple[tuple[Entry, ...], int]:
    (count,) = _u32.unpack_from(data, at)
    at += _u32.size
    entries: list[Entry] = []
    for index in range(count):
        # An entry says its own length, so equal bytes in the same place are an equal entry.
        if index < len(known) and data.startswith(known[index].raw, at):
            entries.append(known[index])
            at += len(known[index].raw)
        else:
            entry, at = read(data, at)
            entries.append(entry)
    return tuple(entries), at


def _cut(data: bytes, start: int, end: int) -> bytes:
    if end > len(data):
        raise StateError("damaged", "the Signal state ends early")
    return data[start:end]


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _u32.unpack_from(data, at)
    start = at + _u32.size
    return _cut(data, start, start + length), start + length


def _named(prefix: str) -> Reader:
    def read(data: bytes, start: int) -> tuple[Entry, int]:
        name, at = _bytes(data, start)
        (device,) = _u32.unpack_from(data, at)
        _, at = _bytes(data, at + _u32.size)
        raw = data[start:at]
        return Entry(raw, ((f"{prefix}/{name.decode()}/{device}", raw),)), at

    return read


def _numbered(prefix: str) -> Reader:
    def read(data: bytes, start: int) -> tuple[Entry, int]:
        (number,) = _u32.unpack_from(data, start)
        _, at = _bytes(data, start + _u32.size)
        raw = data[start:at]
        return Entry(raw, ((f"{prefix}/{number}", raw),)), at

    return read


def _base_keys(data: bytes, start: int) -> tuple[Entry, int]:
    kyber, signed, count = _3u32.unpack_from(data, start)
    at = start + _3u32.size
    pieces = []
    for _ in range(count):
        key, at = _bytes(data, at)
        pieces.append((f"basekey/{kyber}/{signed}/{key.hex()}", _2u32.pack(kyber, signed) + key))
    return Entry(data[start:at], tuple(pieces)), at


_SECTIONS: tuple[tuple[str, Reader], ...] = (
    ("identity", _named("identity")),
    ("prekey", _numbered("prekey")),
    ("signed", _numbered("signed")),
    ("kyber", _numbered("kyber")),
    ("basekey", _base_keys),
    ("session", _named("session")),
)


def join(pieces: Mapping[str, bytes], owner: str) -> bytes:
    """The snapshot made of these pieces, in any order. Raises StateError unless every piece is what its name says."""
    if pieces.get(OWNER) != owner.encode():
        raise StateError("other_owner", "the Signal state belongs to somebody else")
    head = pieces.get(HEAD)
    if head is None:
        raise StateError("damaged", "the Signal state has no head")
    _check_head(head)
    found: dict[str, list[tuple[str, bytes]]] = {prefix: [] for prefix, _ in _SECTIONS}
    for name, value in pieces.items():
        if name not in (OWNER, HEAD):
            prefix = name.partition("/")[0]
            if prefix not in found:
                raise StateError("unknown_layout", "the Signal state has a piece of an unknown kind")
            found[prefix].append((name, value))
    out = [head]
    for prefix, read in _SECTIONS:
        entries = _join_base_keys(found[prefix]) if read is _base_keys else [value for _, value in found[prefix]]
        out.append(_u32.pack(len(entries)))
        out.extend(entries)
    data = b"".join(out)
    if split(data, owner).pieces() != dict(pieces):
        raise StateError("damaged", "a piece of the Signal state is not what its name says")
    for prefix, _ in _SECTIONS:
        for _, value in found[prefix]:
            _CHECKS[prefix](value)
    return data


def _join_base_keys(pieces: Iterable[tuple[str, bytes]]) -> list[bytes]:
    lists: dict[bytes, list[bytes]] = {}
    for _, value in pieces:
        lists.setdefault(value[: _2u32.size], []).append(value[_2u32.size :])
    return [
        ids + _u32.pack(len(keys)) + b"".join(_u32.pack(len(key)) + key for key in keys) for ids, keys in lists.items()
    ]


def identity_of(head: bytes) -> bytes:
    """The public identity key in a head."""
    pair, _ = _bytes(head, len(_MAGIC))
    return _protobuf.single_bytes(pair, 1)


def registration_of(head: bytes) -> int:
    return int(_u32.unpack_from(head, len(head) - _u32.size)[0])


def public_key_of(identity: bytes) -> bytes:
    """The key in an identity piece."""
    return identity[-PUBLIC_KEY_BYTES:]


def is_public_key(key: bytes) -> bool:
    return len(key) == PUBLIC_KEY_BYTES and key[0] == 5


def _require(condition: bool) -> None:
    if not condition:
        raise StateError("damaged", "the Signal state has a key or record of the wrong form")


def _check_head(head: bytes) -> None:
    _require(head.startswith(_MAGIC))
    try:
        pair, at = _bytes(head, len(_MAGIC))
        _require(at + _u32.size == len(head))
        fields = _protobuf.fields(pair)
    except (struct.error, _protobuf.ProtobufError):
        raise StateError("damaged", "the Signal state has no readable identity key") from None
    _require(is_public_key(_only(fields, 1)) and len(_only(fields, 2)) == PRIVATE_KEY_BYTES)


def _only(fields: list[tuple[int, int | bytes]], number: int) -> bytes:
    found = [value for field, value in fields if field == number]
    if len(found) != 1 or not isinstance(found[0], bytes):
        raise StateError("damaged", "the Signal state has a record without its key")
    return found[0]


def _check_identity(entry: bytes) -> None:
    _, at = _bytes(entry, 0)
    key, _ = _bytes(entry, at + _u32.size)
    _require(is_public_key(key))


def _key_record(public_bytes: int, public_type: int, private_bytes: int, *, signed: bool) -> Callable[[bytes], None]:
    def check(entry: bytes) -> None:
        (number,) = _u32.unpack_from(entry)
        record, _ = _bytes(entry, _u32.size)
        try:
            fields = _protobuf.fields(record)
        except _protobuf.ProtobufError:
            raise StateError("damaged", "the Signal state has an unreadable prekey") from None
        # Protocol buffers leave out a zero.
        _require([value for field, value in fields if field == 1] == ([number] if number else []))
        public = _only(fields, 2)
        _require(len(public) == public_bytes and public[0] == public_type)
        _require(len(_only(fields, 3)) == private_bytes)
        if signed:
            _require(len(_only(fields, 4)) == SIGNATURE_BYTES)

    return check


def _check_base_key(value: bytes) -> None:
    _require(is_public_key(value[_2u32.size :]))


def _check_session(entry: bytes) -> None:
    _, at = _bytes(entry, 0)
    record, _ = _bytes(entry, at + _u32.size)
    try:
        for number, state in _protobuf.fields(record):
            _require(number in (1, 2) and isinstance(state, bytes))
            if isinstance(state, bytes):
                _protobuf.fields(state)
    except _protobuf.ProtobufError:
        raise StateError("damaged", "the Signal state has an unreadable session") from None


_CHECKS: dict[str, Callable[[bytes], None]] = {
    "identity": _check_identity,
    "prekey": _key_record(PUBLIC_KEY_BYTES, 5, PRIVATE_KEY_BYTES, signed=False),
    "signed": _key_record(PUBLIC_KEY_BYTES, 5, PRIVATE_KEY_BYTES, signed=True),
    "kyber": _key_record(KYBER_PUBLIC_BYTES, 8, KYBER_PRIVATE_BYTES, signed=True),
    "basekey": _check_base_key,
    "session": _check_session,
}
