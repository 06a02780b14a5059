"""The phone's directory: one device, one owner.

::

    HOME/          0700
      lock         flock; holds the owner's pid
      phone.db     0600; everything else (with its -wal and -shm)
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from types import TracebackType

from .errors import HomeInUse, HomeUnusable


class Home:
    """A locked home directory. The lock is the kernel's: it ends with the process, however that ends."""

    def __init__(self, path: Path) -> None:
        """Make the directory if needed and take the lock.

        Raises HomeInUse (another process has it) and HomeUnusable (cannot be made or written).
        """
        self.path = path.expanduser().absolute()
        try:
            _make_private(self.path)
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._lock = os.open(self.path / "lock", flags, 0o600)
        except OSError as e:
            raise HomeUnusable(
                f"The phone's home {self.path} cannot be used: {e.strerror}.",
                hint="Choose another directory with --home, or make this one writable for you.",
            ) from e
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pid = self._holder()
            os.close(self._lock)
            raise HomeInUse(
                f"Another process{f' (pid {pid})' if pid else ''} uses the phone's home {self.path}.",
                pid=pid,
                hint="End it, or give this one its own home with --home.",
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)

    @property
    def database(self) -> Path:
        return self.path / "phone.db"

    def _holder(self) -> int | None:
        try:
            return int(os.pread(self._lock, 32, 0))
        except ValueError:
            return None

    def close(self) -> None:
        os.close(self._lock)

    def __enter__(self) -> Home:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _make_private(path: Path) -> None:
    """Every directory made here is 0700. One that was there keeps its mode unless it is a phone's home already."""
    for directory in reversed((path, *path.parents)):
        directory.mkdir(mode=0o700, exist_ok=True)
    if (path / "phone.db").exists():
        path.chmod(0o700)
