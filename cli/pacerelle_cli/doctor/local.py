"""What can be seen from outside: the installation, the folder with its lock and sockets. Asks no daemon."""

from __future__ import annotations

import os
import stat
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pacerelle_protocol.local import MAX_SOCKET_PATH, LocalPaths

from .check import FAILED, NOTE, OK, Check

PYTHON: Final = (3, 12)
"""The Signal runtime exists for no other."""


def python(version: Sequence[int] = tuple(sys.version_info[:3]), program: str = sys.executable) -> Check:
    number = ".".join(map(str, version[:3]))
    if tuple(version[:2]) != PYTHON:
        return Check("python", FAILED, f"{number}, {program}", "Install pacerelled with CPython 3.12.")
    return Check("python", OK, f"{number}, {program}")


def versions(installed: str, daemon: str | None, shims: Iterable[str]) -> Check:
    """Of this installation, of the daemon if one runs, and of the hosts' shims."""
    others = Counter(shim for shim in shims if shim != installed)
    if daemon not in (None, installed):
        what = f"{installed} is installed, the daemon is {daemon}"
        return Check("version", NOTE, what, "Run `pacerelle stop`: the next call starts the installed one.")
    if others:
        what = ", ".join(f"{count} of {version}" for version, count in sorted(others.items()))
        return Check("version", NOTE, f"{installed}; hosts run other shims: {what}", "Restart those hosts.")
    return Check("version", OK, installed)


def folder(state: Path, uid: int) -> Check:
    """Its owner and modes; the sockets are looked at on their own."""
    try:
        found = state.stat()
        open_ones = [entry.name for entry in os.scandir(state) if _is_open(entry)]
    except FileNotFoundError:
        return Check("folder", NOTE, f"{state} does not exist yet", "The daemon makes it when it starts.")
    except OSError as error:
        return Check("folder", FAILED, f"{state} cannot be read: {error.strerror}", "Choose another --store-root.")
    if found.st_uid != uid:
        return Check("folder", FAILED, f"{state} belongs to another user", "Choose another --store-root.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        return Check("folder", FAILED, f"{state} is open to others", f"chmod 700 {state}")
    if open_ones:
        names = ", ".join(sorted(open_ones)[:5])
        return Check("folder", NOTE, f"{state} has files that others could read: {names}", f"chmod go= {state}/*")
    return Check("folder", OK, f"{state}")


def lock(pid: int | None, path: Path) -> Check:
    """`pid`: of the daemon that is alive, as the lock says."""
    if pid:
        return Check("lock", OK, f"held by pid {pid}")
    return Check("lock", OK, "free" if path.exists() else "none yet")


def sockets(paths: LocalPaths, uid: int, *, running: bool) -> list[Check]:
    """`running`: somebody listens at control.sock."""
    return [_socket(path, uid, running) for path in (paths.mcp_sock, paths.control_sock)]


def _socket(path: Path, uid: int, running: bool) -> Check:
    about, length = path.name, len(os.fsencode(path))
    if length > MAX_SOCKET_PATH:
        what = f"its path has {length} bytes, more than {MAX_SOCKET_PATH}"
        return Check("socket", FAILED, what, "Choose a shorter --store-root.", about)
    try:
        found, home = path.lstat(), path.parent.stat()
    except FileNotFoundError:
        if running:
            return Check("socket", FAILED, "it is gone, though the daemon runs", "Run `pacerelle stop`.", about)
        return Check("socket", OK, "none: the daemon does not run", about=about)
    except OSError as error:
        return Check("socket", FAILED, f"{path}: {error.strerror}", "Choose another --store-root.", about)
    if not stat.S_ISSOCK(found.st_mode):
        return Check("socket", FAILED, f"{path} is no socket", f"Move it away: mv {path} {path}.old", about)
    if found.st_uid != uid or home.st_uid != uid:
        return Check("socket", FAILED, f"{path} belongs to another user", "Choose another --store-root.", about)
    if stat.S_IMODE(found.st_mode) & 0o177 or stat.S_IMODE(home.st_mode) & 0o077:
        what = f"{path} or its folder is open to others"
        return Check("socket", FAILED, what, f"chmod 700 {path.parent}; chmod 600 {path}", about)
    if not running:
        return Check("socket", OK, "left over; the next start replaces it", about=about)
    return Check("socket", OK, f"{path}, {length} bytes", about=about)


def _is_open(entry: os.DirEntry[str]) -> bool:
    """Whether others could read or write it, were the folder not closed to them."""
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return False  # gone meanwhile
    return not stat.S_ISSOCK(found.st_mode) and bool(stat.S_IMODE(found.st_mode) & 0o077)
