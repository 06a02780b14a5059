"""How often the relay is tried, and how long it is left alone when it asks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest
from aiohttp import web

from pacerelled.errors import LinkError, RelayRejected, TokenRefused
from pacerelled.link import connection as connection_module
from pacerelled.link.backoff import ATTEMPTS, LONGEST_RETRY_AFTER, Backoff, Pace, retry_after
from pacerelled.link.connection import RelayConnection
from pacerelled.link.rest import RelayRest
from tests.daemon.core import Core
from tests.daemon.human import Human
from tests.daemon.polling import until
from tests.daemon.scripted_relay import ScriptedRelay


@pytest.fixture
async def relay() -> AsyncIterator[ScriptedRelay]:
    async with ScriptedRelay() as running:
        yield running


# -- pace ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lasted", [0.0, 0.01, 2.0])
def test_at_most_six_attempts_in_the_first_minute_and_in_every_other(lasted: float) -> None:
    for seed in range(500):
        backoff, pace = Backoff(30.0, random.Random(seed)), Pace(60.0)
        now, attempts = 1000.0, []
        while now < 1000.0 + 600:
            pace.attempt(now)
            attempts.append(now)
            now += lasted
            now += backoff.next(lasted=lasted, at_least=pace.wait(now))
        assert sum(at < 1059.999 for at in attempts) <= ATTEMPTS
        assert all(b - a > 59.999 for a, b in zip(attempts, attempts[ATTEMPTS:], strict=False))


async def test_a_relay_that_accepts_and_closes_at_once_is_tried_at_this_pace() -> None:
    attempts: list[float] = []
    loop = asyncio.get_running_loop()

    async def accept(request: web.Request) -> web.WebSocketResponse:
        attempts.append(loop.time())
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        await socket.close(code=1013)
        return socket

    app = web.Application()
    app.router.add_get("/ws/agent", accept)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    link = RelayConnection(
        ws_url=f"ws://127.0.0.1:{runner.addresses[0][1]}",
        token=lambda: "token",
        prepare=_nothing,
        on_frame=_no_frame,
        on_state=lambda _: None,
        reconnect_max=0.5,
    )
    link.start()
    try:
        await until(lambda: len(attempts) > 2 * ATTEMPTS)
        await until(lambda: link.problem == "the relay is overloaded")  # and not just connected again
    finally:
        await link.stop()
        await runner.cleanup()
    # Twice `reconnect_max` is the period; the server sees an attempt a moment after it was begun.
    assert all(b - a > 0.8 for a, b in zip(attempts, attempts[ATTEMPTS:], strict=False))


async def _nothing() -> None:
    pass


async def _no_frame(_: bytes) -> None:
    raise AssertionError


# -- Retry-After -----------------------------------------------------------------------------------------------

NOW = "Wed, 21 Oct 2015 07:28:00 GMT"


@pytest.mark.parametrize(
    ("value", "date", "seconds"),
    [
        (None, NOW, 0),
        ("", NOW, 0),
        ("7", None, 7),
        ("0", NOW, 0),
        ("99999999999999999999", NOW, LONGEST_RETRY_AFTER),
        ("-5", NOW, 0),
        ("1.5", NOW, 0),
        ("٣", NOW, 0),
        ("soon", NOW, 0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", NOW, 30),
        ("Wed, 21 Oct 2015 07:28:30 GMT", None, 0),
        ("Wed, 21 Oct 2015 07:28:30 GMT", "yesterday", 0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", NOW, 0),
        ("Wed, 21 Oct 2065 07:28:00 GMT", NOW, LONGEST_RETRY_AFTER),
        ("Wed, 21 Oct 2015 07:28:30 -0000", NOW, 0),
    ],
)
def test_retry_after(value: str | None, date: str | None, seconds: float) -> None:
    assert retry_after(value, date) == seconds


async def test_an_http_answer_with_retry_after_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    async def overloaded(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(status=503, headers={"Retry-After": "500"})

    app = web.Application()
    app.router.add_put("/agent/prekey-bundle", overloaded)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    rest = RelayRest(f"http://127.0.0.1:{port}", lambda: "token")
    waits: list[float] = []
    real = connection_module.Backoff.next

    def spy(self: Backoff, *, lasted: float = 0.0, at_least: float = 0.0) -> float:
        waits.append(at_least)
        return real(self, lasted=lasted, at_least=at_least)

    monkeypatch.setattr(connection_module.Backoff, "next", spy)
    link = RelayConnection(
        ws_url=f"ws://127.0.0.1:{port}",
        token=lambda: "token",
        prepare=lambda: rest.publish_bundle({}),
        on_frame=_no_frame,
        on_state=lambda _: None,
        reconnect_max=0.05,
    )
    link.start()
    try:
        await until(lambda: waits)
        await asyncio.sleep(0.2)
        assert (asked, waits) == (1, [500.0])
        assert link.problem == "The relay answered 503 to PUT /agent/prekey-bundle"
    finally:
        await link.stop()
        await rest.close()
        await runner.cleanup()


# -- prekeys, and the largest frame ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/agent/prekey-bundle", "/agent/one-time-prekeys"])
@pytest.mark.parametrize("status", [500, 503])
async def test_publishing_prekeys_is_tried_again_after_a_5xx(
    relay: ScriptedRelay, path: str, status: int, core: Core
) -> None:
    relay.refuse[path] = status
    agent = await core.agent(relay.url)

    async def reported() -> bool:
        found = (await agent.status())["problems"]
        return any(p["code"] == "relay_offline" and f"answered {status}" in p["message"] for p in found)

    await until(reported, "the problem")
    assert relay.connections == 0, "nobody could write a first message"
    del relay.refuse[path]
    await relay.connected()
    human = await Human.meet(relay)
    await relay.push(human.frame("hello"))
    await until(lambda: relay.acked)
    assert [len(p["one_time_prekeys"]) for p in relay.one_time] == [49], "published once; one of 50 is used"


async def test_a_frame_of_almost_32_mib_passes(core: Core, relay: ScriptedRelay) -> None:
    agent = await core.agent(relay.url)
    human = await Human.meet(relay)
    text = "z" * 24_800_000
    frame = human.frame(text)
    assert 31 << 20 < len(frame) < connection_module.MAX_FRAME
    await relay.push(frame, human.frame("after"))
    await until(lambda: len(relay.acked) == 2, deadline=60)
    found, _ = await agent.inbox()
    assert [len(r.text) for r in found] == [len(text), 5]
    assert relay.connections == 1


# -- refused tokens --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: TokenRefused("no"), lambda: LinkError("odd")])
async def test_only_a_refused_token_ends_the_attempts(make: Callable[[], LinkError]) -> None:
    prepared = 0

    async def prepare() -> None:
        nonlocal prepared
        prepared += 1
        raise make()

    link = RelayConnection(
        ws_url="ws://127.0.0.1:9",
        token=lambda: "token",
        prepare=prepare,
        on_frame=_no_frame,
        on_state=lambda _: None,
        reconnect_max=0.05,
    )
    link.start()
    try:
        await until(lambda: link.refused or prepared > 3)
        await asyncio.sleep(0.2)
        assert (prepared == 1) == link.refused
    finally:
        await link.stop()


def test_a_rejection_carries_what_the_relay_asked_for() -> None:
    assert RelayRejected("no", status=503).retry_after == 0.0
