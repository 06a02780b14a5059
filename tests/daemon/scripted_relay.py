"""A relay on a real port that does what a test tells it: it keeps nothing, checks nothing, and can misbehave."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from aiohttp import WSMsgType, web

from .polling import until


class ScriptedRelay:
    """The agent's side of a relay (the relay protocol reference). `async with ScriptedRelay() as relay`."""

    def __init__(self) -> None:
        self.url = ""
        self.bundles: list[dict[str, Any]] = []
        self.one_time: list[dict[str, Any]] = []
        self.group_keys: dict[str, Any] = {}
        self.group_key_calls = 0
        self.refuse: dict[str, int] = {}  # path -> status
        self.received: list[dict[str, Any]] = []
        self.raw: list[str] = []
        self.tokens: list[str] = []
        self.valid: set[str] | None = None  # the tokens that are accepted; None: any
        self.refused: list[str] = []
        self.connections = 0
        self.answers_pings = True
        self.ends_at: Callable[[str], int | None] = lambda frame: None  # close code; 0: without a word
        self.blobs: dict[str, bytes] = {}
        self._sockets: dict[str, web.WebSocketResponse] = {}
        self._runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 27)
        app.add_routes(
            [
                web.put("/agent/prekey-bundle", self._bundle),
                web.post("/agent/one-time-prekeys", self._one_time),
                web.get("/agent/group-keys", self._group_keys),
                web.post("/agent/blobs", self._upload),
                web.get("/agent/blobs/{id}", self._download),
                web.get("/ws/agent", self._serve),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    # What tests do

    async def connected(self, token: str = "token") -> web.WebSocketResponse:
        return await until(lambda: self._sockets.get(token), "the agent's connection")

    async def push(self, *frames: str, token: str = "token") -> None:
        socket = await self.connected(token)
        for frame in frames:
            await socket.send_str(frame)

    async def push_raw(self, data: bytes, *, kind: WSMsgType = WSMsgType.TEXT, token: str = "token") -> None:
        """Any bytes as a frame, also such as no text may have."""
        socket = await self.connected(token)
        writer = socket._writer
        assert writer is not None
        await writer.send_frame(data, kind)

    async def drop(self, token: str = "token") -> None:
        """Cuts the connection without a word."""
        socket = await self.connected(token)
        await self._end(socket, 0)
        await until(lambda: self._sockets.get(token) is not socket, "the end of the connection")

    async def close(self, code: int, token: str = "token") -> None:
        await (await self.connected(token)).close(code=code)

    def of_type(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.received if frame["type"] == kind]

    @property
    def acked(self) -> list[str]:
        return [frame["message_id"] for frame in self.of_type("ACK_READ")]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.of_type("MSG")

    # The wire

    def _check(self, request: web.Request) -> None:
        if status := self.refuse.get(request.path):
            raise _status(status)
        self._check_token(request.headers.get("Authorization", "").removeprefix("Bearer "))

    def _check_token(self, token: str) -> None:
        self.tokens.append(token)
        if self.valid is not None and token not in self.valid:
            self.refused.append(token)
            raise _status(401)

    @staticmethod
    async def _end(socket: web.WebSocketResponse, code: int) -> None:
        if code:
            await socket.close(code=code)
            return
        request = socket._req
        assert request is not None
        assert request.transport is not None
        request.transport.abort()

    async def _bundle(self, request: web.Request) -> web.Response:
        self._check(request)
        self.bundles.append(await request.json())
        return web.json_response({"ok": True})

    async def _one_time(self, request: web.Request) -> web.Response:
        self._check(request)
        self.one_time.append(await request.json())
        return web.json_response({"ok": True})

    async def _group_keys(self, request: web.Request) -> web.Response:
        self.group_key_calls += 1
        self._check(request)
        return web.json_response(self.group_keys.get(request.query["conversation_id"], []))

    async def _upload(self, request: web.Request) -> web.Response:
        self._check(request)
        name = f"blob{len(self.blobs)}"
        self.blobs[name] = await request.read()
        return web.json_response({"id": name}, status=201)

    async def _download(self, request: web.Request) -> web.Response:
        self._check(request)
        return web.Response(body=self.blobs[request.match_info["id"]])

    async def _serve(self, request: web.Request) -> web.WebSocketResponse:
        if status := self.refuse.get(request.path):
            raise _status(status)
        token = request.query["token"]
        self._check_token(token)
        socket = web.WebSocketResponse(autoping=False, max_msg_size=1 << 27)
        await socket.prepare(request)
        self.connections += 1
        self._sockets[token] = socket
        try:
            async for message in socket:
                if message.type is WSMsgType.TEXT:
                    self.raw.append(message.data)
                    self.received.append(json.loads(message.data))
                    if (code := self.ends_at(message.data)) is not None:
                        await self._end(socket, code)
                        break
                elif message.type is WSMsgType.PING and self.answers_pings:
                    await socket.pong(message.data)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            if self._sockets.get(token) is socket:
                del self._sockets[token]
        return socket


def _status(status: int) -> web.HTTPException:
    class Refusal(web.HTTPException):
        status_code = status

    return Refusal(headers={"Retry-After": "1"} if status == 503 else None)
