"""The relay connection against a server that misbehaves in every way a network knows."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from http import HTTPStatus

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from pacerelled.errors import LinkError, NotConnected, RelayUnreachable, TokenRefused
from pacerelled.link import connection as module
from pacerelled.link.backoff import Backoff
from pacerelled.link.connection import RelayConnection, State

from .polling import until

TOKEN = "secret-token-of-the-agent"
Behaviour = Callable[[ServerConnection], Awaitable[None]]


class Server:
    """A WebSocket server: `answers` are HTTP statuses for the next attempts, then `behave` serves."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = []
        self.attempts: list[str] = []
        self.behave: Behaviour = quiet
        self.on_attempt: Callable[[], None] = lambda: None
        self.url = ""

    async def handle(self, ws: ServerConnection) -> None:
        with suppress(ConnectionClosed):
            await self.behave(ws)

    def answer(self, _: ServerConnection, request: Request) -> Response | None:
        self.attempts.append(request.path)
        self.on_attempt()
        if not self.answers:
            return None
        status, headers = self.answers.pop(0)
        return Response(status, HTTPStatus(status).phrase, Headers(headers), b"")


async def quiet(ws: ServerConnection) -> None:
    async for _ in ws:
        pass


class Client:
    """A connection under test, with what it told."""

    def __init__(self, url: str, **options: float) -> None:
        self.token: str | None = TOKEN
        self.frames: list[bytes] = []
        self.states: list[State] = []
        self.problems: list[str] = []
        self.prepared = 0
        self.prepare_error: Exception | None = None
        self.link = RelayConnection(
            ws_url=url,
            token=lambda: self.token,
            prepare=self._prepare,
            on_frame=self._frame,
            on_state=self._told,
            **{"reconnect_max": 0.05, "ping_interval": 20.0, "ping_timeout": 20.0, **options},
        )

    def _told(self, state: State) -> None:
        self.states.append(state)
        self.problems.append(str(self.link.problem))

    async def _prepare(self) -> None:
        self.prepared += 1
        if self.prepare_error is not None:
            raise self.prepare_error

    async def _frame(self, raw: bytes) -> None:
        self.frames.append(raw)

    async def state(self, state: State) -> None:
        await until(lambda: self.link.state == state, state)


Connect = Callable[..., Client]


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    server = Server()
    async with serve(
        server.handle,
        "127.0.0.1",
        0,
        process_request=server.answer,
        ping_interval=None,
        close_timeout=0.1,
        max_size=None,
        logger=silent(),
    ) as running:
        server.url = f"ws://127.0.0.1:{next(iter(running.sockets)).getsockname()[1]}"
        yield server


def silent() -> logging.Logger:
    logger = logging.getLogger("test.server")
    logger.setLevel(logging.CRITICAL)
    return logger


@pytest.fixture
async def connect(server: Server) -> AsyncIterator[Connect]:
    async with AsyncExitStack() as stack:

        def start(url: str | None = None, **options: float) -> Client:
            client = Client(url or server.url, **options)
            client.link.start()
            stack.push_async_callback(client.link.stop)
            return client

        yield start


@pytest.fixture(autouse=True)
def token_stays_secret(caplog: pytest.LogCaptureFixture) -> object:
    caplog.set_level(logging.DEBUG)
    yield
    assert TOKEN not in caplog.text


@asynccontextmanager
async def in_a_second() -> AsyncIterator[None]:
    """The deadline that stopping has in every state; nothing else is timed."""
    started = time.monotonic()
    async with asyncio.timeout(10):
        yield
    assert time.monotonic() - started < 1.0


# -- connecting ------------------------------------------------------------------------------------------------


async def test_connects_with_the_token_and_hands_frames_over_as_they_came(server: Server, connect: Connect) -> None:
    frames = [b"{}", b"\xff\xfe no utf-8", b"x" * (2 << 20), b""]

    async def behave(ws: ServerConnection) -> None:
        for frame in frames:
            await ws.send(frame, text=True)
        await ws.send(b"\x00binary")
        await quiet(ws)

    server.behave = behave
    client = connect()
    await until(lambda: len(client.frames) == 5)
    assert client.frames == [*frames, b"\x00binary"]
    assert server.attempts == [f"/ws/agent?token={TOKEN}"]
    assert client.states == ["connecting", "connected"]
    assert client.link.problem is None
    await client.link.stop()
    assert client.link.state == "stopped"


