"""The sessions of both protocol eras: one for each handshake, and one for all stateless requests of a token."""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Any, Final, Protocol

import anyio
from mcp.server import Server
from mcp.server.runner import serve_loop
from mcp.server.streamable_http import GET_STREAM_KEY, LAST_EVENT_ID_HEADER, StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Send

from pacerelled.errors import place_of

from .checks import Refused
from .exchange import Exchange
from .replay import Replay

log = logging.getLogger(__name__)

RETRY: Final = 1000  # milliseconds after which a client takes up a stream that ended; SSE's `retry`
ENDED: Final = Refused(
    404, "This session is not known: it ended, or the daemon started anew", "Send `initialize` again"
)


class Client(Protocol):
    """What is served in a session, and who wants to know whether its client is there."""

    @property
    def server(self) -> Server[Any]: ...

    def came(self) -> None:
        """The session began, or its client is back."""

    def left(self) -> None:
        """The session ended, or its client's connection did: it may come back."""


class Session(ABC):
    """Lives until `end`, or until its client has asked nothing for `idle` seconds."""

    def __init__(self, key: Hashable, owner: str, client: Client, *, idle: float) -> None:
        """`owner` is the id of the token that it belongs to."""
        self.key = key
        self.owner = owner
        self.silent_since = math.inf  # in anyio's time; for ever, while something is asked
        self.task: asyncio.Task[None] | None = None
        self._client = client
        self._here = False
        self._idle = idle
        self._exchanges: set[Exchange] = set()
        self._life = anyio.CancelScope()
        self._ready = asyncio.Event()

    @property
    def silent(self) -> bool:
        """Whether nothing is asked in it now."""
        return not self._exchanges

    def start(self, on_end: Callable[[Session], None]) -> None:
        self.task = asyncio.create_task(self._run(), name="http session")
        self.task.add_done_callback(lambda _: on_end(self))

    @property
    def over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._life.cancel_called

    def end(self) -> None:
        """Ends it at once. The task is done soon after."""
        self._life.cancel()

    async def serve(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        """Answers one request in this session."""
        self._exchanges.add(exchange)
        self.silent_since = self._life.deadline = math.inf
        try:
            await self._ready.wait()
            if self.over:
                raise ENDED
            await self._app(exchange.scope, receive, send)
        finally:
            self._exchanges.discard(exchange)
            if not self._exchanges:
                self.silent_since = anyio.current_time()
                self._life.deadline = self.silent_since + self._idle

    def _came(self) -> None:
        if not self._here and not self._life.cancel_called:
            self._here = True
            self._client.came()

    def _left(self) -> None:
        if self._here:
            self._here = False
            self._client.left()

    async def _run(self) -> None:
        try:
            await self._live()
        except Exception as error:
            log.error("An HTTP session broke: %s", place_of(error))
        finally:
            self._life.cancel()
            self._ready.set()  # whoever still waits finds that it is over
            self._left()

    @property
    @abstractmethod
    def _app(self) -> ASGIApp: ...

    @abstractmethod
    async def _live(self) -> None:
        """Serves until `_life` is cancelled or the client ends it; sets `_ready` once requests can come."""


class HandshakeSession(Session):
    """A session that `initialize` opens: its client sends the session's id with each request from then on.

    Where a client keeps a stream for notifications open, the end of its connection is known: `left` is said when
    nothing else of the session is asked, and `came` with its next request.
    """

    def __init__(self, owner: str, client: Client, *, idle: float) -> None:
        session_id = secrets.token_hex(16)
        super().__init__(session_id, owner, client, idle=idle)
        self._replay = Replay()
        self._transport = StreamableHTTPServerTransport(session_id, event_store=self._replay, retry_interval=RETRY)

    async def open(self, exchange: Exchange, receive: Receive, send: Send, on_open: Callable[[], None]) -> None:
        """Answers the request that opens it; `on_open` is called if it does, before the answer leaves."""

        def answered(status: int) -> None:
            if status < 400:
                self._came()
                on_open()

        exchange.on_start = answered
        try:
            await super().serve(exchange, receive, send)
        finally:
            if not self._here:
                self._life.cancel()

    async def serve(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        self._came()
        if exchange.scope["method"] == "GET" and LAST_EVENT_ID_HEADER not in Headers(scope=exchange.scope):
            self._replay.release(GET_STREAM_KEY)  # there is one for notifications, the client's newest
        await super().serve(exchange, receive, send)
        if exchange.scope["method"] == "GET" and exchange.left and not self._exchanges:
            self._left()
        if self._transport.is_terminated:
            self._life.cancel()

    @property
    def _app(self) -> ASGIApp:
        return self._transport.handle_request

    async def _live(self) -> None:
        server = self._client.server
        async with server.lifespan(server) as state, self._transport.connect() as (read, write):
            self._ready.set()
            try:
                with self._life:  # inside the transport, which carries the last answers
                    await serve_loop(
                        server,
                        read,
                        write,
                        lifespan_state=state,
                        session_id=str(self.key),
                        init_options=server.create_initialization_options(),
                    )
            finally:
                self._replay.close()
                with anyio.CancelScope(shield=True):
                    await self._transport.terminate()


class StatelessSession(Session):
    """What the stateless requests of one token share: nothing in the protocol, but their claims and their limits."""

    def __init__(self, key: Hashable, owner: str, client: Client, *, idle: float) -> None:
        super().__init__(key, owner, client, idle=idle)
        # Only requests that name a modern version reach it: it opens no sessions of its own.
        self._manager = StreamableHTTPSessionManager(client.server)

    async def serve(self, exchange: Exchange, receive: Receive, send: Send) -> None:
        self._came()
        await super().serve(exchange, receive, send)

    @property
    def _app(self) -> ASGIApp:
        return self._manager.handle_request

    async def _live(self) -> None:
        async with self._manager.run():
            self._ready.set()
            with self._life:
                await anyio.sleep_forever()
