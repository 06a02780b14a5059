"""An HTTP proxy that knows where the hosts below `.test` are, which nobody else does."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator

from .tls import splice


class HttpProxy:
    """CONNECT only. `asked` are the targets, in order; with `login` ("name:password") it wants that."""

    def __init__(self, hosts: dict[str, int], login: str | None = None) -> None:
        self._hosts = hosts
        self._login = login
        self.asked: list[str] = []
        self.port = 0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[HttpProxy]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            method, target, _ = head.split("\r\n")[0].split(" ")
            self.asked.append(target)
            host = target.partition(":")[0]
            if method != "CONNECT" or host not in self._hosts:
                writer.write(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n")
                writer.close()
            elif self._login and base64.b64encode(self._login.encode()).decode() not in head:
                writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                writer.close()
            else:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
                await splice(reader, writer, self._hosts[host])
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()
