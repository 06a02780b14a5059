"""The relay connection: connects, keeps alive, reconnects; hands frames over unparsed.

Wire: the relay protocol reference, section WebSocket. There is no acknowledgement of an outgoing frame; since
frames are ordered, a pong to a ping sent after it proves that the relay's endpoint has read it (`flushed`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Literal
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State as SocketState

from pacerelled.errors import FrameRefused, LinkError, NotConnected, RelayRejected, RelayUnreachable, TokenRefused

from .backoff import Backoff, Pace, retry_after
from .failures import unreachable
from .proxy import proxy_for

log = logging.getLogger(__name__)
# Its debug lines would contain the URL, and with it the token.
_quiet = logging.getLogger(f"{__name__}.websocket")
_quiet.setLevel(logging.CRITICAL)

State = Literal["connecting", "connected", "reconnecting", "disconnected", "stopped"]
MAX_FRAME = 32 * 1024 * 1024  # bytes; the official client ends its connection at 1 MiB
OPEN_TIMEOUT = 20.0  # seconds
CLOSE_TIMEOUT = 0.5  # for the other side's part in closing; then the socket is cut
TOO_LARGE = 1009  # close code: a frame of the other side's
REFUSING = (401, 403, 4401, 4403)  # HTTP status or close code: this token is no good
ENDED = {  # by close code
    1006: "the connection broke off",
    TOO_LARGE: f"the relay sent a frame of more than {MAX_FRAME >> 20} MiB",
    1012: "the relay is restarting",
    1013: "the relay is overloaded",
    4000: "another program connected as this agent",
    4001: "the token was replaced",
}


class RelayConnection:
    """One agent's WebSocket to the relay.

    `on_frame` is awaited for each frame, so a slow reader slows the relay down instead of filling memory. `prepare`
    runs before each attempt (publishing prekeys) and may raise LinkError, which counts as a failed attempt;
    `on_state` is told of changes.
    """

    def __init__(
        self,
        *,
        ws_url: str,
        token: Callable[[], str | None],
        prepare: Callable[[], Awaitable[None]],
        on_frame: Callable[[bytes], Awaitable[None]],
        on_state: Callable[[State], None],
        ping_interval: float = 20.0,
        ping_timeout: float = 20.0,
        reconnect_max: float = 30.0,
    ) -> None:
        self._ws_url = ws_url
        self._token = token
        self._prepare = prepare
        self._on_frame = on_frame
        self._on_state = on_state
        self._ping_interval = ping_interval
        self._ping_timeout = ping_timeout
        self._backoff = Backoff(reconnect_max)
        self._pace = Pace(2 * reconnect_max)
        self._ws: ClientConnection | None = None
        self._end: RelayUnreachable | None = None  # of the last connection
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._closing: asyncio.Task[None] | None = None
        self._refused_token: str | None = None
        self.connected = asyncio.Event()
        self.state: State = "disconnected"
        self.problem: str | None = None  # why there is no connection, for people
        self.hint = ""  # what to do about it, where that is known
        self.last_traffic: float | None = None  # monotonic seconds

    @property
    def refused(self) -> bool:
        """The relay does not accept the token: no attempts until `token_changed`."""
        return self._refused_token is not None and self._refused_token == self._token()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="relay-connection")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._set("stopped")

    def token_changed(self) -> None:
        """There is a new token, or somebody says that it is good: try again, now."""
        self._refused_token = None
        self._backoff.reset()
        self._pace.reset()
        self._wake.set()
        if self._ws is not None:
            self._closing = asyncio.create_task(self._ws.close(1000, "new token"))

    async def send(self, frame: str) -> None:
        """Writes one text frame.

        Raises NotConnected (nothing was written) and RelayUnreachable (the connection ended while writing);
        FrameRefused, one of these, if it did because a frame of ours was too large.
        """
        ws = self._ws
        if ws is None or ws.state is not SocketState.OPEN:
            raise NotConnected("The relay is not connected")
        log.debug("Relay: sending a frame of %d characters", len(frame))
        try:
            await ws.send(frame)
        except ConnectionClosed as error:
            raise _ended(error, "while sending") from error

    async def flushed(self) -> None:
        """Returns when the relay has read everything sent before. Raises as `send` if the link ends first."""
        ws = self._ws
        if ws is None:
            raise self._end or NotConnected("The relay is not connected")
        try:
            pong = await ws.ping()
            await pong
        except ConnectionClosed as error:
            raise _ended(error, "before it confirmed") from error
        self.last_traffic = time.monotonic()

    async def _run(self) -> None:
        attempt: State = "connecting"
        while True:
            self._wake.clear()
            token = self._token()
            if not token or self.refused:
                self.problem = "the relay refused the token" if token else "there is no token"
                self._set("disconnected")
                await self._wake.wait()
                continue
            self._set(attempt)
            attempt = "reconnecting"
            lasted, at_least = 0.0, 0.0
            self._pace.attempt(time.monotonic())
            try:
                await self._prepare()
                lasted = await self._connect_once(token)
            except InvalidStatus as error:
                status = error.response.status_code
                self.problem, self.hint = f"the relay answered {status}", ""
                headers = error.response.headers
                at_least = retry_after(headers.get("Retry-After"), headers.get("Date"))
                if status in REFUSING:
                    self._refused_token = token
            except LinkError as error:
                self.problem, self.hint = error.message, error.hint
                if isinstance(error, RelayRejected):
                    at_least, self.hint = error.retry_after, ""
                elif isinstance(error, TokenRefused):
                    self._refused_token = token
            except Exception as error:  # whatever it is, the agent must not stay silent for it
                found = unreachable(error)
                self.problem, self.hint = found.message, found.hint
            if self.refused:
                continue
            self._set("reconnecting")
            at_least = max(at_least, self._pace.wait(time.monotonic()))
            delay = self._backoff.next(lasted=lasted, at_least=at_least)
            log.info("Relay: %s; next attempt in %.1f s", self.problem, delay)
            try:
                await asyncio.wait_for(self._wake.wait(), delay)
            except TimeoutError:
                continue

    async def _connect_once(self, token: str) -> float:
        """Connects and reads until the connection ends; returns how long it stood, in seconds."""
        options: dict[str, Any] = {
            "max_size": MAX_FRAME,
            "max_queue": 4,  # frames; what we do not take stays in the socket
            "compression": None,  # ciphertext
            "open_timeout": OPEN_TIMEOUT,
            "close_timeout": CLOSE_TIMEOUT,
            "ping_interval": None,  # `_keepalive` does it, and notes that the relay answered
            "proxy": proxy_for(self._ws_url),
            "logger": _quiet,
        }
        ws = await connect(f"{self._ws_url}/ws/agent?token={quote(token, safe='')}", **options)
        started = time.monotonic()
        if token != self._token():
            await _close(ws)
            self.problem = "there is a new token"
            return 0.0
        self._ws, self.problem, self.hint = ws, None, ""
        self.last_traffic = started
        keepalive = asyncio.create_task(self._keepalive(ws), name="relay-keepalive")
        self._set("connected")
        self.connected.set()
        try:
            while True:
                # Undecoded: a frame that is no UTF-8 is one bad frame, not the end of the connection.
                frame = await ws.recv(decode=False)
                self.last_traffic = time.monotonic()
                log.debug("Relay: a frame of %d bytes", len(frame))
                await self._on_frame(frame)
        except ConnectionClosed as error:
            self._end = _ended(error, "before it confirmed")
            end = error.rcvd or error.sent  # the latter where a frame was too large for us
            code = end.code if end else 1006
            if isinstance(self._end, FrameRefused):
                self.problem = "the relay does not take frames as large as one of ours"
            elif self.problem is None:  # the keepalive may know better
                self.problem = ENDED.get(code, f"the relay closed the connection ({code})")
            if code in REFUSING:
                self._refused_token = token
        finally:
            self._ws = None
            self.connected.clear()
            keepalive.cancel()
            await _close(ws)
        return time.monotonic() - started

    async def _keepalive(self, ws: ClientConnection) -> None:
        """Ends a connection whose other side no longer answers, though nothing has closed it."""
        while True:
            await asyncio.sleep(self._ping_interval)
            try:
                async with asyncio.timeout(self._ping_timeout):
                    await (await ws.ping())
            except TimeoutError:
                self.problem = "the relay did not answer a ping"
                ws.transport.abort()
                return
            except ConnectionClosed:
                return
            self.last_traffic = time.monotonic()

    def _set(self, state: State) -> None:
        if state != self.state:
            self.state = state
            self._on_state(state)


def _ended(error: ConnectionClosed, when: str) -> RelayUnreachable:
    """With the code sent by us it was the relay's frame that was too large, also if the relay repeats the code."""
    if error.rcvd is not None and error.rcvd.code == TOO_LARGE and error.rcvd_then_sent is not False:
        return FrameRefused("The relay does not take frames as large as one of ours")
    return RelayUnreachable(f"The relay connection ended {when}")


async def _close(ws: ClientConnection) -> None:
    """Ends the socket within CLOSE_TIMEOUT, whatever the other side does; at once when we are being cancelled."""
    closing = asyncio.create_task(ws.close())
    try:
        await asyncio.wait([closing], timeout=CLOSE_TIMEOUT)
    finally:
        ws.transport.abort()  # also where the close frame is stuck behind what the other side does not read
        await asyncio.gather(closing, return_exceptions=True)
