"""A daemon in a world that a test bends: `python launch.py WORLD.json …` runs `pacerelled …`.

The file is read again for each question, so that the world can change under a running daemon:

clock      seconds that somebody has added to the wall clock of the machine
dns        `ok`, `fail` or `hang`: what becomes of names; those below `.test` are this machine
keyring    the content of the OS keyring, as {"service name": "password"}
set        {"module.NAME": value}: constants that are too long for a test, {"total": 1.0} for a ClientTimeout; read once
"""

from __future__ import annotations

import datetime
import importlib
import json
import socket
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import keyring
import keyring.backend
import psutil
from psutil import _pslinux

WORLD = Path(sys.argv[1])
Unpatched = datetime.datetime
unpatched = {"time": time.time, "getaddrinfo": socket.getaddrinfo, "boot_time": _pslinux.boot_time}


def world(name: str, otherwise: Any) -> Any:
    return json.loads(WORLD.read_text()).get(name, otherwise)


def wall_clock() -> float:
    return float(unpatched["time"]() + world("clock", 0.0))


def boot_time() -> float:
    """The kernel counts back from the wall clock."""
    return float(unpatched["boot_time"]() + world("clock", 0.0))


class DateTime(Unpatched):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> Any:
        return Unpatched.fromtimestamp(wall_clock(), tz)


def getaddrinfo(host: Any, *rest: Any, **more: Any) -> Any:
    name = host.decode() if isinstance(host, bytes) else str(host)
    if name.replace(".", "").isdigit():
        return unpatched["getaddrinfo"](host, *rest, **more)
    while world("dns", "ok") == "hang":
        time.sleep(0.05)
    if world("dns", "ok") == "fail":
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    return unpatched["getaddrinfo"]("127.0.0.1" if name.endswith(".test") else host, *rest, **more)


class Kept(keyring.backend.KeyringBackend):
    priority = 9.0  # type: ignore[assignment]

    def get_password(self, service: str, username: str) -> str | None:
        found: str | None = world("keyring", {}).get(f"{service} {username}")
        return found

    def set_password(self, service: str, username: str, password: str) -> None:
        pass

    def delete_password(self, service: str, username: str) -> None:
        pass


time.time = wall_clock
datetime.datetime = DateTime  # type: ignore[misc]
socket.getaddrinfo = getaddrinfo
_pslinux.boot_time = boot_time
keyring.set_keyring(Kept())

if __name__ == "__main__":
    assert psutil.boot_time() == boot_time()
    for place, value in world("set", {}).items():
        module, _, name = place.rpartition(".")
        made = aiohttp.ClientTimeout(**value) if isinstance(value, dict) else value
        setattr(importlib.import_module(module), name, made)
    from pacerelled.__main__ import main

    main(sys.argv[2:])
