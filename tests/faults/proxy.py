"""Sits between daemons and the relay on TCP, and does to their bytes what networks do."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Literal
from urllib.parse import urlsplit

CHUNK = 1 << 16  # bytes
HANDSHAKE = 300  # bytes of an answer's head, about; no message is as short
Direction = Literal["up", "down"]  # towards the relay, towards the daemon


class Pipe:
    """One direction of one connection. While `flowing` is not set, what comes in stays here."""

    def __init__(
        self, proxy: FaultProxy, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._proxy = proxy
        self._direction = direction
        self._reader = reader
        self._writer = writer
        self.passed = 0  # bytes
        self.flowing = asyncio.Event()
        self.flowing.set()

    async def run(self) -> None:
        """Until its source ends; then its target is closed, after everything that came."""
        try:
            while data := await self._reader.read(CHUNK):
                if self._proxy.delay:
                    await asyncio.sleep(self._proxy.delay)
                await self.flowing.wait()
                await self._pass(data)
        except ConnectionError:
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def _pass(self, data: bytes) -> None:
        while data:
            size = len(data)
            if rate := self._proxy.rate:
                size = max(1, int(rate * 0.02))
                await asyncio.sleep(0.02)
            left = self._proxy.left[self._direction]
            if left is not None:
                self._proxy.left[self._direction] = left - len(data[: min(size, left)])
                size = min(size, left)
            part, data = data[:size], data[size:]
            self._writer.write(part)
            self.passed += len(part)
            with contextlib.suppress(ConnectionError):  # its own end is noticed by the other direction
                await self._writer.drain()
            if left is not None and left == len(part):
                self._proxy.left[self._direction] = None
                raise ConnectionAbortedError


class Connection:
    """A daemon's connection and its continuation to the relay."""

    def __init__(self, down: asyncio.StreamWriter, up: asyncio.StreamWriter, pipes: dict[Direction, Pipe]) -> None:
        self._ends = (down, up)
        self.pipes = pipes

    def abort(self) -> None:
        for end in self._ends:
            end.transport.abort()
        self.thaw()  # what is held back has nowhere to go, and must not wait for ever

    def freeze(self, *directions: Direction) -> None:
        """Nothing more passes, in these directions or in both, and nothing is closed: half open."""
        for direction in directions or self.pipes:
            self.pipes[direction].flowing.clear()

    def thaw(self) -> None:
        for pipe in self.pipes.values():
            pipe.flowing.set()


class FaultProxy:
    """`async with FaultProxy(relay_url) as proxy`: daemons use `proxy.url`.

    `delay` (seconds for each portion that passes) and `rate` (bytes a second) hold while they are set.
    """

    def __init__(self, relay_url: str) -> None:
        parts = urlsplit(relay_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._relay = (parts.hostname, parts.port)
        self._server: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.left: dict[Direction, int | None] = {"up": None, "down": None}  # bytes until a cut
        self.connections: list[Connection] = []
        self.accepted = 0
        self.delay = 0.0
        self.rate: float | None = None
        self.closing = False  # new connections are closed as soon as they stand
        self.stalling = False  # nothing passes on new connections

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> FaultProxy:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def listen(self) -> None:
        """On the port it had before, if any."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Connections are refused, and those there are broken, until `listen`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        await self.drop()

    async def drop(self) -> None:
        """Breaks every connection."""
        for connection in self.connections:
            connection.abort()
        while self.connections:  # noqa: ASYNC110 - a test polls
            await asyncio.sleep(0.005)

    async def cut(self, direction: Direction, after: int) -> None:
        """Breaks a connection in the middle, once so many more bytes have passed; returns when it has."""
        self.left[direction] = after
        while self.left[direction] is not None:  # noqa: ASYNC110 - a test polls
            await asyncio.sleep(0.005)

    def freeze(self) -> list[Connection]:
        """The connections of this moment become half open; new ones work. Returns them."""
        frozen = list(self.connections)
        for connection in frozen:
            connection.freeze()
        return frozen

    def used_since(self, older: list[Connection]) -> bool:
        """Whether there is a connection besides these that has carried a message."""
        return any(c.pipes["down"].passed > HANDSHAKE for c in self.connections if c not in older)

    async def reorder(self) -> None:
        """What the daemon has sent on its connection reaches the relay when a newer one has already been used."""
        older = list(self.connections)
        for connection in older:
            connection.freeze("up")
        while not self.used_since(older):  # noqa: ASYNC110 - a test polls
            await asyncio.sleep(0.005)
        for connection in older:
            connection.thaw()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        if self.closing:
            writer.transport.abort()
            return
        try:
            relay_reader, relay_writer = await asyncio.open_connection(*self._relay)
        except OSError:
            writer.transport.abort()
            return
        pipes: dict[Direction, Pipe] = {
            "up": Pipe(self, "up", reader, relay_writer),
            "down": Pipe(self, "down", relay_reader, writer),
        }
        connection = Connection(writer, relay_writer, pipes)
        if self.stalling:
            connection.freeze()
        self.connections.append(connection)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await asyncio.gather(*(pipe.run() for pipe in pipes.values()))
        finally:
            connection.abort()
            self.connections.remove(connection)
            self._tasks.discard(task)
