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
and is, when a state is loaded. One piece more, `owner`, says whose state it is: the runtime loads another agent's
without a word.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from . import _protobuf, _records
from ._records import u32, u32_bytes
from .errors import StateError

HEAD = "head"
OWNER = "owner"

_MAGIC = b"\x04\x00\x00\x00AGSP\x01\x00\x00\x00"
_IDS = struct.Struct("<II")
_LIST = struct.Struct("<III")

Pieces = dict[str, bytes]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a section: its bytes in the snapshot, and the pieces it is stored as (several for base keys)."""

    raw: bytes = field(repr=False)
    pieces: Pieces = field(repr=False)


@dataclass(frozen=True)
class Section:
    raw: bytes = field(repr=False)
    entries: tuple[Entry, ...] = field(repr=False)

    @cached_property
    def pieces(self) -> Pieces:
        return {name: value for entry in self.entries for name, value in entry.pieces.items()}

    @cached_property
    def numbers(self) -> frozenset[int]:
        """Of prekeys: their ids."""
        return frozenset(int(name.partition("/")[2]) for name in self.pieces)

    @cached_property
    def positions(self) -> dict[str, int]:
        """By the name of an entry's first piece."""
        return {next(iter(entry.pieces), ""): index for index, entry in enumerate(self.entries)}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A parsed snapshot. `sections` by their prefix, in the order of the layout."""

    head: bytes = field(repr=False)
    sections: dict[str, Section]

    def pieces(self, owner: str) -> Pieces:
        out = {OWNER: owner.encode(), HEAD: self.head}
        for section in self.sections.values():
            out.update(section.pieces)
        return out

    def identity_key(self) -> bytes:
        pair, _ = u32_bytes(self.head, len(_MAGIC))
        return _protobuf.single_bytes(pair, 1)

    def registration_id(self) -> int:
        return u32(self.head, len(self.head) - 4)[0]


def difference(now: Snapshot, before: Snapshot) -> tuple[Pieces, frozenset[str]]:
    """The pieces that `now` has new or otherwise, and the names that only `before` has. The heads are the same."""
    changed: Pieces = {}
    gone: set[str] = set()
    for prefix, section in now.sections.items():
        old = before.sections[prefix]
        if section is not old:
            changed.update((name, value) for name, value in section.pieces.items() if old.pieces.get(name) != value)
            gone.update(old.pieces.keys() - section.pieces.keys())
    return changed, frozenset(gone)


def split(data: bytes, previous: Snapshot | None = None) -> Snapshot:
    """Parses a snapshot. What stands as in `previous` is recognised, not parsed: the cost stays near the export's own.

    Raises StateError for anything but the whole layout.
    """
    try:
        if not data.startswith(_MAGIC):
            raise StateError("unknown_layout", "the Signal state has an unknown layout")
        _, at = u32_bytes(data, len(_MAGIC))
        _, at = u32(data, at)
        head = data[:at]
        sections = {}
        for prefix, read in _READERS.items():
            sections[prefix] = _section(data, at, read, previous.sections[prefix] if previous else _NOTHING)
            at += len(sections[prefix].raw)
    except (struct.error, UnicodeDecodeError):
        raise StateError("damaged", "the Signal state ends early or has an unreadable name") from None
    if at != len(data):
        raise StateError("unknown_layout", "the Signal state has more sections than are known")
    return Snapshot(head, sections)


Reader = Callable[[bytes, int], tuple[Entry, int]]

_NOTHING = Section(b"", ())


def _section(data: bytes, start: int, read: Reader, known: Section) -> Section:
    # Sections and entries say their own length: equal bytes in the same place are the same thing.
    if known.raw and data.startswith(known.raw, start):
        return known
    count, at = u32(data, start)
    entries: list[Entry] = []
    expected = 0  # in `known`: the map keeps its order, but entries come, change and go
    for _ in range(count):
        entry = known.entries[expected] if expected < len(known.entries) else None
        if entry is not None and data.startswith(entry.raw, at):
            at += len(entry.raw)
            expected += 1
        else:
            found, at = read(data, at)
            if entry is not None:
                same = found.pieces.keys() == entry.pieces.keys()
                name = next(iter(found.pieces), "")
                expected = expected + 1 if same else known.positions.get(name, expected - 1) + 1
            entry = found
        entries.append(entry)
    return Section(data[start:at], tuple(entries))


def _named(prefix: str) -> Reader:
    def read(data: bytes, start: int) -> tuple[Entry, int]:
        name, at = u32_bytes(data, start)
        device, at = u32(data, at)
        _, at = u32_bytes(data, at)
        raw = data[start:at]
        return Entry(raw, {f"{prefix}/{name.decode()}/{device}": raw}), at

    return read


def _numbered(prefix: str) -> Reader:
    def read(data: bytes, start: int) -> tuple[Entry, int]:
        number, at = u32(data, start)
        _, at = u32_bytes(data, at)
        raw = data[start:at]
        return Entry(raw, {f"{prefix}/{number}": raw}), at

    return read


def _base_keys(data: bytes, start: int) -> tuple[Entry, int]:
    kyber, signed, count = _LIST.unpack_from(data, start)
    at = start + _LIST.size
    pieces = {}
    for _ in range(count):
        key, at = u32_bytes(data, at)
        pieces[f"basekey/{kyber}/{signed}/{key.hex()}"] = _IDS.pack(kyber, signed) + key
    return Entry(data[start:at], pieces), at


_READERS: dict[str, Reader] = {
    "identity": _named("identity"),
    "prekey": _numbered("prekey"),
    "signed": _numbered("signed"),
    "kyber": _numbered("kyber"),
    "basekey": _base_keys,
    "session": _named("session"),
}


def join(pieces: Pieces, owner: str) -> bytes:
    """The snapshot made of these pieces, in any order.

    libsignal ends the process over some malformed snapshots, so everything that can be checked is, before libsignal
    sees it: every piece is what its name says, and every key and record has its form. Raises StateError.
    """
    if pieces.get(OWNER) != owner.encode():
        raise StateError("other_owner", "the Signal state belongs to somebody else")
    found: dict[str, list[bytes]] = {prefix: [] for prefix in _READERS}
    for name, value in pieces.items():
        prefix = name.partition("/")[0]
        if prefix in found:
            found[prefix].append(value)
        elif name not in (OWNER, HEAD):
            raise StateError("unknown_layout", "the Signal state has a piece of an unknown kind")
    out = [pieces.get(HEAD, b"")]
    for prefix, values in found.items():
        entries = _base_key_lists(values) if prefix == "basekey" else values
        out.append(_records.as_u32(len(entries)))
        out.extend(entries)
    data = b"".join(out)
    snapshot = split(data)
    if snapshot.pieces(owner) != pieces:
        raise StateError("damaged", "a piece of the Signal state is not what its name says")
    _records.check_head(snapshot.head[len(_MAGIC) :])
    for prefix, values in found.items():
        for value in values:
            _records.check(prefix, value)
    return data


def _base_key_lists(values: list[bytes]) -> list[bytes]:
    lists: dict[bytes, list[bytes]] = {}
    for value in values:
        lists.setdefault(value[: _IDS.size], []).append(value[_IDS.size :])
    return [
        ids + _records.as_u32(len(keys)) + b"".join(_records.as_u32(len(key)) + key for key in keys)
        for ids, keys in lists.items()
    ]
