"""MCP over HTTP of a real hub and store in this process, and clients of it: the official SDK's and one that is rude."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
import httpx2
from mcp.client.streamable_http import streamable_http_client

from mcp import Client
from pacerelled.agent.access import Scope
from pacerelled.servers.http.server import HttpServer
from pacerelled.store import requests
from pacerelled.store.requests import NewRequest
from tests.daemon.core import Core
from tests.daemon.polling import until

ERAS = ("legacy", "2026-07-28")
MODERN = "2026-07-28"
NOWHERE = "http://127.0.0.1:9"  # no relay: nothing here needs one


class Served:
    """`async with Served(folder) as served`. There is one agent, a1."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.core = Core(folder / "state", **settings)
        self.server: HttpServer
        self.port = 0
        self._numbers = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    async def __aenter__(self) -> Self:
        await self.core.start()
        await self.core.agent(NOWHERE)
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()
        await self.core.stop()

    async def listen(self) -> None:
        self.server = HttpServer(self.core.hub, host="127.0.0.1", port=self.port, names=("mybox",), idle=1800.0)
        self.server.start()
        await until(lambda: self.core.hub.http and self.core.hub.http.url, "the port")
        assert self.core.hub.http is not None
        assert self.core.hub.http.url is not None
        self.port = int(self.core.hub.http.url.split(":")[2].split("/")[0])

    async def restart(self) -> None:
        """Another daemon on the same store and port."""
        await self.server.stop()
        await self.core.restart()
        await self.listen()

    async def token(self, label: str = "laptop", scope: Scope = "full", *agents: str) -> str:
        return (await self.core.hub.access.create(label, scope, agents))[1]

    async def ask(self, text: str = "please", agent_id: str = "a1") -> str:
        """A request that somebody wrote; returns its id."""
        self._numbers += 1
        new = NewRequest(f"m{self._numbers}", "c1", "u1", "d1", False, True, "text", text, None, None, None)
        await self.core.store.run(lambda tx: requests.insert_request(tx, agent_id, new, f"digest {self._numbers}"))
        self.core.hub.agent(agent_id).look_again()
        return new.message_id

    def hosts(self) -> list[dict[str, Any]]:
        return self.core.hub.sessions()

    @asynccontextmanager
    async def client(self, token: str, era: str, **options: Any) -> AsyncIterator[Client]:
        """The official client."""
        async with AsyncExitStack() as stack:
            headers = {"Authorization": f"Bearer {token}"} | options.pop("headers", {})
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60.0))
            transport = streamable_http_client(self.url, http_client=http)
            yield await stack.enter_async_context(Client(transport, mode=era, **options))

    @asynccontextmanager
    async def raw(self, token: str | None, **headers: str) -> AsyncIterator[Raw]:
        given = {"Accept": "application/json, text/event-stream", **headers}
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        async with aiohttp.ClientSession(headers=given, timeout=aiohttp.ClientTimeout(60)) as session:
            yield Raw(session, self.url)


class Raw:
    """A client of the handshake era that sends what it is told."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self.http = http
        self.url = url
        self.session_id: str | None = None

    def headers(self) -> dict[str, str]:
        return {"Mcp-Session-Id": self.session_id} if self.session_id else {}

    async def post(self, body: Any, **headers: str) -> tuple[int, list[Any]]:
        """The status and the messages of the answer."""
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        given = {"Content-Type": "application/json", **self.headers(), **headers}
        async with self.http.post(self.url, data=data, headers=given) as response:
            if response.status < 400:
                self.session_id = response.headers.get("Mcp-Session-Id", self.session_id)
            text = await response.text()
        if response.content_type == "text/event-stream":
            return response.status, [e["message"] for e in events(text) if "message" in e]
        return response.status, [json.loads(text)] if text.startswith("{") else []

    async def call(self, method: str, request_id: int = 1, **params: Any) -> Any:
        status, found = await self.post({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        assert status == 200, found
        return found[-1]

    async def initialize(self, version: str = "2025-11-25") -> Any:
        answer = await self.call(
            "initialize", protocolVersion=version, capabilities={}, clientInfo={"name": "raw", "version": "1"}
        )
        assert (await self.post({"jsonrpc": "2.0", "method": "notifications/initialized"}))[0] == 202
        return answer

    async def tool(self, name: str, /, **arguments: Any) -> Any:
        return (await self.call("tools/call", name=name, arguments=arguments))["result"]


def events(text: str) -> list[dict[str, Any]]:
    """The events of an SSE stream: `id` and `message`, where they have them."""
    found = []
    for block in text.replace("\r\n", "\n").split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line and not line.startswith(":"))
        event: dict[str, Any] = {"id": fields["id"]} if "id" in fields else {}
        if fields.get("data"):
            event["message"] = json.loads(fields["data"])
        if event:
            found.append(event)
    return found
