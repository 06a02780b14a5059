"""Accepting connections by hand rather than with `asyncio.Server`.

On Python 3.12.1 that one cannot be waited for while a client idles, and it reports a lack of descriptors a hundred
times for each try.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

log = logging.getLogger(__name__)

PAUSE = 1.0  # seconds to wait when the process has run out of descriptors


class Acceptor:
    """Accepts on `sock`, a listening Unix socket that belongs to it from now on, and hands each connection to `take`.

    `name` is what the log calls the socket. When descriptors or memory run out it waits, and goes on by itself.
    """

    def __init__(self, sock: socket.socket, take: Callable[[socket.socket], None], *, name: str) -> None:
        self._sock = sock
        self._take = take
        self._name = name
        self._resume: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Accepts from now on. Needs the running loop."""
        asyncio.get_running_loop().add_reader(self._sock, self._accept)

    @property
    def closed(self) -> bool:
        return self._sock.fileno() < 0

    def close(self) -> None:
        """Accepts no more, and closes the socket."""
        if self.closed:
            return
        if self._resume is not None:
            self._resume.cancel()
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            # The socket stays readable: without a pause this would spin.
            log.error("cannot accept a connection on %s: %s", self._name, error.strerror)
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._sock)
            self._resume = loop.call_later(PAUSE, self.start)
            return
        sock.setblocking(False)
        self._take(sock)
