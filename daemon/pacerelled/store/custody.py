"""Where secrets live: the store's key and the agents' tokens.

The store key is looked for in systemd's credentials, then the OS keyring, then `store.key` (0600). `store.json`
beside the store remembers which one it was and a check value of the key, so that a wrong key is told apart from a
damaged file and a new key is never made for a store that exists. Tokens are never written to a file of ours:
credentials, keyring, environment, or memory.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import secrets
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pacerelled.errors import StoreCorrupt, StoreKeyError, StoreUnavailable
from pacerelled.files import make_private, write_private

log = logging.getLogger(__name__)

KEY_BYTES = 32
MEMO = "store.json"
CREDENTIAL = "pacerelled-store-key"
TOKEN_CREDENTIAL = "pacerelled-token-"
SERVICE = "pacerelled"
KEYRING_TIMEOUT = 5.0  # seconds; a locked keyring may show a prompt nobody sees


@dataclass(frozen=True, slots=True)
class StoreKey:
    """A key and where it came from. `new`: made now, the store does not exist yet."""

    raw: bytes
    source: str  # "credential" | "keyring" | "file"
    new: bool = False

    def __repr__(self) -> str:
        return f"StoreKey(source={self.source!r}, new={self.new})"


class Keyring:
    """The OS keyring behind a thread and a timeout: absent, locked and hanging all mean None here."""

    def __init__(self, enabled: bool, env: Mapping[str, str]) -> None:
        # Without a session bus there is no Secret Service, and looking for one can hang.
        self.enabled = enabled and (sys.platform == "darwin" or bool(env.get("DBUS_SESSION_BUS_ADDRESS")))

    async def get(self, name: str) -> str | None:
        value = await self._call(lambda keyring: keyring.get_password(SERVICE, name))
        return value if isinstance(value, str) else None

    async def set(self, name: str, value: str) -> bool:
        def save(keyring: Any) -> bool:
            keyring.set_password(SERVICE, name, value)
            return bool(keyring.get_password(SERVICE, name) == value)

        return bool(await self._call(save))

    async def delete(self, name: str) -> None:
        await self._call(lambda keyring: keyring.delete_password(SERVICE, name))

    async def _call(self, fn: Callable[[Any], object]) -> object | None:
        if not self.enabled:
            return None
        loop = asyncio.get_running_loop()
        done: asyncio.Future[object | None] = loop.create_future()

        def deliver(value: object | None) -> None:
            if not done.done():
                done.set_result(value)

        def work() -> None:
            value: object | None = None
            try:
                import keyring

                if getattr(keyring.get_keyring(), "priority", 0) > 0:
                    value = fn(keyring)
            except Exception as error:
                log.warning("The OS keyring refused: %s", type(error).__name__)
            try:
                loop.call_soon_threadsafe(deliver, value)
            except RuntimeError:  # the loop has ended meanwhile
                return

        # A daemon thread: one that hangs in the keyring must not keep the process alive.
        threading.Thread(target=work, name="keyring", daemon=True).start()
        try:
            return await asyncio.wait_for(done, KEYRING_TIMEOUT)
        except TimeoutError:
            log.warning("The OS keyring did not answer within %.0f s; it is not used", KEYRING_TIMEOUT)
            self.enabled = False
            return None


async def obtain_store_key(
    state: Path, key_file: Path, store: Path, *, keyring: Keyring, env: Mapping[str, str]
) -> StoreKey:
    """The key of the store in `state`, or a new one if there is no store yet.

    Raises StoreKeyError (key missing, unreadable, or not the store's), StoreCorrupt (`store.json` unreadable) and
    StoreUnavailable (a new key cannot be written).
    """
    memo = _read_memo(state)
    if memo is None and not store.exists():
        key = await _find(key_file, keyring, env) or await _make(key_file, keyring)
        _write_memo(state, key, created=False)
        return StoreKey(key.raw, key.source, new=True)
    found = await _find(key_file, keyring, env, source=memo["key_source"] if memo else None)
    if found is None:
        where = {
            "credential": f"the credential {CREDENTIAL}",
            "keyring": "the OS keyring",
            "file": str(key_file),
        }
        place = where.get(memo["key_source"], "its place") if memo else "any of its places"
        raise StoreKeyError(
            f"The key of the store {store} is not in {place}",
            hint="Unlock the keyring, or put the key back from your backup. A new key would not open this store.",
        )
    if memo and _check_value(found.raw, memo["store_id"]) != memo["key_check"]:
        raise StoreKeyError(
            f"The key in {found.source} is not the key of the store {store}",
            hint="store.db, store.json and store.key belong together: restore them together. Nothing was changed.",
        )
    return StoreKey(found.raw, found.source, new=memo is not None and not memo.get("created"))


def key_source(state: Path) -> str | None:
    """Where the key of the store in `state` is kept; None if that is not noted. Raises StoreCorrupt."""
    memo = _read_memo(state)
    return memo["key_source"] if memo else None


def store_created(state: Path, key: StoreKey) -> None:
    """Notes that the file exists now: from here on a missing store.db is a loss, not a beginning.

    A lost `store.json` is made again. Raises StoreUnavailable.
    """
    memo = _read_memo(state)
    if memo is None or not memo.get("created"):
        _write_memo(state, key, created=True)


async def token_from_outside(agent_id: str, *, keyring: Keyring, env: Mapping[str, str]) -> str | None:
    """An agent's token from systemd's credentials, the environment or the keyring.

    Raises StoreKeyError: the credential is there but cannot be read.
    """
    if directory := env.get("CREDENTIALS_DIRECTORY"):
        path = Path(directory) / f"{TOKEN_CREDENTIAL}{agent_id}"
        if path.is_file():
            return _read(path).decode("utf-8", "replace").strip() or None
    if env.get("PACERELLE_AGENT_TOKEN") and env.get("PACERELLE_AGENT_ID") == agent_id:
        return env["PACERELLE_AGENT_TOKEN"]
    return await keyring.get(f"token:{agent_id}")


async def _find(
    key_file: Path, keyring: Keyring, env: Mapping[str, str], *, source: str | None = None
) -> StoreKey | None:
    if source in (None, "credential") and (directory := env.get("CREDENTIALS_DIRECTORY")):
        path = Path(directory) / CREDENTIAL
        if path.is_file():
            return StoreKey(_decoded(_read(path), str(path)), "credential")
    if source in (None, "keyring") and (text := await keyring.get(f"store-key:{key_file.parent}")):
        return StoreKey(_decoded(text.encode(), "the OS keyring"), "keyring")
    if source in (None, "file") and key_file.exists():
        key = StoreKey(_decoded(_read(key_file), str(key_file)), "file")
        make_private(key_file)
        return key
    return None


async def _make(key_file: Path, keyring: Keyring) -> StoreKey:
    raw = secrets.token_bytes(KEY_BYTES)
    text = base64.b64encode(raw)
    if await keyring.set(f"store-key:{key_file.parent}", text.decode()):
        return StoreKey(raw, "keyring")
    _write(key_file, text + b"\n")
    return StoreKey(raw, "file")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StoreKeyError(f"{path} cannot be read: {error.strerror}", hint="Mend its permissions.") from error


def _decoded(text: bytes, where: str) -> bytes:
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


def _check_value(key: bytes, store_id: str) -> str:
    """Tells a wrong key from a damaged store; says nothing about a random 256-bit key."""
    return hashlib.sha256(b"pacerelled store key check\0" + store_id.encode() + b"\0" + key).hexdigest()[:32]


def _read_memo(state: Path) -> dict[str, Any] | None:
    path = state / MEMO
    try:
        text = path.read_bytes()
        memo = json.loads(text)
        if not all(isinstance(memo[k], str) for k in ("store_id", "key_source", "key_check")):
            raise ValueError(MEMO)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreCorrupt(
            f"{path} is damaged or cannot be read",
            hint="Restore it from a backup together with store.db and store.key. Nothing was changed.",
        ) from error
    make_private(path)
    result: dict[str, Any] = memo
    return result


def _write_memo(state: Path, key: StoreKey, *, created: bool) -> None:
    store_id = secrets.token_hex(16)
    memo = {
        "version": 1,
        "store_id": store_id,
        "key_source": key.source,
        "key_check": _check_value(key.raw, store_id),
        "created": created,
    }
    _write(state / MEMO, json.dumps(memo).encode() + b"\n")


def _write(path: Path, data: bytes) -> None:
    try:
        write_private(path, data)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be written: {error.strerror}", hint="Free some disk space, or make its folder writable."
        ) from error
