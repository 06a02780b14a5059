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
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, WebSocketException

from pacerelled.errors import LinkError, RelayUnreachable

from .backoff import Backoff

log = logging.getLogger(__name__)
# Its debug lines would contain the URL, and with it the token.
_quiet = logging.getLogger(f"{__name__}.websocket")
_quiet.setLevel(logging.CRITICAL)

State = Literal["connecting", "connected", "reconnecting", "disconnected", "stopped"]
MAX_FRAME = 32 * 1024 * 1024  # bytes; the official client ends its connection at 1 MiB
OPEN_TIMEOUT = 20.0  # seconds
CLOSE_TIMEOUT = 1.0


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
        self._ws: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self.connected = asyncio.Event()
        self.state: State = "disconnected"
        self.refused = False  # the relay does not accept the token: no attempts until there is a new one
        self.problem: str | None = None  # why there is no connection, for people
        self.last_traffic: float | None = None  # monotonic seconds

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="relay-connection")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._set("stopped")

    def token_changed(self) -> None:
        """A new token is there: try again, now."""
        self.refused = False
        self._backoff.reset()
        self._wake.set()
        if self._ws is not None:
            asyncio.get_running_loop().create_task(self._ws.close(1000, "new token"))

    async def send(self, frame: str) -> None:
        """Writes one text frame. Raises RelayUnreachable when there is no connection (or it ended while writing)."""
        ws = self._ws
        if ws is None:
            raise RelayUnreachable("The relay is not connected")
        try:
            await ws.send(frame)
        except ConnectionClosed as error:
            raise RelayUnreachable("The relay connection ended while sending") from error

    async def flushed(self) -> None:
        """Returns when the relay has read everything sent before. Raises RelayUnreachable if the link ends first."""
        ws = self._ws
        if ws is None:
            raise RelayUnreachable("The relay is not connected")
        try:
            pong = await ws.ping()
            await pong
        except ConnectionClosed as error:
            raise RelayUnreachable("The relay connection ended before it confirmed") from error
        self.last_traffic = time.monotonic()

    async def _run(self) -> None:
        first = True
        while True:
            self._wake.clear()
            if self.refused or not self._token():
                self._set("disconnected")
                self.problem = "the relay refused the token" if self.refused else "there is no token"
                await self._wake.wait()
                continue
            self._set("connecting" if first else "reconnecting")
            lasted, at_least = 0.0, 0.0
            try:
                await self._prepare()
                lasted = await self._connect_once()
                self.problem = "the relay closed the connection"
            except asyncio.CancelledError:
                raise
            except InvalidStatus as error:
                status = error.response.status_code
                self.refused = status in (401, 403)
                self.problem = f"the relay answered {status}"
                at_least = _retry_after(error.response.headers.get("Retry-After"))
            except LinkError as error:
                self.refused = error.code == "token_refused"
                self.problem = error.message
            except (OSError, TimeoutError, InvalidHandshake, WebSocketException, ValueError) as error:
                # Only the type: the text may quote the URL.
                self.problem = f"the relay cannot be reached ({_reason(error)})"
            if self.refused:
                continue
            first = False
            self._set("reconnecting")
            delay = self._backoff.next(lasted=lasted, at_least=at_least)
            log.info("Relay: %s; next attempt in %.1f s", self.problem, delay)
            try:
                await asyncio.wait_for(self._wake.wait(), delay)
            except TimeoutError:
                continue

    async def _connect_once(self) -> float:
        """Connects and reads until the connection ends; returns how long it stood, in seconds."""
        token = self._token() or ""
        options: dict[str, Any] = {
            "max_size": MAX_FRAME,
            "open_timeout": OPEN_TIMEOUT,
            "close_timeout": CLOSE_TIMEOUT,
            "ping_interval": self._ping_interval,
            "ping_timeout": self._ping_timeout,
            "logger": _quiet,
        }
        ws = await connect(f"{self._ws_url}/ws/agent?token={quote(token, safe='')}", **options)
        started = time.monotonic()
        self._ws, self.problem = ws, None
        self.last_traffic = started
        self._set("connected")
        self.connected.set()
        try:
            while True:
                # Undecoded: a frame that is no UTF-8 is one bad frame, not the end of the connection.
                frame = await ws.recv(decode=False)
                self.last_traffic = time.monotonic()
                await self._on_frame(frame)
        except ConnectionClosed:
            pass
        finally:
            self._ws = None
            self.connected.clear()
            await _close(ws)
        if ws.close_code in (4401, 4403):
            self.refused = True
        return time.monotonic() - started

    def _set(self, state: State) -> None:
        if state != self.state:
            self.state = state
            self._on_state(state)


async def _close(ws: ClientConnection) -> None:
    """Ends the socket within CLOSE_TIMEOUT, whatever the other side does, also when we are being cancelled."""
    closing = asyncio.create_task(ws.close())
    try:
        await asyncio.shield(closing)
    except asyncio.CancelledError:
        ws.transport.abort()
        await asyncio.gather(closing, return_exceptions=True)
        raise


def _retry_after(value: str | None) -> float:
    """Seconds asked for by a Retry-After header (its numeric form), at most ten minutes."""
    return min(float(value), 600.0) if value and value.isdigit() else 0.0


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
