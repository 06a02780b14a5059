"""The WebSocket to the relay: frames in, taken in bursts, acknowledged after the commit; reconnects for ever."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable

import aiohttp

from pacerelle_protocol.payload import pack_b64

from . import backoff, inbox
from .core import Core
from .errors import HomeUnusable, RelayError, TokenRefused
from .inbox import Taken
from .model import Link as State

log = logging.getLogger(__name__)

BURST = 64  # frames in one commit


class Link:
    """`state` is for people; `unreadable` counts the frames that not even a sender could be read from."""

    def __init__(
        self, core: Core, *, connected: Callable[[], Awaitable[None]], taken: Callable[[Taken], Awaitable[None]]
    ) -> None:
        self._core = core
        self._connected = connected
        self._taken = taken
        self.state: State = "connecting"
        self.problem: RelayError | None = None
        self.unreadable = 0
        self.up = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled, or the relay refuses the token."""
        attempt = 0
        try:
            while True:
                try:
                    await self._announce()
                    async with self._core.api.socket() as ws:
                        attempt = 0
                        self.state, self.problem = "connected", None
                        self.up.set()
                        await self._serve(ws)
                except TokenRefused as e:
                    self.state, self.problem = "refused", e
                    log.error("%s", e.message)
                    return
                except RelayError as e:
                    self.problem = e
                    log.info("%s", e.message)
                except HomeUnusable as e:
                    log.error("what came in cannot be stored: %s", e.message)
                self.up.clear()
                self.state = "reconnecting"
                await asyncio.sleep(backoff.delay(attempt))
                attempt += 1
        finally:
            self.up.clear()
            if self.state != "refused":
                self.state = "closed"

    async def _announce(self) -> None:
        """Tell the relay this device's identity key, once."""
        device = await self._core.run(self._core.store.device)
        if device is None or device.announced:
            return
        key = await self._core.run(lambda: self._core.store.signal.identity_key)
        await self._core.api.announce(pack_b64(key))
        await self._core.run(self._core.store.announced)

    async def _serve(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        """A reader beside the store: frames that come while a commit runs share the next one."""
        frames: asyncio.Queue[str | bytes | None] = asyncio.Queue(maxsize=4 * BURST)

        async def read() -> None:
            try:
                async for message in ws:
                    if message.type in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                        await frames.put(message.data)
            except aiohttp.ClientError as e:
                log.info("the connection to the relay broke: %s", e)
            await frames.put(None)

        reader = asyncio.create_task(read())
        try:
            await self._connected()
            while (frame := await frames.get()) is not None:
                burst = [frame]
                while len(burst) < BURST and not frames.empty():
                    following = frames.get_nowait()
                    if following is None:
                        await self._take(ws, burst)
                        return
                    burst.append(following)
                await self._take(ws, burst)
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _take(self, ws: aiohttp.ClientWebSocketResponse, burst: list[str | bytes]) -> None:
        taken = await self._core.run(inbox.take, self._core, burst)
        self.unreadable += taken.unreadable
        await self._taken(taken)
        if taken.seq is not None and not ws.closed:
            await ws.send_str(json.dumps({"type": "ACK", "seq": taken.seq}))
