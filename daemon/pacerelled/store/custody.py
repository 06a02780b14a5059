"""Where secrets live: the store's key and the agents' tokens.

The store key is looked for in systemd's credentials, then the OS keyring, then `store.key` (0600). `store.json`
(`memo`) remembers which one it was. Tokens are never written to a file of ours: credentials, environment, keyring, or
memory.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pacerelled.errors import StoreKeyError
from pacerelled.files import make_private

from .keyring import Keyring
from .memo import KeyNote, Memo, read_memo, write, write_memo

KEY_BYTES = 32
CREDENTIAL = "pacerelled-store-key"
TOKEN_CREDENTIAL = "pacerelled-token-"

TokenSource = Literal["credential", "environment", "keyring", "host", "given"]
"""Where an agent's token came from: `host`, its settings; `given`, by a person, and kept in memory only."""


@dataclass(frozen=True, slots=True)
class StoreKey:
    """A key and where it came from. `new`: made now, the store does not exist yet."""

    raw: bytes = field(repr=False)
    source: str  # "credential" | "keyring" | "file"
    new: bool = False


class Places:
    """Where the key of one store can be. Each place that we write to has a second for the key that is to follow."""

    def __init__(self, key_file: Path, keyring: Keyring, env: Mapping[str, str]) -> None:
        self.key_file = key_file
        self.next_file = key_file.with_name(f"{key_file.name}.next")
        self.entry = entry_of(key_file.parent)
        self.next_entry = f"{self.entry}:next"
        self.keyring = keyring
        directory = env.get("CREDENTIALS_DIRECTORY")
        self._credential = Path(directory) / CREDENTIAL if directory else None

    async def find(self, source: str, *, following: bool = False) -> bytes | None:
        """The key there. Raises StoreKeyError: there is something that cannot be read or is no key."""
        if source == "credential" and self._credential is not None and self._credential.is_file():
            return decoded(_read(self._credential), str(self._credential))
        if source == "keyring":
            text = await self.keyring.get(self.next_entry if following else self.entry)
            return decoded(text.encode(), "the OS keyring") if text else None
        path = self.next_file if following else self.key_file
        if source == "file" and path.exists():
            raw = decoded(_read(path), str(path))
            make_private(path)
            return raw
        return None

    async def put(self, raw: bytes, *, following: bool = False) -> str:
        """Keeps a key in the keyring or, if that does not take it, in the file. Raises StoreUnavailable."""
        if await self.put_in_keyring(raw, following=following):
            return "keyring"
        self.put_in_file(raw, following=following)
        return "file"

    async def put_in_keyring(self, raw: bytes, *, following: bool = False) -> bool:
        return await self.keyring.set(self.next_entry if following else self.entry, encoded(raw))

    def put_in_file(self, raw: bytes, *, following: bool = False) -> None:
        write(self.next_file if following else self.key_file, encoded(raw).encode() + b"\n")

    async def remove(self, source: str, *, following: bool = False) -> None:
        if source == "keyring":
            await self.keyring.delete(self.next_entry if following else self.entry)
        elif source == "file":
            (self.next_file if following else self.key_file).unlink(missing_ok=True)

    def describe(self, source: str) -> str:
        return {
            "credential": f"the credential {CREDENTIAL}",
            "keyring": "the OS keyring",
            "file": str(self.key_file),
        }.get(source, "its place")


def entry_of(state: Path) -> str:
    """The keyring's name for the key of the store in this folder."""
    return f"store-key:{state}"


