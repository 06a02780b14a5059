"""`store.json`, which lies beside the store: where its key is kept, and by what the key is known.

So a wrong key is told apart from a damaged file, and a new key is never made for a store that exists. While the key is
being changed (`rekey`) it names both.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pacerelled.errors import StoreCorrupt, StoreUnavailable
from pacerelled.files import make_private, write_private

MEMO = "store.json"


@dataclass(frozen=True, slots=True)
class KeyNote:
    """Where a key is kept ("credential", "keyring" or "file"), and a check value that says nothing about the key."""

    source: str
    salt: str
    check: str

    @classmethod
    def of(cls, raw: bytes, source: str) -> KeyNote:
        salt = secrets.token_hex(16)
        return cls(source, salt, _check_value(raw, salt))

    def fits(self, raw: bytes) -> bool:
        return _check_value(raw, self.salt) == self.check

    def as_json(self) -> dict[str, Any]:
        return {"store_id": self.salt, "key_source": self.source, "key_check": self.check}

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> KeyNote:
        note = cls(fields["key_source"], fields["store_id"], fields["key_check"])
        if not all(isinstance(value, str) for value in (note.source, note.salt, note.check)):
            raise ValueError(MEMO)
        return note


@dataclass(frozen=True, slots=True)
class Memo:
    """`created`: the store has been made, so that its absence is a loss. `next`: the key that it is changed to."""

    key: KeyNote
    created: bool
    next: KeyNote | None = None


def read_memo(state: Path) -> Memo | None:
    """None if there is none. Raises StoreCorrupt."""
    path = state / MEMO
    try:
        fields = json.loads(path.read_bytes())
        following = fields.get("next")
        memo = Memo(
            KeyNote.from_json(fields), bool(fields.get("created")), KeyNote.from_json(following) if following else None
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreCorrupt(
            f"{path} is damaged or cannot be read",
            hint="Restore it from a backup together with store.db and store.key. Nothing was changed.",
        ) from error
    make_private(path)
    return memo


def write_memo(state: Path, memo: Memo) -> None:
    """Raises StoreUnavailable."""
    fields = {"version": 1, **memo.key.as_json(), "created": memo.created}
    if memo.next is not None:
        fields["next"] = memo.next.as_json()
    write(state / MEMO, json.dumps(fields).encode() + b"\n")


def write(path: Path, data: bytes) -> None:
    """A private file, whole or not at all. Raises StoreUnavailable."""
    try:
        write_private(path, data)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be written: {error.strerror}", hint="Free some disk space, or make its folder writable."
        ) from error


def _check_value(key: bytes, salt: str) -> str:
    """Tells a wrong key from a damaged store; says nothing about a random 256-bit key."""
    return hashlib.sha256(b"pacerelled store key check\0" + salt.encode() + b"\0" + key).hexdigest()[:32]
