"""The store's file: whether it is whole, how large it is, and whether the disk has room."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from pacerelle_protocol.local import LocalPaths
from pacerelled.errors import PacerelledError, StoreCorrupt
from pacerelled.store.custody import key_source
from pacerelled.store.database import Store, Tx
from pacerelled.store.driver import Connection
from pacerelled.store.keyring import Keyring
from pacerelled.store.opening import RESTORE_HINT, beside
from pacerelled.store.opening import examine as look_into
from pacerelled.store.rekey import store_key

from .finding import Finding, failed

LOG_LIMIT = 64 * 1024 * 1024  # bytes: far above what the log has before it is folded in
ROOM = 100 * 1024 * 1024  # bytes; a larger store needs room for a copy of itself


async def open_store(store: Store) -> list[Finding]:
    """Of a store that is in use."""

    def check(tx: Tx) -> bool:
        return all(row[0] == "ok" for row in tx.all("PRAGMA quick_check(1)"))

    try:
        whole = await store.run(check)
    except PacerelledError as error:
        return [failed("store", error), *sizes(store.path)]
    if not whole:
        return [failed("store", StoreCorrupt("The store is damaged", hint=RESTORE_HINT)), *sizes(store.path)]
    return [Finding("store", "ok", f"whole, {_size(_bytes(store.path))}"), *sizes(store.path)]


async def closed_store(paths: LocalPaths, keyring: Keyring, env: Mapping[str, str]) -> tuple[list[Finding], list[str]]:
    """Of a store that no daemon uses, and the addresses of its agents' relays. Nothing is changed."""
    relays: list[str] = []

    def note_relays(conn: Connection) -> None:
        relays.extend(row[0] for row in conn.execute("SELECT DISTINCT base_url FROM agents"))

    if not paths.store.exists() and key_source(paths.state) is None:
        return [Finding("store", "note", "there is none yet", "The daemon makes it when it starts.")], relays
    try:
        key = await store_key(paths, keyring=keyring, env=env)
        await asyncio.to_thread(look_into, paths.store, key.raw, new=False, also=note_relays)
    except PacerelledError as error:
        return [failed("store", error), *sizes(paths.store)], relays
    return [Finding("store", "ok", f"whole, {_size(_bytes(paths.store))}"), *sizes(paths.store)], relays


def sizes(store: Path) -> list[Finding]:
    """The log, and the room on the disk."""
    log, size = _bytes(beside(store, "-wal")), _bytes(store)
    try:
        free = shutil.disk_usage(store.parent).free
    except OSError as error:
        return [Finding("disk", "skipped", f"{store.parent}: {error.strerror}")]
    found = [Finding("store log", "ok", _size(log))]
    if log > LOG_LIMIT:
        hint = "Something else has store.db open, or had: restart the daemon (`pacerelle stop`)."
        found = [Finding("store log", "failed", f"{_size(log)}: it is not folded into the store", hint)]
    if free < ROOM:
        return [*found, Finding("disk", "failed", f"{_size(free)} free", "Free some disk space.")]
    if free < 2 * size + ROOM:
        return [*found, Finding("disk", "note", f"{_size(free)} free", "A backup or an upgrade needs more.")]
    return [*found, Finding("disk", "ok", f"{_size(free)} free")]


def _bytes(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _size(count: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