async def obtain_store_key(
    state: Path, key_file: Path, store: Path, *, keyring: Keyring, env: Mapping[str, str]
) -> StoreKey:
    """The key of the store in `state`, or a new one if there is no store yet.

    Raises StoreKeyError (key missing, unreadable, or not the store's), StoreCorrupt (`store.json` unreadable) and
    StoreUnavailable (a new key cannot be written).
    """
    memo = read_memo(state)
    places = Places(key_file, keyring, env)
    if memo is None and not store.exists():
        key = await _find_any(places)
        if key is None:
            raw = secrets.token_bytes(KEY_BYTES)
            key = StoreKey(raw, await places.put(raw))
        write_memo(state, Memo(KeyNote.of(key.raw, key.source), created=False))
        return StoreKey(key.raw, key.source, new=True)
    if memo is None:
        key = await _find_any(places)
        if key is None:
            raise _missing(store, "any of its places", keyring)
        return key
    raw_or_none = await places.find(memo.key.source)
    if raw_or_none is None:
        raise _missing(store, places.describe(memo.key.source), keyring if memo.key.source == "keyring" else None)
    if not memo.key.fits(raw_or_none):
        raise StoreKeyError(
            f"The key in {places.describe(memo.key.source)} is not the key of the store {store}",
            hint="store.db, store.json and store.key belong together: restore them together. Nothing was changed.",
        )
    return StoreKey(raw_or_none, memo.key.source, new=not memo.created)


def key_source(state: Path) -> str | None:
    """Where the key of the store in `state` is kept; None if that is not noted. Raises StoreCorrupt."""
    memo = read_memo(state)
    return memo.key.source if memo else None


def store_created(state: Path, key: StoreKey) -> None:
    """Notes that the file exists now: from here on a missing store.db is a loss, not a beginning.

    A lost `store.json` is made again. Raises StoreUnavailable.
    """
    memo = read_memo(state)
    if memo is None or not memo.created:
        write_memo(state, Memo(KeyNote.of(key.raw, key.source), created=True))


async def token_from_outside(
    agent_id: str, *, keyring: Keyring, env: Mapping[str, str]
) -> tuple[str, TokenSource] | None:
    """An agent's token from systemd's credentials, the environment or the keyring, and from which.

    A locked keyring is left alone. Raises StoreKeyError: the credential is there but cannot be read.
    """
    if directory := env.get("CREDENTIALS_DIRECTORY"):
        path = Path(directory) / f"{TOKEN_CREDENTIAL}{agent_id}"
        if path.is_file() and (token := _read(path).decode("utf-8", "replace").strip()):
            return token, "credential"
    if env.get("PACERELLE_AGENT_TOKEN") and env.get("PACERELLE_AGENT_ID") == agent_id:
        return env["PACERELLE_AGENT_TOKEN"], "environment"
    kept = await keyring.get(token_entry(agent_id), prompt=False)
    return (kept, "keyring") if kept else None


def token_entry(agent_id: str) -> str:
    """The keyring's name for an agent's token."""
    return f"token:{agent_id}"


async def _find_any(places: Places) -> StoreKey | None:
    for source in ("credential", "keyring", "file"):
        if (raw := await places.find(source)) is not None:
            return StoreKey(raw, source)
    return None


def _missing(store: Path, where: str, keyring: Keyring | None) -> StoreKeyError:
    """`keyring`, if its state can be the reason."""
    state = f": {keyring}" if keyring is not None and keyring.state != "ready" else ""
    remedy = keyring.hint if state and keyring is not None else ""
    return StoreKeyError(
        f"The key of the store {store} is not in {where}{state}",
        hint=f"{remedy or 'Put the key back from your backup.'} A new key would not open this store.",
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreKeyError(f"{path} cannot be read: {error.strerror}", hint="Mend its permissions.") from error


def encoded(raw: bytes) -> str:
    """A key as it is written where keys are kept."""
    return base64.b64encode(raw).decode()


def decoded(text: bytes, where: str) -> bytes:
    """Raises StoreKeyError."""
    try:
        raw = base64.b64decode(text.strip(), validate=True)
    except ValueError:
        raw = b""
    if len(raw) != KEY_BYTES:
        raise StoreKeyError(
            f"What is in {where} is no store key (32 bytes in base64)",
            hint="Restore it from your backup. Nothing was changed.",
        )
    return raw
