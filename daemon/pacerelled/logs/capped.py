"""The log file in the daemon's folder, which whoever starts the daemon opens as its standard error.

When it is full it becomes `pacerelled.log.1`, in place of the one before, and a new one takes its place as the
process's output: so what the interpreter itself or a dying library says is in the capped file as well.
"""

from __future__ import annotations

import logging
import os
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path

LIMIT = 4 * 1024 * 1024  # bytes; so the two have at most twice that, and one record
CALM = 60.0  # seconds in which whoever started us may look for our last words, by where they began in the file


def is_file(fd: int, path: Path) -> bool:
    """Whether `fd` writes to that file."""
    try:
        ours, there = os.fstat(fd), path.stat()
    except OSError:
        return False
    return stat.S_ISREG(ours.st_mode) and (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


class CappedFile(logging.StreamHandler):  # type: ignore[type-arg]
    """Standard error, which is the file at `path`. `clock` gives monotonic seconds."""

    def __init__(self, path: Path, *, limit: int = LIMIT, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(sys.stderr)
        self._path = path
        self._limit = limit
        self._clock = clock
        self._since = clock()

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        try:
            if os.fstat(2).st_size > self._limit and self._clock() - self._since > CALM:
                self._turn()
        except OSError:
            pass  # a full disk, say: the next record tries again

    def _turn(self) -> None:
        os.replace(self._path, self._path.with_name(f"{self._path.name}.1"))
        new = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        for fd in (1, 2):
            os.dup2(new, fd)
        os.close(new)
