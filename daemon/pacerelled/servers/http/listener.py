"""uvicorn in the daemon's loop: an address, its connections, and their limits."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Iterator
from typing import Final

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS: Final = 256
QUIET_TIME: Final = 30.0  # seconds that a connection may be open with no request under way
_MAX_HEAD: Final = 32 * 1024  # bytes of a request's head
_BACKLOG: Final = 64
_STOP_TIME: Final = 1.0  # seconds that connections get to end; whoever stops it has ended what they were about


class Listener:
    """Serves an ASGI app on one address."""

    def __init__(self, app: ASGIApp, host: str, port: int) -> None:
        """Binds. `host` is an IP address; port 0 is any that is free. Raises OSError."""
        self._sock = _bind(host, port)
        self.port: int = self._sock.getsockname()[1]
        config = uvicorn.Config(
            app,
            http=_Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=int(QUIET_TIME),
            timeout_graceful_shutdown=int(_STOP_TIME),
            h11_max_incomplete_event_size=_MAX_HEAD,
        )
        self._server = _Server(config)

    async def serve(self) -> None:
        """Until `stop`, or until it is cancelled."""
        try:
            await self._server.serve(sockets=[self._sock])
        finally:
            self._sock.close()

    def stop(self) -> None:
        """Accepts nothing more. `serve` returns soon after."""
        self._server.should_exit = True


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are the daemon's."""
        yield


class _Connection(H11Protocol):
    """Adds what uvicorn has no settings for: a limit of connections, and one for connections that ask nothing."""

    _quiet: asyncio.TimerHandle | None = None
    _seen: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, "abort": transport.abort}
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._quiet = self.loop.call_later(QUIET_TIME, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
        super().connection_lost(exc)

    def _look(self) -> None:
        """Ends a connection whose client has had no request under way since the last look, or none ever."""
        under_way = self.cycle is not None and not self.cycle.response_complete
        if not under_way and self._seen is self.cycle:
            self.transport.abort()
            return
        self._seen = self.cycle
        self._quiet = self.loop.call_later(QUIET_TIME, self._look)


def _bind(host: str, port: int) -> socket.socket:
    version = ipaddress.ip_address(host).version
    family = socket.AF_INET6 if version == 6 else socket.AF_INET
    # Named as TCP, or asyncio would not turn Nagle's delay off: 40 ms for each answer.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of a daemon before may linger
        sock.bind((host, port))
        sock.listen(_BACKLOG)
        sock.setblocking(False)
    except OSError:
        sock.close()
        raise
    return sock
