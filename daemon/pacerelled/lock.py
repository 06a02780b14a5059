"""Who is the daemon: an flock on `lock`, taken before anything else. The file holds the owner's pid, for messages."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from pathlib import Path

from .errors import AlreadyRunning, ConfigError

PATIENCE = 1.0  # seconds for an owner to write its pid, and for somebody who only looks to let go
LEAVE = 8.0  # seconds for an owner that was told to end; it takes under 5


class OwnerLock:
    """Held for the life of the process; the kernel lets go of it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd: int | None = None

    def acquire(self, *, take_over: bool = False) -> None:
        """Raises AlreadyRunning with the owner's pid (also while the owner is stopped and answers nothing).

        With `take_over` an owner is told to end (SIGTERM), and waited for.
        """
        try:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ConfigError(
                f"The lock file {self.path} cannot be opened: {error.strerror}",
                hint="Move what lies there away, or set PACERELLE_STORE_ROOT to another folder.",
            ) from error
        deadline = time.monotonic() + PATIENCE
        seen = told = None
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                text = os.pread(fd, 32, 0).strip()
                pid = int(text) if text.isdigit() else None
            except OSError as error:
                os.close(fd)
                raise ConfigError(
                    f"The file {self.path} cannot be locked: {error.strerror}",
                    hint="Set PACERELLE_STORE_ROOT to a folder on a local disk.",
                ) from error
            if take_over and pid is not None and pid == seen != told and _alive(pid):
                # Seen twice, so it is not the pid of an owner before, in the moment of a change.
                told, deadline = pid, time.monotonic() + LEAVE
                _tell_to_end(pid)
            seen = pid
            if time.monotonic() > deadline or (pid is not None and not take_over and _alive(pid)):
                os.close(fd)
                raise AlreadyRunning(
                    f"Another pacerelled is running for this store{f' (pid {pid})' if pid else ''}",
                    pid=pid,
                    hint="Use it as it is, or end it with `pacerelle stop` first.",
                )
            time.sleep(0.02)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Leaves the file: removing it would let two daemons lock two different files."""
        if self._fd is not None:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = None


def _tell_to_end(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGTERM)
    except OSError:
        pass  # gone by itself


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
