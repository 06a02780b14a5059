"""A webhook's receiver for tests: notes what comes, and answers as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from aiohttp import web


@dataclass
class Got:
    headers: dict[str, str]
    body: bytes

    @property
    def delivery(self) -> dict[str, Any]:
        return dict(json.loads(self.body))

    @property
    def events(self) -> list[dict[str, Any]]:
        return list(self.delivery["events"])

    def signed_with(self, secret: str) -> bool:
        fields = dict(part.split("=") for part in self.headers["Pacerelle-Signature"].split(","))
        expected = hmac.new(secret.encode(), f"{fields['t']}.".encode() + self.body, hashlib.sha256).hexdigest()
        return expected == fields["v1"]


class Receiver:
    """`answer(number of the request, from 0)` gives a status, a response, or None: the connection ends."""

    def __init__(self) -> None:
        self.got: list[Got] = []
        self.answer: Callable[[int], Any] = lambda number: 204
        self.delay = 0.0
        self.url = ""

    @property
    def types(self) -> list[str]:
        return [event["type"] for each in self.got for event in each.events]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        number = len(self.got)
        self.got.append(Got(dict(request.headers), await request.read()))
        await asyncio.sleep(self.delay)
        found = self.answer(number)
        if found is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        return found if isinstance(found, web.StreamResponse) else web.Response(status=found)


@contextlib.asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    running = Receiver()
    app = web.Application()
    app.router.add_post("/{anything:.*}", running.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    running.url = f"http://127.0.0.1:{port}/hook"
    try:
        yield running
    finally:
        await runner.cleanup()
