"""Another key for the store, such that a crash at any moment leaves a store that opens.

The store is never written under two keys. A copy is made under the new one and takes the store's place in one rename,
while `store.json` names both keys and both are kept. Whichever of them opens the store afterwards is its key
(`settle`); so before the rename nothing has changed, and after it only the tidying is left.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pacerelle_protocol.local import LocalPaths
from pacerelled.errors import NotPossible, StoreKeyError, StoreUnavailable
from pacerelled.files import sync_directory

from .custody import KEY_BYTES, Places, StoreKey, obtain_store_key
from .driver import DatabaseError, connect
from .keyring import Keyring
from .memo import KeyNote, Memo, read_memo, write_memo
from .opening import examine, mapped


async def store_key(paths: LocalPaths, *, keyring: Keyring, env: Mapping[str, str]) -> StoreKey:
    """The key of the store, after a change of it that was interrupted has been finished or taken back.

    Raises as `custody.obtain_store_key`. The caller holds the owner's lock.
    """
    await settle(paths, keyring=keyring, env=env)
    return await obtain_store_key(paths.state, paths.key_file, paths.store, keyring=keyring, env=env)


async def rekey(paths: LocalPaths, *, reader: Keyring, keeper: Keyring, env: Mapping[str, str]) -> str:
    """Gives the store a new key, and returns where that is kept: in `keeper`, if it takes it, else in the file.

    `reader` is where the old one may be. Raises NotPossible (no store; its key is a credential) and StoreError; then
    the store opens with the key that it had. The caller holds the owner's lock.
    """
    if not paths.store.exists():
        raise NotPossible(f"There is no store in {paths.state}", hint="The daemon makes one when it starts.")
    old = await store_key(paths, keyring=reader, env=env)
    if old.source == "credential":
        raise NotPossible(
            "The store's key is a systemd credential, which only you can change",
            hint="Make a backup, put another key into the credential, and restore with --move-aside: what is restored"
            " gets the key that is found then.",
        )
    examine(paths.store, old.raw, new=False)
    fold(paths.store, old.raw)
    places = Places(paths.key_file, keeper, env)
    raw = secrets.token_bytes(KEY_BYTES)
    expected = "keyring" if await keeper.look() == "ready" else "file"
    memo = Memo(KeyNote.of(old.raw, old.source), True, KeyNote.of(raw, expected))
    write_memo(paths.state, memo)
    copy = _copy_of(paths)
    try:
        source = await places.put(raw, following=True)
        if source != expected:
            memo = replace(memo, next=KeyNote.of(raw, source))
            write_memo(paths.state, memo)
        under_another_key(paths.store, old.raw, copy, raw)
    except BaseException:
        await _take_back(paths, memo, places)
        raise
    os.replace(copy, paths.store)
    sync_directory(paths.state)
    await _finish(paths, memo, raw, places, Places(paths.key_file, reader, env))
    return source


async def settle(paths: LocalPaths, *, keyring: Keyring, env: Mapping[str, str]) -> None:
    """Finishes a change of the key, or takes it back. Does nothing if none was begun.

    Raises StoreKeyError if the store opens with neither key that can be found; nothing is changed then.
    """
    memo = read_memo(paths.state)
    if memo is None or memo.next is None:
        return
    places = Places(paths.key_file, keyring, env)
    new = await _matching(places, memo.next)
    if new is not None and opens(paths.store, new):
        await _finish(paths, memo, new, places, places)
        return
    old = await _matching(places, memo.key)
    if old is None or not opens(paths.store, old):
        where = " or ".join(sorted({places.describe(memo.key.source), places.describe(memo.next.source)}))
        state = f": {keyring}" if "keyring" in (memo.key.source, memo.next.source) and keyring.state != "ready" else ""
        raise StoreKeyError(
            f"A change of the store's key was interrupted, and its key is not in {where}{state}",
            hint=keyring.hint if state else "Put store.db, store.json and store.key back from your backup, together.",
        )
    await _take_back(paths, memo, places)


def under_another_key(source: Path, key: bytes, target: Path, new_key: bytes) -> None:
    """Makes `target` a copy of a store whose log is folded in, under another key, and checks all of it.

    Raises StoreError, and leaves nothing then.
    """
    try:
        target.unlink(missing_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        shutil.copyfile(source, target)
        change_key(target, key, new_key)
        examine(target, new_key, new=False)
    except BaseException as error:
        target.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreUnavailable(
                f"{target} cannot be written: {error.strerror}", hint="A copy of the store needs as much space again."
            ) from error
        raise


def change_key(path: Path, key: bytes, new_key: bytes) -> None:
    """Writes a store that nobody needs, should this be interrupted, under another key. Raises StoreError, OSError."""
    conn = connect(path, key)
    try:
        conn.execute("PRAGMA journal_mode = DELETE")  # no log beside it
        conn.execute("PRAGMA journal_mode = MEMORY")
        conn.execute(f"PRAGMA rekey = \"x'{new_key.hex()}'\"")
    except DatabaseError as error:
        raise mapped(error) from error
    finally:
        conn.close()
    with path.open("rb") as file:
        os.fsync(file.fileno())


def fold(path: Path, key: bytes) -> None:
    """Folds the log into the store, which nobody has open, and removes it. Raises StoreError."""
    conn = connect(path, key)
    try:
        mode = conn.execute("PRAGMA journal_mode = DELETE").fetchone()[0]
    except DatabaseError as error:
        raise mapped(error) from error
    finally:
        conn.close()
    if mode != "delete" or path.with_name(f"{path.name}-wal").exists():
        raise StoreUnavailable(f"The log of {path} cannot be folded in", hint="Close what has store.db open.")


def opens(path: Path, key: bytes) -> bool:
    """Whether this is the key. The store has no log, or is not open."""
    try:
        conn = connect(path, key, read_only=True)
        try:
            conn.execute("SELECT count(*) FROM sqlite_master").fetchone()
        finally:
            conn.close()
    except DatabaseError:
        return False
    return True


def _copy_of(paths: LocalPaths) -> Path:
    return paths.store.with_name(f"{paths.store.name}.next")


async def _matching(places: Places, note: KeyNote) -> bytes | None:
    """The key that the note is about, wherever it is by now."""
    for following in (False, True):
        raw = await places.find(note.source, following=following)
        if raw is not None and note.fits(raw):
            return raw
    return None


async def _finish(paths: LocalPaths, memo: Memo, raw: bytes, places: Places, before: Places) -> None:
    """The store has its new key: puts that into its place, forgets the old one, and last that there was a change."""
    assert memo.next is not None
    if memo.next.source == "keyring":
        if not await places.put_in_keyring(raw):
            raise StoreUnavailable(f"The new key could not be put into its place. {places.keyring}", hint="")
    else:
        places.put_in_file(raw)
    await places.remove(memo.next.source, following=True)
    if memo.key.source != memo.next.source:
        await before.remove(memo.key.source)
    write_memo(paths.state, Memo(memo.next, True))


async def _take_back(paths: LocalPaths, memo: Memo, places: Places) -> None:
    assert memo.next is not None
    _copy_of(paths).unlink(missing_ok=True)
    await places.remove(memo.next.source, following=True)
    write_memo(paths.state, Memo(memo.key, True))