async def test_a_token_with_any_characters_is_quoted(server: Server, connect: Connect) -> None:
    client = connect()
    await client.state("connected")
    client.token = "a&b=c/d ü#"
    client.link.token_changed()
    await until(lambda: len(server.attempts) == 2)
    assert server.attempts[1] == "/ws/agent?token=a%26b%3Dc%2Fd%20%C3%BC%23"


async def test_without_a_token_nothing_is_tried_until_there_is_one(server: Server, connect: Connect) -> None:
    client = Client(server.url)
    client.token = None
    client.link.start()
    try:
        await until(lambda: client.link.problem == "there is no token")
        assert client.link.state == "disconnected"
        await asyncio.sleep(0.05)
        assert server.attempts == []
        client.token = TOKEN
        client.link.token_changed()
        await client.state("connected")
    finally:
        await client.link.stop()


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_token_is_not_tried_again_and_a_new_one_is(
    server: Server, connect: Connect, status: int
) -> None:
    server.answers = [(status, {})]
    client = connect()
    await until(lambda: client.link.refused)
    await client.state("disconnected")
    assert client.link.problem == "the relay refused the token"
    await asyncio.sleep(0.05)
    assert len(server.attempts) == 1
    server.answers = [(status, {})]
    client.link.token_changed()  # somebody says that it is good
    await until(lambda: len(server.attempts) == 2)
    await until(lambda: client.link.refused)
    client.token = "new"
    client.link.token_changed()
    await client.state("connected")
    assert not client.link.refused


async def test_a_new_token_that_comes_while_the_old_one_is_refused_is_tried(server: Server, connect: Connect) -> None:
    """The refusal belongs to the token that was used."""
    server.answers = [(401, {})]
    client = Client(server.url)

    def change() -> None:
        if client.token == TOKEN:
            client.token = "new"
            client.link.token_changed()

    server.on_attempt = change
    client.link.start()
    await client.state("connected")
    await client.link.stop()
    assert server.attempts[-1] == "/ws/agent?token=new"


async def test_a_token_refused_while_preparing(server: Server, connect: Connect) -> None:
    client = Client(server.url)
    client.prepare_error = TokenRefused("no")
    client.link.start()
    try:
        await until(lambda: client.link.refused)
        assert server.attempts == []
        client.prepare_error, client.token = None, "new"
        client.link.token_changed()
        await client.state("connected")
    finally:
        await client.link.stop()


async def test_an_overloaded_relay_is_left_alone_as_long_as_it_asks(server: Server, connect: Connect) -> None:
    server.answers = [(503, {"Retry-After": "600"})]
    client = connect()
    await until(lambda: client.link.problem == "the relay answered 503")
    await client.state("reconnecting")
    await asyncio.sleep(0.15)
    assert len(server.attempts) == 1
    async with in_a_second():
        await client.link.stop()


@pytest.mark.parametrize("retry_after", ["0", "soon", "-5", "Wed, 21 Oct 2015 07:28:00 GMT"])
async def test_other_forms_of_retry_after_do_no_harm(server: Server, connect: Connect, retry_after: str) -> None:
    server.answers = [(503, {"Retry-After": retry_after}), (500, {}), (302, {"Location": "/elsewhere"})]
    client = connect()
    await client.state("connected")


async def test_no_server(connect: Connect) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = connect(f"ws://127.0.0.1:{unused.getsockname()[1]}")
        await until(lambda: client.prepared > 2)
        await until(lambda: client.link.problem)
        assert "cannot be reached" in str(client.link.problem)
        assert client.link.state == "reconnecting"


async def test_a_server_that_is_no_websocket_server(connect: Connect) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"SSH-2.0-something\r\n")
        writer.close()

    async with await asyncio.start_server(garbage, "127.0.0.1", 0) as other:
        client = connect(f"ws://127.0.0.1:{other.sockets[0].getsockname()[1]}")
        await until(lambda: client.prepared > 2)
        assert client.link.state == "reconnecting"


