"""What is in a backup: a description in JSON with the store's key, then the store's file as it was.

The length of the description (4 bytes, the highest first) stands before it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from pacerelled import __version__
from pacerelled.errors import BackupDamaged, StoreKeyError
from pacerelled.store.custody import decoded, encoded

FORMAT = 1
_LENGTH = 4
_LONGEST = 1024 * 1024  # bytes of a description: the settings are in it


@dataclass(frozen=True, slots=True)
class Description:
    """`store_size` in bytes; `settings`: the text of config.toml, if there was one."""

    made_at: str
    made_by: str
    store_size: int
    key: bytes = field(repr=False)
    settings: str | None = field(default=None, repr=False)

    def encode(self) -> bytes:
        text = json.dumps(
            {
                "format": FORMAT,
                "made_at": self.made_at,
                "pacerelled": self.made_by,
                "store_size": self.store_size,
                "store_key": encoded(self.key),
                "settings": self.settings,
            }
        ).encode()
        return len(text).to_bytes(_LENGTH) + text


def describe(made_at: str, store_size: int, key: bytes, settings: str | None) -> Description:
    return Description(made_at, __version__, store_size, key, settings)


def parse(pieces: Iterator[bytes]) -> tuple[Description, Iterator[bytes]]:
    """The description, and the store's bytes, whose number is checked at their end. Raises BackupDamaged."""
    start = bytearray()
    for piece in pieces:
        start += piece
        size = int.from_bytes(start[:_LENGTH])
        if len(start) >= _LENGTH and (size > _LONGEST or len(start) >= _LENGTH + size):
            break
    text = bytes(start[_LENGTH : _LENGTH + size]) if start else b""
    try:
        fields: dict[str, Any] = json.loads(text)
        if fields["format"] != FORMAT:
            raise BackupDamaged("The backup's content is of a newer kind", hint="Upgrade pacerelled.")
        found = Description(
            str(fields["made_at"]),
            str(fields["pacerelled"]),
            int(fields["store_size"]),
            decoded(str(fields["store_key"]).encode(), "the backup"),
            fields["settings"],
        )
    except (ValueError, KeyError, TypeError, StoreKeyError) as error:
        raise _unreadable() from error
    return found, _exactly(found.store_size, bytes(start[_LENGTH + size :]), pieces)


def _exactly(size: int, first: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    got = len(first)
    yield first
    for piece in pieces:
        got += len(piece)
        yield piece
    if got != size:
        raise _unreadable()


def _unreadable() -> BackupDamaged:
    return BackupDamaged("The backup's content cannot be read", hint="It was made by something else; choose another.")
