"""Sits between a phone and the relay on real connections, to drop, spoil or add what passes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import aiohttp
from aiohttp import web

Answer = tuple[int, bytes]  # status and body


class Proxy:
    """`refuse` may answer a request in the relay's place (None: let it through); `answer` may change what the relay
    says (None: drop the connection instead of answering).
    """

    def __init__(self, relay_url: str) -> None:
        self._relay_url = relay_url
        self.refuse: Callable[[str], Answer | None] = lambda path: None
        self.answer: Callable[[str, str, int, bytes], Answer | None] = lambda method, path, status, body: (status, body)
        self.requests: list[tuple[str, str, bytes]] = []
        self.acks: list[str] = []
        self._sockets: set[web.WebSocketResponse] = set()
        self.url = ""

    async def __aenter__(self) -> Proxy:
        self._client = aiohttp.ClientSession()
        app = web.Application(client_max_size=1 << 30)
        app.router.add_get("/human/v1/ws", self._socket)
        app.router.add_route("*", "/{path:.*}", self._http)
        self._runner = web.AppRunner(app, shutdown_timeout=1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.drop()
        await self._runner.cleanup()
        await self._client.close()

    async def inject(self, frame: str | bytes) -> None:
        """To every connected phone, as if the relay had sent it."""
        for ws in list(self._sockets):
            await (ws.send_str(frame) if isinstance(frame, str) else ws.send_bytes(frame))

    async def drop(self) -> None:
        """Break the phones' WebSockets."""
        await asyncio.gather(*(ws.close() for ws in list(self._sockets)))

    @property
    def connected(self) -> bool:
        return bool(self._sockets)

    async def _http(self, request: web.Request) -> web.Response:
        body = await request.read()
        self.requests.append((request.method, request.path, body))
        if (refusal := self.refuse(request.path)) is not None:
            return web.Response(status=refusal[0], body=refusal[1])
        headers = {k: v for k, v in request.headers.items() if k in ("Authorization", "Content-Type")}
        async with self._client.request(
            request.method, f"{self._relay_url}{request.path_qs}", data=body, headers=headers
        ) as answer:
            changed = self.answer(request.method, request.path, answer.status, await answer.read())
        if changed is None:
            assert request.transport is not None
            request.transport.abort()
            raise ConnectionResetError
        return web.Response(status=changed[0], body=changed[1], content_type="application/json")

    async def _socket(self, request: web.Request) -> web.StreamResponse:
        if (refusal := self.refuse(request.path)) is not None:
            return web.Response(status=refusal[0], body=refusal[1])
        headers = {"Authorization": request.headers["Authorization"]}
        phone = web.WebSocketResponse()
        async with self._client.ws_connect(f"{self._relay_url}{request.path}", headers=headers) as relay:
            await phone.prepare(request)
            self._sockets.add(phone)
            try:
                down = asyncio.create_task(self._pass_down(relay, phone))
                async for message in phone:
                    self.acks.append(message.data)
                    await relay.send_str(message.data)
                down.cancel()
                await asyncio.gather(down, return_exceptions=True)
            finally:
                self._sockets.discard(phone)
        return phone

    async def _pass_down(self, relay: aiohttp.ClientWebSocketResponse, phone: web.WebSocketResponse) -> None:
        async for message in relay:
            await phone.send_str(message.data)
        await phone.close()