async def test_an_unexpected_error_while_preparing_does_not_end_the_link(server: Server, connect: Connect) -> None:
    client = Client(server.url)
    client.prepare_error = ZeroDivisionError(TOKEN)
    client.link.start()
    try:
        await until(lambda: client.prepared > 2)
        client.prepare_error = LinkError("the relay is odd")
        await until(lambda: client.link.problem == "the relay is odd")
        client.prepare_error = None
        await client.state("connected")
    finally:
        await client.link.stop()


# -- losing the connection -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "problem"),
    [
        (1000, "closed the connection (1000)"),
        (1012, "restarting"),
        (1013, "overloaded"),
        (4000, "another program"),
        (4999, "4999"),
    ],
)
async def test_a_server_that_closes_at_once_is_tried_again_less_and_less(
    server: Server, connect: Connect, code: int, problem: str
) -> None:
    async def behave(ws: ServerConnection) -> None:
        await ws.close(code)

    server.behave = behave
    client = connect()
    await until(lambda: len(server.attempts) >= 4)
    assert client.link._backoff._failures >= 3  # accepting is no success
    assert any(problem in told for told in client.problems)


@pytest.mark.parametrize("code", [4401, 4403])
async def test_a_close_code_can_refuse_the_token(server: Server, connect: Connect, code: int) -> None:
    async def behave(ws: ServerConnection) -> None:
        await ws.close(code)

    server.behave = behave
    client = connect()
    await until(lambda: client.link.refused)
    await client.state("disconnected")
    assert len(server.attempts) == 1


async def test_a_cut_connection_is_made_again(server: Server, connect: Connect) -> None:
    sockets: list[ServerConnection] = []

    async def behave(ws: ServerConnection) -> None:
        sockets.append(ws)
        await quiet(ws)

    server.behave = behave
    client = connect()
    for count in (1, 2, 3):
        await until(lambda count=count: len(sockets) == count)
        await client.state("connected")
        sockets[-1].transport.abort()
    await until(lambda: len(sockets) == 4)
    assert "reconnecting" in client.states


async def test_a_half_open_connection_is_noticed_and_what_waited_for_its_proof_is_told(
    server: Server, connect: Connect
) -> None:
    async def behave(ws: ServerConnection) -> None:
        ws.transport.pause_reading()  # the relay's machine is gone, as far as we can see
        await ws.wait_closed()

    server.behave = behave
    client = connect(ping_interval=0.1, ping_timeout=0.2)
    await client.state("connected")
    server.behave = quiet
    await client.link.send("{}")
    with pytest.raises(RelayUnreachable):
        await client.link.flushed()
    await until(lambda: len(server.attempts) == 2)
    await client.state("connected")


async def test_a_live_connection_outlives_many_pings_and_shows_traffic(server: Server, connect: Connect) -> None:
    client = connect(ping_interval=0.1, ping_timeout=10.0)
    await client.state("connected")
    first = client.link.last_traffic
    assert first is not None
    await until(lambda: (client.link.last_traffic or 0) > first + 0.25)
    assert len(server.attempts) == 1


