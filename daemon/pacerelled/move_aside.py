"""What `pacerelle store move-aside` runs: `python -m pacerelled.move_aside [--move]`, while no daemon runs.

Prints one line of JSON: {"reason": why the store cannot be used, or null, "moved_to": folder or null, "lost": [...]},
or {"error": {"code", "message", "hint"}} with exit code 1. Without --move nothing is changed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from typing import Any

from pacerelle_protocol.local import LocalPaths, local_paths
from pacerelled.config import load_settings
from pacerelled.errors import NotPossible, PacerelledError
from pacerelled.lock import OwnerLock
from pacerelled.store.aside import LOST, damage, move_aside
from pacerelled.store.keyring import Keyring


def main() -> None:
    parser = argparse.ArgumentParser(prog="pacerelled.move_aside")
    parser.add_argument("--store-root")
    parser.add_argument("--move", action="store_true")
    arguments = parser.parse_args()
    try:
        answer = _run(local_paths(arguments.store_root, env=os.environ, uid=os.getuid()), arguments.move)
    except PacerelledError as error:
        print(json.dumps({"error": error.as_dict()}))
        sys.exit(1)
    print(json.dumps(answer))


def _run(paths: LocalPaths, move: bool) -> dict[str, Any]:
    if not paths.state.is_dir():
        raise NotPossible(f"There is no store in {paths.state}", hint="The daemon makes one when it starts.")
    settings = load_settings(paths.config, os.environ, {})
    lock = OwnerLock(paths.lock)
    lock.acquire()
    try:
        keyring = Keyring(settings.keyring, os.environ)
        reason = asyncio.run(damage(paths, keyring, os.environ))
        moved_to = asyncio.run(move_aside(paths, "damaged", keyring=keyring)) if move and reason else None
    finally:
        lock.release()
    return {
        "reason": reason.as_dict() if reason else None,
        "moved_to": os.fspath(moved_to) if moved_to else None,
        "lost": LOST if reason else [],
    }


if __name__ == "__main__":
    main()
