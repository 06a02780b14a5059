"""Disks that can be filled under a running daemon, without rights that a test does not have."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
from pathlib import Path
from typing import Protocol

from pacerelle_protocol.local import LocalPaths
from tests.daemon.process import Daemon

SIZE = 4 << 20  # bytes


class Disk(Protocol):
    before: tuple[str, ...]  # the command that runs the daemon on it

    def fill(self, daemon: Daemon) -> None: ...
    def free(self, daemon: Daemon) -> None: ...


class SmallFileSystem:
    """One of its own in memory, that only the daemon sees: ENOSPC."""

    def __init__(self, paths: LocalPaths) -> None:
        assert paths.mcp_sock.parent != paths.state, "the sockets must lie outside"
        self._filler = paths.state / "filler"
        script = f'mount -t tmpfs -o size={SIZE},mode=700 none "$0" && exec "$@"'
        self.before = ("unshare", "-Urm", "sh", "-c", script, str(paths.state))

    @staticmethod
    def missing() -> str | None:
        """Why there can be none here."""
        if os.getuid() != 0:
            return "the name of the daemon's folder for sockets has its uid, which only root keeps in a user namespace"
        try:
            check = "mount -t tmpfs none /mnt"
            done = subprocess.run(["unshare", "-Urm", "sh", "-c", check], capture_output=True, timeout=30, check=False)
        except FileNotFoundError:
            return "there is no unshare here"
        return (done.stderr.decode() or "no file system can be mounted here") if done.returncode else None

    def fill(self, daemon: Daemon) -> None:
        with self._seen_by(daemon).open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def free(self, daemon: Daemon) -> None:
        self._seen_by(daemon).unlink()

    def _seen_by(self, daemon: Daemon) -> Path:
        return Path(f"/proc/{daemon.process.pid}/root{self._filler}")


class SizeLimit:
    """The kernel lets the daemon's files grow no further: EFBIG, as with a quota."""

    def __init__(self, paths: LocalPaths) -> None:
        self.before: tuple[str, ...] = ()

    def fill(self, daemon: Daemon) -> None:
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))

    def free(self, daemon: Daemon) -> None:
        resource.prlimit(
            daemon.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        )  # fmt: skip


async def idle() -> None:
    """A moment in which what should not happen could."""
    await asyncio.sleep(0.5)
