"""One HTTP exchange over a Unix socket.

HTTP/1.0, so an answer is a head, then bytes until the connection ends. `http.client` would do, but it imports `email`
and `ssl`, which would add a third to the time that `pacerelle status` takes.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_MAX_HEAD_LINE = 64 * 1024
_CHUNK = 256 * 1024


class BadAnswer(Exception):
    """What came back is not HTTP, or ends too early."""


class Answer:
    """Its head has arrived; the body is read when asked for. Header names are in lower case."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        words = self._line().split(b" ", 2)
        if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
            raise BadAnswer
        self.status = int(words[1])
        self.headers: dict[str, str] = {}
        while line := self._line():
            name, _, value = line.partition(b":")
            self.headers[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
        length = self.headers.get("content-length", "")
        self._left = int(length) if length.isdigit() else None

    def pieces(self) -> Iterator[bytes]:
        """The rest of the body. Raises BadAnswer if the daemon went away before its end."""
        while piece := self._stream.read(_CHUNK):
            if self._left is not None:
                self._left -= len(piece)
            yield piece
        if self._left:
            raise BadAnswer

    def read(self) -> bytes:
        return b"".join(self.pieces())

    def _line(self) -> bytes:
        line = self._stream.readline(_MAX_HEAD_LINE)
        if not line.endswith(b"\n"):
            raise BadAnswer
        return line.rstrip(b"\r\n")


def connect(path: Path, timeout: float) -> socket.socket:
    """Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        sock.connect(os.fspath(path))
    except BaseException:
        sock.close()
        raise
    return sock


@contextmanager
def exchange(
    path: Path, method: str, target: str, body: bytes | IO[bytes] | None, *, timeout: float
) -> Iterator[Answer]:
    """Sends a request and yields its answer. `timeout` (seconds) is for each step, not for the whole.

    Raises OSError (TimeoutError where nothing came in time), BadAnswer.
    """
    start = body if isinstance(body, bytes) else b""
    size = os.fstat(body.fileno()).st_size if body and not isinstance(body, bytes) else len(start)
    head = f"{method} {target} HTTP/1.0\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    with connect(path, timeout) as sock:
        with suppress(BrokenPipeError):  # whoever refuses a body answers, and closes, without reading all of it
            sock.sendall(head.encode("ascii") + start)
            if body and not isinstance(body, bytes):
                sock.sendfile(body)
        with sock.makefile("rb") as stream:
            yield Answer(stream)
