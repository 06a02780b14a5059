"""mcp.sock: where the shims of MCP hosts connect (docs/local-protocol.md).

A connection is a hello, then one MCP session.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress

from pacerelle_protocol.errors import LocalProtocolError
from pacerelle_protocol.hello import Hello, parse_hello, refused_line, welcome_line
from pacerelled.agent.api import HubApi
from pacerelled.agent.model import Session
from pacerelled.agent.sessions import host_name
from pacerelled.errors import AgentExists, PacerelledError, StoreUnavailable
from pacerelled.mcp.results import unexpected
from pacerelled.mcp.server import build_server
from pacerelled.mcp.stream import LineReader, serve_stream

from .accepting import Acceptor
from .sockets import peer_uid

log = logging.getLogger(__name__)

HELLO_TIMEOUT = 10.0  # seconds
_STOP_TIME = 0.8  # seconds that the connections get to end


class Refused(Exception):
    """Why a client is not served; becomes the `refused` line."""

    def __init__(self, code: str, message: str, hint: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.line = refused_line(code=code, message=message, hint=hint, retry=retry)


class McpSocketServer:
    """Serves `hub` to MCP hosts on `sock`, a listening Unix socket that belongs to this server from now on.

    `version` is what the daemon calls itself in its welcome.
    """

    def __init__(self, hub: HubApi, sock: socket.socket, *, version: str) -> None:
        self._hub = hub
        self._acceptor = Acceptor(sock, self._take, name="mcp.sock")
        self._version = version
        self._connections: set[_Connection] = set()
        self._by_session: dict[str, _Connection] = {}

    def start(self) -> None:
        """Accepts from now on. Needs the running loop."""
        self._acceptor.start()

    async def stop(self) -> None:
        """Closes the socket and every connection, within a second, also when hosts idle or calls wait.

        Calls in flight are not answered: a shim makes them again at the next daemon.
        """
        if self._acceptor.closed:
            return  # stopped before
        self._acceptor.close()
        for connection in self._connections:
            connection.close()
        if self._connections:
            _, late = await asyncio.wait([c.task for c in self._connections], timeout=_STOP_TIME)
            if late:
                log.warning("%d connections to hosts did not end in time", len(late))

    def _take(self, sock: socket.socket) -> None:
        connection = _Connection(sock, self._serve)
        self._connections.add(connection)
        connection.task.add_done_callback(lambda _: self._connections.discard(connection))

    async def _serve(self, connection: _Connection) -> None:
        """One connection from its hello to its end."""
        reader, writer = await asyncio.open_unix_connection(sock=connection.sock)
        connection.writer = writer
        try:
            lines = LineReader(reader)
            session = await self._greet(connection, lines)
            if session is None:
                return
            try:
                server = build_server(self._hub, session)
                writer.write(welcome_line(daemon=self._version, session=session.id, offers=server.offers))
                await serve_stream(server, lines, writer)
            finally:
                del self._by_session[session.id]
                self._hub.close_session(session)
        except Refused as refused:
            log.warning("refused a client on mcp.sock: %s", refused.code)
            writer.write(refused.line)
        except OSError:
            pass  # the client is gone
        except Exception as error:
            problem = unexpected(error)
            if not connection.greeted:  # or the shim, which was told nothing, would come straight back
                writer.write(refused_line(code=problem.code, message=problem.message, hint=problem.hint, retry=False))
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()

    async def _greet(self, connection: _Connection, lines: LineReader) -> Session | None:
        """The session that the client's hello opens; None if it left without one. Raises Refused."""
        if peer_uid(connection.sock) != os.geteuid():
            raise Refused("not_owner", "This daemon serves only the user who runs it.", "Start your own pacerelled.")
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                line = await lines.next()
        except TimeoutError:
            raise Refused("bad_hello", f"No hello within {HELLO_TIMEOUT:g} s.", _USE_SHIM) from None
        if line is None:
            return None
        try:
            hello = parse_hello(line if isinstance(line, bytes) else b"")
        except LocalProtocolError as error:
            hint = _UPGRADE.get(error.reason)
            raise Refused("version" if hint else error.reason, f"{error}.", hint or _USE_SHIM) from None
        try:
            if hello.agent_id is not None:
                await self._hub.add_agent(
                    hello.agent_id,
                    token=hello.token,
                    base_url=hello.base_url,
                    ws_url=hello.ws_url,
                    e2ee=hello.e2ee,
                )
                if hello.token_visible:
                    self._hub.keys.seen_on_command_line(hello.agent_id)
            while older := self._by_session.get(hello.session):
                older.close()
                await asyncio.wait([older.task])
            session = self._hub.open_session(_session(hello))
        except PacerelledError as error:
            code = "agent_conflict" if isinstance(error, AgentExists) else error.code
            retry = isinstance(error, StoreUnavailable)
            raise Refused(code, error.message, error.hint, retry=retry) from None
        self._by_session[session.id] = connection
        connection.greeted = True
        return session


class _Connection:
    """A client's socket and the task that serves it."""

    def __init__(self, sock: socket.socket, serve: Callable[[_Connection], Coroutine[None, None, None]]) -> None:
        self.sock = sock
        self.writer: asyncio.StreamWriter | None = None
        self.greeted = False
        self.task = asyncio.create_task(serve(self))
        self.task.add_done_callback(lambda _: sock.close())  # also when it was cancelled before its first step

    def close(self) -> None:
        """Ends it at once. The task is done soon after."""
        if self.writer is not None:
            if not self.greeted:
                self.writer.write(_STOPPING)
            # Before the task: what the MCP layer answers to calls that it cancels must not reach the shim, which
            # would take it for the call's result instead of making the call again.
            self.writer.transport.abort()
        self.task.cancel()


_USE_SHIM = "Connect with pacerelle-mcp of the daemon's version; it speaks this protocol."
_UPGRADE = {
    "shim_too_old": "Run `pip install --upgrade pacerelled` where the host's pacerelle-mcp is, then restart the host.",
    "daemon_too_old": "Run `pip install --upgrade pacerelled` where the daemon is, then `pacerelle stop`: the next call"
    " starts the new one.",
}
_STOPPING = refused_line(code="stopping", message="The daemon is stopping.", hint="Connect again.", retry=True)


def _session(hello: Hello) -> Session:
    return Session(
        id=hello.session,
        transport="stdio",
        agent_id=hello.agent_id,
        pid=hello.pid,
        shim=hello.shim[:100],
        host=hello.host or host_name(hello.pid),
        cwd=hello.cwd,
        in_flight=hello.in_flight,
        channel=hello.channel,
        offers=hello.offers,
    )
