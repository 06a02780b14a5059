"""systemd's journal by its native protocol (https://systemd.io/JOURNAL_NATIVE_PROTOCOL): a datagram of fields a record.

What is written to standard error arrives there too, as mere lines; that is the way out if this one fails.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .shapes import TextFormatter

SOCKET: Final = Path("/run/systemd/journal/socket")
IDENTIFIER: Final = "pacerelled"
_PRIORITIES: Final = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))  # syslog(3)


def is_journal(fd: int, env: Mapping[str, str]) -> bool:
    """Whether what is written to `fd` goes to the journal (systemd.exec(5), JOURNAL_STREAM)."""
    device, _, inode = env.get("JOURNAL_STREAM", "").partition(":")
    if not device.isdigit() or not inode.isdigit():
        return False
    try:
        found = os.fstat(fd)
    except OSError:
        return False
    return (found.st_dev, found.st_ino) == (int(device), int(inode))


class JournalHandler(logging.Handler):
    """`path` is the journal's socket."""

    def __init__(self, path: Path = SOCKET) -> None:
        super().__init__()
        self.setFormatter(_Words())
        self._path = path
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0))

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._sock.sendto(encode(self._fields(record)), os.fspath(self._path))
        except OSError:  # the journal is away, or this is too long for a datagram
            print(f"<{_priority(record.levelno)}>{self.format(record)}", file=sys.stderr, flush=True)

    def close(self) -> None:
        self._sock.close()
        super().close()

    def _fields(self, record: logging.LogRecord) -> dict[str, str]:
        fields = {
            "MESSAGE": self.format(record),
            "PRIORITY": str(_priority(record.levelno)),
            "SYSLOG_IDENTIFIER": IDENTIFIER,
            "LOGGER": record.name,
            "CODE_FILE": record.pathname,
            "CODE_LINE": str(record.lineno),
            "CODE_FUNC": record.funcName or "",
        }
        if repeated := getattr(record, "repeated", 0):
            fields["REPEATED"] = str(repeated)
        return fields


def encode(fields: Mapping[str, str]) -> bytes:
    """A value with a line break is announced by its length (64 bits, lowest byte first)."""
    out = bytearray()
    for name, text in fields.items():
        value = text.encode(errors="backslashreplace")
        if b"\n" in value:
            out += name.encode() + b"\n" + struct.pack("<Q", len(value)) + value + b"\n"
        else:
            out += name.encode() + b"=" + value + b"\n"
    return bytes(out)


def _priority(level: int) -> int:
    return next((priority for least, priority in _PRIORITIES if level >= least), 7)


class _Words(TextFormatter):
    """Time, level and logger are fields of their own."""

    def __init__(self) -> None:
        super().__init__()
        self._style = logging.PercentStyle("%(message)s")