async def test_a_frame_beyond_the_limit_ends_the_connection_with_a_word(
    server: Server, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FRAME", 10_000)

    async def behave(ws: ServerConnection) -> None:
        await ws.send("x" * 20_000)
        await quiet(ws)

    server.behave = behave
    client = connect()
    await until(lambda: any("frame of more than" in told for told in client.problems))
    assert client.frames == []


async def test_sending_and_its_proof(server: Server, connect: Connect) -> None:
    read: list[str | bytes] = []

    async def behave(ws: ServerConnection) -> None:
        async for message in ws:
            read.append(message)

    server.behave = behave
    client = connect()
    with pytest.raises(NotConnected):
        await client.link.send("too early")
    with pytest.raises(NotConnected):
        await client.link.flushed()
    await client.link.connected.wait()
    for number in range(100):
        await client.link.send(str(number))
    await client.link.flushed()
    assert read == [str(number) for number in range(100)]  # the proof: all of it has been read
    await client.link.stop()
    with pytest.raises(NotConnected):
        await client.link.send("too late")


async def test_a_new_token_makes_a_new_connection(server: Server, connect: Connect) -> None:
    client = connect()
    await client.state("connected")
    client.token = "rotated"
    client.link.token_changed()
    await until(lambda: len(server.attempts) == 2)
    await client.state("connected")
    assert server.attempts[-1].endswith("token=rotated")


# -- stopping --------------------------------------------------------------------------------------------------


async def unanswered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        await reader.read()
    finally:
        writer.close()


async def test_stops_while_connecting(connect: Connect) -> None:
    async with await asyncio.start_server(unanswered, "127.0.0.1", 0) as deaf:
        client = connect(f"ws://127.0.0.1:{deaf.sockets[0].getsockname()[1]}")
        await until(lambda: client.prepared)
        await asyncio.sleep(0.05)
        assert client.link.state == "connecting"
        async with in_a_second():
            await client.link.stop()
        assert client.link.state == "stopped"


async def test_stops_while_preparing(server: Server) -> None:
    client = Client(server.url)
    started = asyncio.Event()

    async def prepare() -> None:
        started.set()
        await asyncio.sleep(60)

    client.link._prepare = prepare
    client.link.start()
    await started.wait()
    async with in_a_second():
        await client.link.stop()


async def test_stops_while_connected_idle_or_with_a_dead_other_side(server: Server, connect: Connect) -> None:
    client = connect()
    await client.state("connected")
    async with in_a_second():
        await client.link.stop()

    async def deaf(ws: ServerConnection) -> None:
        ws.transport.pause_reading()
        await ws.wait_closed()

    server.behave = deaf
    client = connect()
    await client.state("connected")
    async with in_a_second():
        await client.link.stop()


async def test_stops_while_a_send_is_stuck(server: Server, connect: Connect) -> None:
    async def deaf(ws: ServerConnection) -> None:
        ws.transport.pause_reading()
        await ws.wait_closed()

    server.behave = deaf
    client = connect()
    await client.state("connected")

    async def flood() -> None:
        while True:
            await client.link.send("x" * (1 << 20))

    flooding = asyncio.create_task(flood())
    await asyncio.sleep(0.2)
    async with in_a_second():
        await client.link.stop()
    with pytest.raises(RelayUnreachable):
        await flooding


async def test_stops_while_a_frame_is_being_taken(server: Server) -> None:
    async def talk(ws: ServerConnection) -> None:
        for _ in range(100):
            await ws.send("x")
        await quiet(ws)

    server.behave = talk
    client = Client(server.url)
    taking = asyncio.Event()

    async def slow(_: bytes) -> None:
        taking.set()
        await asyncio.sleep(60)

    client.link._on_frame = slow
    client.link.start()
    await taking.wait()
    async with in_a_second():
        await client.link.stop()


async def test_stops_while_waiting_to_reconnect_refused_or_without_a_token(server: Server, connect: Connect) -> None:
    server.answers = [(503, {"Retry-After": "600"}), (401, {})]
    waiting, refused = connect(), None
    await waiting.state("reconnecting")
    refused = connect()
    await refused.state("disconnected")
    never_started = Client(server.url)
    async with in_a_second():
        await asyncio.gather(waiting.link.stop(), refused.link.stop(), never_started.link.stop())
    await waiting.link.stop()  # once more is no error


# -- backoff ---------------------------------------------------------------------------------------------------


def test_backoff_doubles_its_ceiling_up_to_the_maximum_with_full_jitter() -> None:
    class Highest(random.Random):
        def uniform(self, low: float, high: float) -> float:
            assert low == 0.0
            return high

    backoff = Backoff(30.0, Highest())
    assert [backoff.next() for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.next(lasted=9.9) == 30
    assert backoff.next(lasted=10.0) == 0.5
    backoff.next()
    backoff.reset()
    assert backoff.next() == 0.5
    assert backoff.next(at_least=77.0) == 77.0
    for _ in range(5000):
        assert backoff.next() <= 30


def test_backoff_spreads() -> None:
    backoff = Backoff(8.0, random.Random(1))
    for _ in range(10):
        backoff.next()
    waits = [backoff.next() for _ in range(200)]
    assert min(waits) < 1
    assert max(waits) > 7
