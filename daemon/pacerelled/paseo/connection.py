"""The WebSocket to the Paseo daemon: connects, signs in, correlates answers, and comes back after a restart.

A daemon that is not there is a state, not an error. What a broken connection leaves open ends with PaseoUnavailable;
requests that only look are made again by themselves.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Literal

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI
from websockets.typing import Subprotocol

from pacerelled.errors import PaseoRefused, PaseoUnavailable, StoreError, place_of
from pacerelled.link.backoff import Backoff

from .frames import Answer, Push, Rejected, ServerInfo, hello, parse, request
from .target import Target

log = logging.getLogger(__name__)
_quiet = logging.getLogger(f"{__name__}.websocket")  # its debug lines would have the password and what agents write
_quiet.setLevel(logging.CRITICAL)

State = Literal["connecting", "connected", "disconnected", "refused", "stopped"]
HELLO_TIMEOUT = 15.0  # seconds until server_info, after which the daemon closes as well
ANSWER_TIMEOUT = 30.0  # seconds; some requests are never answered
RECONNECT_MAX = 10.0  # seconds: it is on this machine, and starts in a moment
PING = 20.0  # seconds, and as long for its answer
REFUSED = 4401  # close code: no or a wrong password

_HINT = "Start it with `paseo daemon start`, or the Paseo app; `pacerelle paseo status` shows where it is looked for."
_SIGN_IN = "Set `password` under [paseo] in config.toml, or PASEO_PASSWORD, to the Paseo daemon's password."


class PaseoConnection:
    """One client of the daemon for the life of this process.

    `on_push` is called for each push, in order. `on_connected` is awaited after each sign-in, while answers come in
    already; until it returns, only it may make requests, and if it raises PaseoError the connection starts anew.
    """

    def __init__(
        self,
        find_target: Callable[[], Target],
        *,
        on_push: Callable[[Push], None] = lambda push: None,
        on_connected: Callable[[PaseoConnection], Awaitable[None]] | None = None,
        on_state: Callable[[], None] = lambda: None,
        answer_timeout: float = ANSWER_TIMEOUT,
    ) -> None:
        self._find_target = find_target
        self._on_push = on_push
        self._on_connected = on_connected
        self._on_state = on_state
        self._answer_timeout = answer_timeout
        # Of this process only: two sockets with one client id would get each other's answers.
        self._client_id = f"pacerelled-{secrets.token_hex(8)}"
        self._numbers = itertools.count(1)
        self._waiting: dict[str, asyncio.Future[Answer]] = {}
        self._ws: ClientConnection | None = None
        self._ready = asyncio.Event()  # connected, and `on_connected` is through
        self._task: asyncio.Task[Any] | None = None
        self._backoff = Backoff(RECONNECT_MAX)
        self.state: State = "disconnected"
        self.problem: str | None = None  # why there is no connection, for people
        self.hint = ""
        self.target: Target | None = None
        self.server: ServerInfo | None = None
        self.connects = 0  # how often it was signed in

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="paseo-connection")

    async def try_once(self, timeout: float) -> None:
        """Connects once, instead of `start`: returns when requests can be made. Raises PaseoError if they cannot."""
        attempt = self._task = asyncio.create_task(self._connect_once(), name="paseo-connection")
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait({attempt, ready}, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if attempt.done():
            attempt.result()
        if not self._ready.is_set():
            raise self._unavailable(self.problem or "it has not answered yet")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._set("stopped")

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    def renew(self) -> None:
        """Ends the connection, to begin anew: something may have been missed."""
        if self._ws is not None:
            self._ws.transport.abort()

    async def ready(self, timeout: float) -> None:
        """Returns once requests can be made. Raises PaseoUnavailable after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            raise self._unavailable(self.problem or "it has not answered yet") from None

    async def look(self, kind: str, /, *, timeout: float | None = None, **fields: Any) -> dict[str, Any]:
        """A request that changes nothing: made again after a reconnection, within `timeout` seconds in all.

        Raises PaseoUnavailable and PaseoRefused.
        """
        timeout = timeout if timeout is not None else self._answer_timeout
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            await self.ready(max(left, 0.0))
            try:
                return await self.ask(kind, timeout=max(deadline - time.monotonic(), 0.001), **fields)
            except PaseoUnavailable:
                if self._ready.is_set() or time.monotonic() >= deadline:
                    raise

    async def ask(
        self, kind: str, /, *, timeout: float | None = None, request_id: str | None = None, **fields: Any
    ) -> dict[str, Any]:
        """One request, made once. The payload of its answer.

        Raises PaseoUnavailable (`sent` tells whether it may have been carried out) and PaseoRefused.
        """
        timeout = timeout if timeout is not None else self._answer_timeout
        request_id = request_id or f"{self._client_id}-{next(self._numbers)}"
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            await self.tell(kind, request_id=request_id, **fields)
            async with asyncio.timeout(timeout):
                answer = await future
        except TimeoutError:
            raise PaseoUnavailable(
                f"Paseo did not answer within {timeout:g} s ({kind.removesuffix('_request')})",
                hint="It is busy, or cannot do this. `pacerelle paseo test` shows whether it answers at all.",
                sent=True,
            ) from None
        finally:
            if self._waiting.get(request_id) is future:
                del self._waiting[request_id]
        if answer.error is not None:
            raise PaseoRefused(f"Paseo refused: {answer.error}", reason=answer.code)
        return answer.payload

    async def tell(self, kind: str, /, *, request_id: str, **fields: Any) -> None:
        """Writes a request whose answer nobody waits for. Raises PaseoUnavailable."""
        ws = self._ws
        if ws is None:
            raise self._unavailable(self.problem or "it is not connected")
        try:
            await ws.send(request(kind, request_id, fields))
        except ConnectionClosed:
            raise self._unavailable("the connection ended", sent=True) from None

    # -- the connection ----------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._set("connecting" if self.state != "refused" else "refused")
            lasted = 0.0
            try:
                lasted = await self._connect_once()
            except StoreError as error:
                self.problem, self.hint = f"the store cannot be used ({error.message})", error.hint
                self._set("disconnected")
            except PaseoRefused as error:
                self.problem, self.hint = error.message, error.hint
                self._set("refused")
            except PaseoUnavailable as error:
                self.problem, self.hint = error.message, error.hint
                self._set("disconnected")
            except Exception as error:  # whatever it is, it may pass with the next daemon
                log.warning("Paseo: %s", place_of(error))
                self.problem, self.hint = f"an error of ours ({type(error).__name__}), see the log", ""
                self._set("disconnected")
            await asyncio.sleep(self._backoff.next(lasted=lasted, at_least=0.1))

    async def _connect_once(self) -> float:
        """Connects, signs in, and reads until the connection ends, how long it stood being returned in seconds.

        Raises PaseoUnavailable and PaseoRefused.
        """
        target = self.target = self._find_target()
        try:
            ws = await connect(
                target.url,
                subprotocols=[Subprotocol(each) for each in target.subprotocols] or None,
                max_size=None,  # a timeline is one frame
                open_timeout=HELLO_TIMEOUT,
                close_timeout=0.5,
                ping_interval=PING,
                ping_timeout=PING,
                proxy=None,
                logger=_quiet,
            )
        except (OSError, InvalidHandshake, InvalidURI, TimeoutError) as error:
            raise PaseoUnavailable(f"Nothing that answers at {target.url} ({_words(error)})", hint=_HINT) from None
        started = time.monotonic()
        greeting: asyncio.Task[None] | None = None
        try:
            self.server = await self._sign_in(ws, target)
            self._ws, self.problem, self.hint = ws, None, ""
            self.connects += 1
            greeting = asyncio.create_task(self._greet(ws), name="paseo-greeting")
            with suppress(ConnectionClosed):
                async for raw in ws:
                    self._take(raw)
        finally:
            self._ws = None
            self._ready.clear()
            self._fail_waiting()
            ws.transport.abort()
            if greeting is not None:
                greeting.cancel()
                (ended,) = await asyncio.gather(greeting, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended
        self.problem, self.hint = "the connection ended", _HINT
        self._set("disconnected")
        return time.monotonic() - started

    async def _sign_in(self, ws: ClientConnection, target: Target) -> ServerInfo:
        try:
            async with asyncio.timeout(HELLO_TIMEOUT):
                await ws.send(hello(self._client_id, target.auth))
                while True:
                    frame = parse(await ws.recv())
                    if isinstance(frame, ServerInfo):
                        return frame
                    if isinstance(frame, Rejected):
                        raise _refused(frame.reason.replace("_", " "), target)
        except TimeoutError:
            raise PaseoUnavailable("It did not say hello in time", hint=_HINT) from None
        except ConnectionClosed as error:
            if error.rcvd is not None and error.rcvd.code == REFUSED:
                raise _refused(error.rcvd.reason or "no reason", target) from None
            code = error.rcvd.code if error.rcvd is not None else 1006
            raise PaseoUnavailable(f"It closed the connection before it said hello ({code})", hint=_HINT) from None

    async def _greet(self, ws: ClientConnection) -> None:
        try:
            if self._on_connected is not None:
                await self._on_connected(self)
        except Exception:
            ws.transport.abort()  # ends the reading
            raise
        self._ready.set()
        self._set("connected")

    def _take(self, raw: str | bytes) -> None:
        frame = parse(raw)
        if isinstance(frame, Answer):
            future = self._waiting.get(frame.request_id)
            if future is not None and not future.done():
                future.set_result(frame)
        elif isinstance(frame, Push):
            self._on_push(frame)
        elif isinstance(frame, ServerInfo):
            self.server = frame

    def _fail_waiting(self) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._unavailable("the connection ended before it answered", sent=True))
                future.exception()  # who asked may have gone

    def _unavailable(self, why: str, *, sent: bool = False) -> PaseoUnavailable:
        return PaseoUnavailable(f"Paseo cannot be reached: {why}", hint=self.hint or _HINT, sent=sent)

    def _set(self, state: State) -> None:
        if state != self.state:
            self.state = state
            log.info("Paseo: %s", state)
            self._on_state()


def _refused(words: str, target: Target) -> PaseoRefused:
    how = "without a password" if target.sign_in == "none" else f"with the {target.sign_in} from {target.source}"
    return PaseoRefused(f"Paseo did not let us in {how}: {words}", hint=_SIGN_IN, reason="sign_in")


def _words(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
