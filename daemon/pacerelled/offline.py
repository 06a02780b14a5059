"""What the command line runs while no daemon does: `python -m pacerelled.offline VERB …`; it holds the owner's lock.

    keys                        where the store's key is, and how the keyring is
    rekey                       a new key for the store; waits for a daemon to end
    checkup                     what `pacerelle doctor` shows of it
    backup --to-fd N            the store, sealed, to an open file
    verify FILE                 opens a backup (whether a daemon runs or not)
    restore FILE [--move-aside] puts a backup's store into place

The passphrase is the first line of standard input. Standard output has lines of JSON: {"waiting": pid of the daemon},
any number of {"done", "all"} (bytes), then {"result": …}, or {"error": {code, message, hint}} with exit code 1.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pacerelle_protocol.local import LocalPaths, local_paths
from pacerelled.agent.keys import describe_keyring, describe_store_key
from pacerelled.backup.making import make_backup
from pacerelled.backup.restoring import AFRESH, restore, verify
from pacerelled.config import Settings, load_settings
from pacerelled.errors import AlreadyRunning, NotPossible, PacerelledError, StoreUnavailable
from pacerelled.files import private_directory
from pacerelled.lock import OwnerLock
from pacerelled.store.database import Store
from pacerelled.store.keyring import Keyring
from pacerelled.store.rekey import rekey, store_key

PATIENCE = 20.0  # seconds

Verb = Callable[[argparse.Namespace, LocalPaths, Settings], Coroutine[Any, Any, Any]]


def main() -> None:
    arguments = _parser().parse_args()
    os.umask(0o077)
    paths = local_paths(arguments.store_root, env=os.environ, uid=os.getuid())
    try:
        settings = load_settings(paths.config, os.environ, {})
        with ExitStack() as stack:
            if arguments.verb not in ("keys", "verify") and (arguments.verb != "checkup" or paths.state.is_dir()):
                private_directory(paths.state)
                lock = OwnerLock(paths.lock)
                _acquire(lock, patience=PATIENCE if arguments.verb == "rekey" else 0.0)
                stack.callback(lock.release)
            _say({"result": asyncio.run(VERBS[arguments.verb](arguments, paths, settings))})
    except PacerelledError as error:
        _say({"error": error.as_dict()})
        sys.exit(1)


def _acquire(lock: OwnerLock, *, patience: float) -> None:
    """Looks often: a supervisor may start the daemon again as soon as it has ended."""
    until, told = time.monotonic() + patience, False
    while True:
        try:
            lock.acquire()
        except AlreadyRunning as error:
            if time.monotonic() >= until:
                raise
            if not told:
                _say({"waiting": error.pid})
                told = True
            time.sleep(0.01)
        else:
            return


async def _keys(_: argparse.Namespace, paths: LocalPaths, settings: Settings) -> dict[str, Any]:
    keyring = Keyring(settings.keyring, os.environ)
    await keyring.look()
    return {"store_key": describe_store_key(paths.state), "keyring": describe_keyring(keyring), "tokens": None}


async def _checkup(_: argparse.Namespace, paths: LocalPaths, settings: Settings) -> list[dict[str, Any]]:
    from pacerelled.checkup.resting import examine

    return [finding.as_dict() for finding in await examine(paths, settings)]


async def _rekey(_: argparse.Namespace, paths: LocalPaths, settings: Settings) -> dict[str, Any]:
    reader, keeper = Keyring(True, os.environ), Keyring(settings.keyring, os.environ)
    await rekey(paths, reader=reader, keeper=keeper, env=os.environ)
    return {"store_key": describe_store_key(paths.state), "keyring": describe_keyring(keeper)}


async def _backup(arguments: argparse.Namespace, paths: LocalPaths, settings: Settings) -> dict[str, Any]:
    if not paths.store.exists():
        raise NotPossible(f"There is no store in {paths.state}", hint="The daemon makes one when it starts.")
    key = await store_key(paths, keyring=Keyring(settings.keyring, os.environ), env=os.environ)
    store = await Store.open(paths.store, key.raw, new=key.new)
    try:
        async with make_backup(store, paths.config, _passphrase()) as backup:
            done, progress = 0, _progress()
            async for piece in backup.pieces:
                _write(arguments.to_fd, piece)
                done += len(piece)
                progress(done, backup.size)
    finally:
        await store.close()
    return {"size": done}


async def _verify(arguments: argparse.Namespace, paths: LocalPaths, _: Settings) -> dict[str, Any]:
    found = verify(arguments.file, _passphrase(), paths.state, on_progress=_progress())
    return {"made_at": found.made_at, "made_by": found.made_by, "store_size": found.store_size}


async def _restore(arguments: argparse.Namespace, paths: LocalPaths, settings: Settings) -> dict[str, Any]:
    done = await restore(
        arguments.file,
        _passphrase(),
        paths,
        aside=arguments.move_aside,
        keyring=Keyring(settings.keyring, os.environ),
        env=os.environ,
        on_progress=_progress(),
    )
    return {
        "made_at": done.made_at,
        "agents": done.agents,
        "key_source": done.key_source,
        "moved_to": os.fspath(done.moved_to) if done.moved_to else None,
        "afresh": AFRESH,
    }


VERBS: dict[str, Verb] = {
    "keys": _keys,
    "checkup": _checkup,
    "rekey": _rekey,
    "backup": _backup,
    "verify": _verify,
    "restore": _restore,
}


def _passphrase() -> str:
    return sys.stdin.readline().rstrip("\r\n")


def _progress() -> Callable[[int, int], None]:
    """Says so at each hundredth, not at each piece."""
    last = -1

    def say(done: int, whole: int) -> None:
        nonlocal last
        if (hundredth := 100 * done // max(whole, 1)) != last:
            last = hundredth
            _say({"done": done, "all": whole})

    return say


def _write(fd: int, data: bytes) -> None:
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    except OSError as error:
        raise StoreUnavailable(
            f"The backup cannot be written: {error.strerror}", hint="Choose a place with more space."
        ) from error


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pacerelled.offline")
    parser.add_argument("--store-root", required=True)
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in VERBS:
        command = verbs.add_parser(verb)
        if verb == "backup":
            command.add_argument("--to-fd", type=int, required=True)
        elif verb in ("verify", "restore"):
            command.add_argument("file", type=Path)
        if verb == "restore":
            command.add_argument("--move-aside", action="store_true")
    return parser


if __name__ == "__main__":
    main()
