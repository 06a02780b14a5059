"""Runs inside `dbus-run-session`: a real Secret Service, and what the daemon's keyring makes of it. Prints JSON.

`secret_service.py HOME`: first nobody provides the service; then GNOME Keyring does, unlocked; then it is locked.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import secretstorage

from pacerelle_protocol.local import local_paths
from pacerelled.store.custody import store_created
from pacerelled.store.database import Store
from pacerelled.store.keyring import Keyring
from pacerelled.store.rekey import rekey, store_key

DEADLINE = 30.0  # seconds


def start() -> subprocess.Popen[bytes]:
    """The keyring, unlocked."""
    process = subprocess.Popen(
        ["gnome-keyring-daemon", "--foreground", "--components=secrets", "--unlock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdin is not None
    process.stdin.write(b"a password")
    process.stdin.close()
    until = time.monotonic() + DEADLINE
    while True:
        with closing(secretstorage.dbus_init()) as bus:
            try:
                if not secretstorage.Collection(bus).is_locked():
                    return process
            except secretstorage.SecretStorageException:
                pass
        assert time.monotonic() < until, "the keyring does not start"
        time.sleep(0.1)


def lock() -> None:
    with closing(secretstorage.dbus_init()) as bus:
        secretstorage.Collection(bus).lock()


async def refused(paths: Any) -> str:
    try:
        await store_key(paths, keyring=Keyring(True, os.environ), env={})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "found"


async def main(home: Path) -> dict[str, Any]:
    paths = local_paths(str(home / "root"), env={}, uid=os.getuid())
    paths.state.mkdir(parents=True)
    out: dict[str, Any] = {"without": await Keyring(True, os.environ).look()}
    service = start()
    try:
        keyring = Keyring(True, os.environ)
        out["unlocked"] = await keyring.look()
        key = await store_key(paths, keyring=keyring, env={})
        store = await Store.open(paths.store, key.raw, new=True)
        store_created(paths.state, key)
        await store.close()
        out["made"] = key.source
        out["rekeyed"] = await rekey(paths, reader=keyring, keeper=keyring, env={})
        out["changed"] = (await store_key(paths, keyring=keyring, env={})).raw != key.raw
        out["token"] = [await keyring.set("token:a", "t"), await keyring.get("token:a")]
        await keyring.delete("token:a")
        out["deleted"] = await keyring.get("token:a") is None
        lock()
        out["locked"] = await Keyring(True, os.environ).look()
        out["left alone"] = await keyring.get("x", prompt=False) is None
        out["key wanted"] = await refused(paths)
    finally:
        service.terminate()
        service.wait()
    return out


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1])))))
