"""The daemon over HTTP: its tokens decide who is let in and for which agent; its sessions are hosts like any other."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import secrets
from collections.abc import Collection, Hashable
from contextlib import suppress
from typing import Any, Final, cast

from mcp.server import Server
from starlette.datastructures import Headers

from pacerelled.agent.access import AccessToken
from pacerelled.agent.api import HubApi
from pacerelled.agent.model import HttpState, Session
from pacerelled.mcp.server import build_server

from .checks import LOOPBACK_NAMES, Refused
from .endpoint import PATH, Endpoint
from .listener import Listener

log = logging.getLogger(__name__)

AGENT_HEADER: Final = "Pacerelle-Agent"
MIN_IDLE: Final = 1800.0  # seconds
RETRY_TIME: Final = 5.0  # seconds between attempts to get a port that is in use


class HttpServer:
    """Serves `hub` at an IP address; port 0 is any that is free. `names`: other host names that this machine has.

    A session ends when it has been silent for `idle` seconds, or `MIN_IDLE` if that is longer: no earlier than its
    claims. How it is stands in `hub.http`.
    """

    def __init__(self, hub: HubApi, *, host: str, port: int, names: Collection[str], idle: float) -> None:
        self._hub = hub
        self._host, self._port = host, port
        address = ipaddress.ip_address(host)
        own = set() if address.is_unspecified else {host}
        self._endpoint = Endpoint(_Daemon(hub), names=LOOPBACK_NAMES | own | set(names), idle=max(idle, MIN_IDLE))
        self._warning = None
        if not address.is_loopback:
            self._warning = (
                f"MCP over HTTP listens at {host}, not on this machine only. It is not encrypted: whoever can read "
                "that network reads requests, replies and access tokens"
            )
        self._listener: Listener | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Listens from now on, or as soon as the port is free."""
        if self._warning:
            log.warning("%s", self._warning)
        self._hub.http = HttpState(warning=self._warning)
        self._hub.access.on_revoked = self._endpoint.revoke
        self._task = asyncio.create_task(self._listen(), name="http")

    async def stop(self) -> None:
        """Within a second and a half, also with open streams."""
        if self._task is None:
            return
        if self._listener is None:
            self._task.cancel()
        else:
            self._listener.stop()
        await self._endpoint.stop()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _listen(self) -> None:
        listener = await self._bound()
        self._listener = listener
        shown = "127.0.0.1" if ipaddress.ip_address(self._host).is_unspecified else self._host
        url = f"http://{f'[{shown}]' if ':' in shown else shown}:{listener.port}{PATH}"
        self._hub.http = HttpState(url=url, warning=self._warning)
        log.info("MCP over HTTP at %s", url)
        await listener.serve()

    async def _bound(self) -> Listener:
        while True:
            try:
                return Listener(self._endpoint, self._host, self._port)
            except OSError as error:
                why = (
                    "the port is in use" if error.errno == errno.EADDRINUSE else error.strerror or "it cannot be bound"
                )
                problem = f"MCP over HTTP cannot listen at {self._host}, port {self._port}: {why}"
                if self._hub.http is None or self._hub.http.problem != problem:
                    log.error("%s", problem)
                self._hub.http = HttpState(problem=problem, warning=self._warning)
                await asyncio.sleep(RETRY_TIME)


class _Daemon:
    """`endpoint.Backend`: an access token lets in, and one of its agents is meant."""

    def __init__(self, hub: HubApi) -> None:
        self._hub = hub

    def identify(self, token: str) -> AccessToken | None:
        return self._hub.access.find(token)

    def choose(self, grant: AccessToken, headers: Headers) -> Hashable:
        """The agent's id; None as long as there is none."""
        here = [agent.agent_id for agent in self._hub.agents()]
        named = headers.get(AGENT_HEADER)
        if named is not None:
            if grant.agents and named not in grant.agents:
                raise Refused(403, f"This token is not for the agent that {AGENT_HEADER} names")
            if named not in here:
                raise Refused(400, f"There is no agent here that {AGENT_HEADER} names")
            return named
        allowed = [agent_id for agent_id in here if not grant.agents or agent_id in grant.agents]
        if len(allowed) > 1:
            raise Refused(
                400, "There are several agents", f"Name one of them in the header {AGENT_HEADER}: {', '.join(allowed)}"
            )
        return next(iter(allowed or grant.agents), None)

    def open(self, grant: AccessToken, choice: Hashable, *, stateless: bool) -> _Host:
        agent_id = cast("str | None", choice)
        # A token's own session is the same one after a restart; that of a handshake is over then.
        session_id = f"token-{grant.id}-{agent_id or ''}" if stateless else secrets.token_hex(16)
        session = Session(id=session_id, transport="http", agent_id=agent_id, host=grant.label)
        server = build_server(self._hub, session, read_only=grant.read_only, labels=grant.labels)
        return _Host(self._hub, session, server)


class _Host:
    """`sessions.Client`: a session that the hub knows while its client is there."""

    def __init__(self, hub: HubApi, session: Session, server: Server[Any]) -> None:
        self.server = server
        self._hub = hub
        self._session = session

    def came(self) -> None:
        self._hub.open_session(self._session)

    def left(self) -> None:
        self._hub.close_session(self._session)
