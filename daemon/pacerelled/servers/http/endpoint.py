"""The one address, `/mcp`: lets in who may, and finds or opens the session that a request belongs to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Hashable, Iterable
from functools import partial
from typing import Final, Protocol

from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.transport_security import RequestBodyLimitMiddleware
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from .checks import Refused, bearer, check_host, check_origin, unknown_token
from .exchange import Exchange
from .sessions import ENDED, Client, HandshakeSession, Session, StatelessSession

log = logging.getLogger(__name__)

PATH: Final = "/mcp"
MAX_BODY: Final = 1024 * 1024  # bytes
MAX_SESSIONS: Final = 100  # of one token
_STOP_TIME: Final = 0.8  # seconds that sessions get to end

_STOPPING = Refused(503, "The daemon is stopping", "Connect again in a moment")


class Grant(Protocol):
    """A token that is known."""

    @property
    def id(self) -> str: ...


class Backend[G: Grant](Protocol):
    """Whom the endpoint serves, and with what."""

    def identify(self, token: str) -> G | None:
        """None: the token is not known."""

    def choose(self, grant: G, headers: Headers) -> Hashable:
        """Which part of the service a request means; the same for requests that may share a session. Raises Refused."""

    def open(self, grant: G, choice: Hashable, *, stateless: bool) -> Client:
        """What a new session serves."""


class Endpoint[G: Grant]:
    """An ASGI app. Needs a running loop, and `stop` at its end.

    `names` are the host names, in lower case, under which it may be asked; `idle` is after how many seconds without a
    request a session ends.
    """

    def __init__(self, backend: Backend[G], *, names: Collection[str], idle: float) -> None:
        self._backend = backend
        self._names = names
        self._idle = idle
        self._exchanges: set[Exchange] = set()
        self._sessions: dict[Hashable, Session] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("this app serves HTTP only")
        exchange = Exchange(scope, receive, send)
        self._exchanges.add(exchange)
        try:
            await exchange.run(partial(self._answer, exchange))
        finally:
            self._exchanges.discard(exchange)

    async def stop(self) -> None:
        """Ends all sessions and whatever is asked, within a second. Later requests are refused."""
        self._stopping = True
        for exchange in list(self._exchanges):
            exchange.end(_STOPPING)
        self._end(self._sessions.values())
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=_STOP_TIME)
            for task in late:
                task.cancel()

    def revoke(self, owner: str) -> None:
        """Ends the sessions of this token at once, and what is asked with it now."""
        for exchange in list(self._exchanges):
            if exchange.owner == owner:
                exchange.end(unknown_token())
        self._end(session for session in self._sessions.values() if session.owner == owner)

    async def _answer(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        check_host(headers, self._names)
        check_origin(headers, self._names)
        if scope["path"] != PATH:
            raise Refused(404, "There is nothing here", f"MCP is at {PATH}")
        if self._stopping:
            raise _STOPPING
        grant = self._backend.identify(bearer(headers))
        if grant is None:
            raise unknown_token()
        exchange.owner = grant.id
        # Whole before anything is done with it: what comes slowly holds up nobody, what is too long is not kept.
        await RequestBodyLimitMiddleware(partial(self._route, exchange, grant), MAX_BODY)(scope, receive, send)

    async def _route(self, exchange: Exchange, grant: G, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        version, session_id = headers.get(MCP_PROTOCOL_VERSION_HEADER), headers.get(MCP_SESSION_ID_HEADER)
        if version is not None and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            await self._stateless(grant, headers).serve(exchange, receive, send)
        elif session_id is not None:
            found = self._sessions.get(session_id)
            if found is None or found.owner != grant.id:  # another's is as unknown as one that never was
                raise ENDED
            await found.serve(exchange, receive, send)
        elif scope["method"] != "POST":
            raise Refused(400, f"The header {MCP_SESSION_ID_HEADER} is missing", "`initialize` opens a session")
        else:
            self._make_room(grant)
            client = self._backend.open(grant, self._backend.choose(grant, headers), stateless=False)
            session = HandshakeSession(grant.id, client, idle=self._idle)
            self._start(session)
            await session.open(exchange, receive, send, partial(self._sessions.__setitem__, session.key, session))

    def _stateless(self, grant: G, headers: Headers) -> Session:
        choice = self._backend.choose(grant, headers)
        key = (grant.id, choice)
        session = self._sessions.get(key)
        if session is None or session.over:
            client = self._backend.open(grant, choice, stateless=True)
            session = self._sessions[key] = StatelessSession(key, grant.id, client, idle=self._idle)
            self._start(session)
        return session

    def _start(self, session: Session) -> None:
        session.start(self._ended)
        assert session.task is not None
        self._tasks.add(session.task)
        session.task.add_done_callback(self._tasks.discard)

    def _ended(self, session: Session) -> None:
        if self._sessions.get(session.key) is session:
            del self._sessions[session.key]

    def _end(self, sessions: Iterable[Session]) -> None:
        for session in list(sessions):
            del self._sessions[session.key]
            session.end()

    def _make_room(self, grant: G) -> None:
        """A client that forgets its sessions costs only itself: its longest silent one ends. Raises Refused."""
        own = [session for session in self._sessions.values() if session.owner == grant.id]
        if len(own) < MAX_SESSIONS:
            return
        oldest = min(own, key=lambda session: session.silent_since)
        if oldest.silent:
            self._end([oldest])
        else:
            raise Refused(503, f"This token has {MAX_SESSIONS} sessions already", "End one")
