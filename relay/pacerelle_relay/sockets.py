"""One WebSocket of an agent or a device: its mailbox flows out, its frames are done in order.

A frame that comes in is handed to the database without waiting, so that a burst becomes one commit. A ping is answered
only after everything before it has been committed: that makes the pong the proof that a sender may rely on.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from sqlite3 import Connection
from typing import Concatenate

from aiohttp import WSCloseCode, WSMsgType, web

from . import accounts, agents, mail
from .accounts import Agent, Device
from .errors import Malformed, RelayError, StorageFailed, Unauthorized
from .frames import Message, numbered, read_agent_frame, read_device_frame
from .hub import REVOKED
from .mail import Waiting
from .services import Services

log = logging.getLogger(__name__)

HEARTBEAT_S = 60.0  # between the relay's pings; half of it is the time to answer. Agents' handlers may block a while
CLOSE_S = 2.0
MAX_IN_FLIGHT = 256  # frames handed to the database and not yet committed
MAX_IN_FLIGHT_BYTES = 8 * 1024 * 1024


class Socket(ABC):
    """What agents' and devices' connections have in common. `serve` is the connection's whole life."""

    def __init__(self, services: Services, mailbox: str, authenticate: Callable[[Connection], Agent | Device]) -> None:
        self._services = services
        self._mailbox = mailbox
        self._authenticate = authenticate
        self._ws = web.WebSocketResponse(
            autoping=False,
            heartbeat=HEARTBEAT_S,
            compress=False,  # ciphertext
            max_msg_size=services.limits.frame_bytes,
        )
        self._news = asyncio.Event()
        self._transient: list[str] = []
        self._newest: asyncio.Future[tuple[str, ...] | None] | None = None
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._closing: asyncio.Task[None] | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._ended = asyncio.Event()

    # What differs

    @abstractmethod
    def take(self, text: str) -> None:
        """Hands a frame to the database. Raises Malformed."""

    @abstractmethod
    def render(self, item: Waiting) -> str:
        """The frame that carries it."""

    async def sent(self, portion: list[Waiting]) -> None:  # noqa: B027 - nothing to do for a device
        """A portion of the mailbox has been written."""

    def take_pong(self, data: bytes) -> None:  # noqa: B027 - nothing to do for a device
        """The peer has read what was written before the ping with this data."""

    @abstractmethod
    def seen(self) -> None:
        """Notes the time in the database."""

    # Receiver

    def wake(self) -> None:
        self._news.set()

    def tell(self, frame: str) -> None:
        self._transient.append(frame)
        self._news.set()

    def end(self, code: int, reason: str) -> None:
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(code, reason))

    async def ended(self) -> None:
        await self._ended.wait()

    # Life

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        await self._ws.prepare(request)
        self._transport = request.transport
        hub = self._services.hub
        hub.attach(self._mailbox, self)
        self.seen()
        pump = asyncio.create_task(self._pump())
        try:
            await self._read()
        finally:
            hub.detach(self._mailbox, self)
            pump.cancel()
            if self._closing is not None:
                await asyncio.wait([self._closing])
            await asyncio.wait([pump])
            self.seen()
            self._abort()
            self._ended.set()
        return self._ws

    async def _close(self, code: int, reason: str) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._ws.close(code=code, message=reason.encode())
        except TimeoutError:
            self._abort()

    def _abort(self) -> None:
        """Drops what a peer does not read: a transport that is only closed waits for that for ever."""
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.abort()

    async def _read(self) -> None:
        while True:
            message = await self._ws.receive()
            if message.type is WSMsgType.TEXT:
                await self._take(message.data)
            elif message.type is WSMsgType.PING:
                await self._settle()
                if self._closing is not None:
                    return
                try:
                    await self._ws.pong(message.data)
                except ConnectionError:
                    return
            elif message.type is WSMsgType.PONG:
                self.take_pong(bytes(message.data))
            elif message.type is WSMsgType.BINARY:
                log.info("%s sent a binary frame: ignored", self._mailbox)
            else:
                return

    async def _take(self, text: str) -> None:
        try:
            self.take(text)
        except Malformed as error:
            log.warning("%s sent a bad frame, ignored: %s", self._mailbox, error)
        if self._in_flight >= MAX_IN_FLIGHT or self._in_flight_bytes >= MAX_IN_FLIGHT_BYTES:
            await self._settle()

    def submit[**P](
        self,
        size: int,
        work: Callable[Concatenate[Connection, P], tuple[str, ...] | None],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> None:
        """Has the work done in its turn; wakes the mailboxes that it returns."""
        future = self._services.database.submit(work, *args, **kwargs)
        self._in_flight += 1
        self._in_flight_bytes += size

        def done(future: asyncio.Future[tuple[str, ...] | None]) -> None:
            self._in_flight -= 1
            self._in_flight_bytes -= size
            error = future.exception()
            if error is None:
                self._services.hub.wake(future.result() or ())
            elif isinstance(error, RelayError) and not isinstance(error, StorageFailed):
                log.warning("a frame of %s was dropped: %s", self._mailbox, error)
            else:  # it may be lost, so nothing after it may be confirmed
                log.error("a frame of %s could not be stored", self._mailbox, exc_info=error)
                self.end(WSCloseCode.INTERNAL_ERROR, "the relay could not store a frame")

        future.add_done_callback(done)
        self._newest = future

    async def _settle(self) -> None:
        """Waits until everything that was submitted has been committed or refused."""
        if self._newest is not None:
            await asyncio.wait([self._newest])

    async def _pump(self) -> None:
        after = 0
        try:
            # Once more: the token may have been revoked before the hub knew this connection.
            await self._services.database.run(self._authenticate)
            while True:
                self._news.clear()
                transient, self._transient = self._transient, []
                for frame in transient:
                    await self._ws.send_str(frame)
                portion = await self._services.database.run(mail.waiting, self._mailbox, after)
                for item in portion:
                    await self._ws.send_str(self.render(item))
                    after = item.seq
                if portion:
                    await self.sent(portion)
                else:
                    await self._news.wait()
        except ConnectionError:
            return  # the reading side sees the end too
        except Unauthorized:
            self.end(REVOKED, "the token is no longer valid")
        except Exception:
            log.exception("the mailbox of %s could not be read", self._mailbox)
            self.end(WSCloseCode.INTERNAL_ERROR, "the relay could not read the mailbox")


class AgentSocket(Socket):
    """The relay protocol reference's `/ws/agent`."""

    def __init__(self, services: Services, agent: Agent, token: str) -> None:
        super().__init__(services, agent.id, partial(accounts.agent_by_token, token=token))
        self._agent = agent

    def take(self, text: str) -> None:
        frame = read_agent_frame(text)
        limits, now = self._services.limits, self._services.now()
        if isinstance(frame, Message):
            self.submit(len(text), mail.send_from_agent, self._agent, frame, limits, now)
        else:
            self.submit(len(text), mail.acknowledge_read, self._agent, frame, limits, now)

    def render(self, item: Waiting) -> str:
        return item.frame

    async def sent(self, portion: list[Waiting]) -> None:
        # Agents have no acknowledgement for notices, so a ping asks whether they have arrived.
        notices = [item.seq for item in portion if item.notice]
        if notices:
            await self._ws.ping(str(notices[-1]).encode())

    def take_pong(self, data: bytes) -> None:
        if data.isdigit():
            seq = min(int(data), 2**63 - 1)
            self.submit(0, mail.acknowledge_notices, self._agent, seq)

    def seen(self) -> None:
        self._services.database.submit(agents.seen, self._agent, self._services.now())


class DeviceSocket(Socket):
    """docs/relay.md's `/human/v1/ws`."""

    def __init__(self, services: Services, device: Device, token: str) -> None:
        super().__init__(services, device.id, partial(accounts.device_by_token, token=token))
        self._device = device

    def take(self, text: str) -> None:
        ack = read_device_frame(text)
        self.submit(len(text), mail.acknowledge_up_to, self._device, ack.seq)

    def render(self, item: Waiting) -> str:
        return numbered(item.frame, item.seq)

    def seen(self) -> None:
        self._services.database.submit(accounts.device_seen, self._device, self._services.now())
