"""`killed_rekey.py FOLDER FROM TO`: changes a store's key again and again, killed before each thing it does to a file.

The interpreter's audit events tell of each: the NTH that is about a file of the store or of the keyring is the last one
begun. What comes after (finishing, or taking back) is killed too, once, and then has to succeed. Prints a line of JSON
for each NTH, until one is not killed any more.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from pacerelle_protocol.local import LocalPaths, local_paths
from pacerelled.store import events
from pacerelled.store.custody import store_created
from pacerelled.store.database import Store
from pacerelled.store.keyring import Keyring
from pacerelled.store.rekey import rekey, store_key

from .kept_keyring import BUS, use

OFF = Keyring(False, {})


def keyring(place: str) -> Keyring:
    return Keyring(place == "keyring", BUS)


def paths_in(folder: Path) -> LocalPaths:
    return local_paths(str(folder), env={}, uid=os.getuid())


async def make(folder: Path, place: str) -> None:
    paths = paths_in(folder)
    paths.state.mkdir(parents=True, exist_ok=True)
    key = await store_key(paths, keyring=keyring(place), env={})
    assert key.source == place
    store = await Store.open(paths.store, key.raw, new=True)
    store_created(paths.state, key)
    await store.run(lambda tx: [events.add(tx, None, "kept", text="x" * 100) for _ in range(200)])
    await store.close()


async def read(folder: Path) -> dict[str, Any]:
    """The store as a daemon would open it after all this."""
    paths = paths_in(folder)
    key = await store_key(paths, keyring=Keyring(True, BUS), env={})
    store = await Store.open(paths.store, key.raw, new=key.new)
    count = await store.run(lambda tx: tx.one("SELECT count(*) FROM events")[0])
    await store.close()
    return {"rows": count, "source": key.source, "key": key.raw.hex()}


def forked(work: Callable[[], Coroutine[Any, Any, Any]], *, die_at: int = 0, folder: Path) -> tuple[int, Any]:
    """Does it in a process of its own: its exit status, and what it returned."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        if die_at:
            _arm(die_at, folder)
        try:
            result = asyncio.run(work())
        except BaseException as error:
            result = {"failed": repr(error)}
        os.write(writing, json.dumps(result).encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(pid, 0)
    return status, json.loads(said) if said else None


def _arm(nth: int, folder: Path) -> None:
    counting, inside = itertools.count(1), os.fspath(folder)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename", "os.remove", "os.chmod", "os.truncate"):
            return
        if isinstance(args[0], str | os.PathLike) and os.fspath(args[0]).startswith(inside) and next(counting) >= nth:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main(folder: Path, before: str, after: str) -> None:
    use(folder / "work" / "keyring.json")
    made, work = folder / "made", folder / "work"
    work.mkdir()
    forked(lambda: make(work, before), folder=folder)
    shutil.copytree(work, made)
    _, old = forked(lambda: read(work), folder=folder)
    for nth in itertools.count(1):
        shutil.rmtree(work)
        shutil.copytree(made, work)
        status, _ = forked(
            lambda: rekey(paths_in(work), reader=Keyring(True, BUS), keeper=keyring(after), env={}),
            die_at=nth,
            folder=work,
        )
        killed = status == signal.SIGKILL
        if killed:
            forked(lambda: read(work), die_at=nth % 7 + 3, folder=work)
        _, found = forked(lambda: read(work), folder=work)
        new = found.get("key") != old["key"]
        left = sorted(path.name for path in (work / "pacerelled").iterdir())
        ring = json.loads((work / "keyring.json").read_text()) if (work / "keyring.json").exists() else {}
        found.pop("key", None)
        print(json.dumps({"nth": nth, "killed": killed, "new": new, "left": left, "ring": len(ring), **found}))
        if not killed:
            return


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
