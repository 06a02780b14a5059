"""What the relay has of it: read from its own database and files, which hold all that it was ever given."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from .errors import DemoFailed

_LEAST = 7  # letters: shorter words could be found by chance


@dataclass(frozen=True, slots=True)
class Seen:
    """One message as the relay keeps it."""

    id: str
    sender: str
    recipient: str
    encrypted: bool
    payload_b64: str

    @property
    def size(self) -> int:
        """Bytes of ciphertext."""
        return len(self.payload_b64) * 3 // 4


def messages(folder: Path) -> list[Seen]:
    """Every message in the relay's database, oldest first. Raises DemoFailed."""
    try:
        uri = f"{(folder / 'relay.db').as_uri()}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True)) as database:
            frames = [json.loads(row[0]) for row in database.execute("SELECT frame FROM messages ORDER BY number")]
    except sqlite3.Error as error:
        raise DemoFailed(f"The relay's database could not be read: {error}") from error
    return [Seen(f["id"], f["from"], f["to"], f.get("encrypted") is True, f["payload_b64"]) for f in frames]


def words(texts: Iterable[str]) -> set[str]:
    """The texts themselves and each word in them that could not be there by chance."""
    found = set(texts)
    for text in texts:
        found.update(re.findall(rf"\w{{{_LEAST},}}", text))
    return found


def found_in(folder: Path, needles: Iterable[str]) -> set[str]:
    """Which needles are anywhere in the folder's files: as they are, as UTF-16, or within base64."""
    haystacks = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return {n for n in needles if any(form in haystack for form in _forms(n) for haystack in haystacks)}


def _forms(needle: str) -> set[bytes]:
    raw = needle.encode()
    return {raw, needle.encode("utf-16-le"), *(_within_base64(raw, offset) for offset in range(3))}


def _within_base64(raw: bytes, offset: int) -> bytes:
    """What `raw` becomes within base64 when `offset` bytes (modulo 3) come before it: only what depends on it alone."""
    coded = base64.b64encode(b"\0" * offset + raw)
    first = (offset * 8 + 5) // 6
    last = (offset + len(raw)) * 8 // 6
    return coded[first:last]
