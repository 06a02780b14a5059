"""What is kept, what goes, and that nothing which waits ever goes, whatever the clocks say."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from pacerelled.agent.wanted import Wanted
from pacerelled.config import load_settings
from pacerelled.errors import ConfigError
from pacerelled.store import checkpoints, clock, events, replies, requests, retention, upkeep
from pacerelled.store.clock import DAY, StoreClock
from pacerelled.store.database import Store, Tx
from pacerelled.store.retention import Policy
from pacerelled.store.upkeep import Upkeep
from tests.daemon.core import KEY, Core
from tests.daemon.human import Human
from tests.daemon.polling import until
from tests.daemon.scripted_relay import ScriptedRelay
from tests.e2e.stack import Stack

from .bent import World, bent_daemon
from .rows import AGENT, checkpoint, count, event, reply, request

KEEP_ALL = Policy(
    requests=10_000, replies=10_000, events=10_000, receipts=100_000, days=90, receipt_days=400
)  # fmt: skip
NOT_AT_REST = ("queued", "sending", "uncertain")
AT_REST = ("submitted", "failed", "dropped")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "store.db", KEY, new=True)
    yield store
    await store.close()


class Days:
    """The store's own time, moved by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._extra = 0.0
        real = clock.steady
        monkeypatch.setattr(clock, "steady", lambda: real() + self._extra)

    def passed(self, days: float) -> None:
        self._extra += days * DAY


@pytest.fixture
def days(monkeypatch: pytest.MonkeyPatch) -> Days:
    return Days(monkeypatch)


async def prune(store: Store, policy: Policy) -> None:
    due = await store.run(lambda tx: retention.look(tx, policy))
    while await store.run(lambda tx: retention.prune(tx, due, 0.01)):
        pass


async def counted(store: Store, table: str, where: str = "1") -> int:
    return await store.run(lambda tx: count(tx, table, where))


async def test_by_number_the_oldest_processed_requests_go_and_leave_their_receipts(store: Store) -> None:
    def fill(tx: Tx) -> None:
        for number in range(50):
            request(tx, number, processed=number % 2 == 0)
            request(tx, 100 + number, processed=True, agent="a2")

    await store.run(fill)
    await prune(store, replace(KEEP_ALL, requests=10))
    assert await counted(store, "requests", "agent_id = 'a1' AND processed_at IS NULL") == 25
    kept = await store.run(lambda tx: requests.select(tx, AGENT, limit=100))
    assert [row[1] for row in kept if row[14]] == [f"m{n}" for n in range(30, 50, 2)]
    assert await counted(store, "requests", "agent_id = 'a2'") == 10
    assert await counted(store, "receipts") == 15 + 40
    for number in range(50):
        found = await store.run(lambda tx, n=number: requests.receipt_digest(tx, AGENT, f"m{n}"))  # type: ignore[misc]
        assert found == f"digest {number}", "a repetition would not be recognised"


async def test_by_age_what_came_to_rest_goes_and_what_waits_stays_for_ever(store: Store, days: Days) -> None:
    def fill(tx: Tx) -> None:
        for number in range(10):
            request(tx, number, processed=number < 5)
            checkpoint(tx, number, "active" if number % 2 else "completed")
        for number, state in enumerate(NOT_AT_REST + AT_REST):
            reply(tx, number, state)
        event(tx)

    await store.run(fill)
    days.passed(60)
    late = await store.run(lambda tx: request(tx, 20, processed=True))
    await prune(store, KEEP_ALL)
    assert await counted(store, "requests") == 11
    days.passed(31)
    await store.run(lambda tx: requests.mark_processed(tx, 6, None))  # came long ago, came to rest now
    await prune(store, KEEP_ALL)
    left = await store.run(lambda tx: tx.all("SELECT seq FROM requests ORDER BY seq"))
    assert [row[0] for row in left] == [6, 7, 8, 9, 10, late]
    assert {row[0] for row in await store.run(lambda tx: tx.all("SELECT state FROM replies"))} == set(NOT_AT_REST)
    assert {row[0] for row in await store.run(lambda tx: tx.all("SELECT source_id FROM checkpoints"))} == {
        f"m{n}" for n in range(5, 10)
    }
    assert await counted(store, "events") == 0
    assert await counted(store, "receipts") == 5
    days.passed(10_000)
    await prune(store, replace(KEEP_ALL, requests=0, replies=0))
    assert await counted(store, "requests") == await counted(store, "requests", "processed_at IS NULL") == 4
    assert await counted(store, "replies") == 3
    assert await counted(store, "checkpoints") == 4


async def test_a_retried_reply_is_kept_again(store: Store, days: Days) -> None:
    await store.run(lambda tx: reply(tx, 1, "uncertain"))
    days.passed(100)
    await store.run(lambda tx: replies.requeue_uncertain(tx, AGENT))
    await prune(store, replace(KEEP_ALL, replies=0))
    assert await counted(store, "replies", "state = 'queued'") == 1
    await store.run(lambda tx: replies.set_state(tx, [1], "submitted", None))
    await prune(store, KEEP_ALL)
    assert await counted(store, "replies") == 1
    days.passed(91)
    await prune(store, KEEP_ALL)
    assert await counted(store, "replies") == 0


async def test_events_and_receipts_by_number_and_by_age(store: Store, days: Days) -> None:
    def fill(tx: Tx) -> None:
        for number in range(300):
            event(tx)
            request(tx, number, processed=True)

    await store.run(fill)
    policy = replace(KEEP_ALL, events=100, requests=0, receipts=120)
    await prune(store, policy)
    await prune(store, policy)  # the receipts that the requests left
    assert await store.run(lambda tx: tx.one("SELECT min(seq), max(seq) FROM events")[:]) == (201, 300)
    assert await counted(store, "receipts") == 120
    assert await store.run(lambda tx: requests.receipt_digest(tx, AGENT, "m299")) == "digest 299"
    assert await store.run(lambda tx: requests.receipt_digest(tx, AGENT, "m179")) is None
    missed = await store.run(lambda tx: events.page(tx, f"{events.epoch(tx)}:5", Wanted(), 10))
    assert (missed.events, missed.gap) == ([], True), "a cursor older than what is kept must learn of the gap"
    assert missed.cursor.endswith(":300")
    days.passed(399)
    await prune(store, KEEP_ALL)
    assert await counted(store, "receipts") == 120
    days.passed(1)
    await prune(store, KEEP_ALL)
    assert await counted(store, "receipts") == 0
    assert await store.run(event) == 301, "a number must not be used twice"


async def test_checkpoints_are_in_the_order_of_saving_also_when_the_clock_goes_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(number: int, at: str) -> Callable[[Tx], None]:
        def job(tx: Tx) -> None:
            tx.now = at
            checkpoint(tx, number, "active")

        return job

    await store.run(save(1, "2050-01-01T00:00:00.000Z"))
    await store.run(save(2, "1970-01-01T00:00:00.000Z"))
    await store.run(save(3, "2026-01-01T00:00:00.000Z"))
    await store.run(save(1, "1980-01-01T00:00:00.000Z"))
    rows = await store.run(
        lambda tx: checkpoints.select(tx, AGENT, conversation_id=None, include_completed=False, after=0, limit=9)
    )
    assert [row[1] for row in rows] == ["m2", "m3", "m1"]


# -- the store's own time --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pause", "counted"),
    [(0, 0), (3 * DAY, 3), (30 * DAY, 7), (30 * 365 * DAY, 7), (-30 * 365 * DAY, 0)],
)
def test_a_pause_counts_for_a_week_at_most(pause: float, counted: int) -> None:
    before = StoreClock((100.5 * DAY, time.time() - pause))
    assert before.day == 100 + counted


def test_the_wall_clock_is_not_looked_at_while_the_store_is_open(monkeypatch: pytest.MonkeyPatch, days: Days) -> None:
    running = StoreClock(None)
    for jump in (-50, 50, 0):
        monkeypatch.setattr(time, "time", lambda jump=jump: 1.7e9 + jump * 365 * DAY)
        assert running.day == 0
    days.passed(2.5)
    assert running.day == 2
    lived, wall = running.reading()
    assert (lived // DAY, wall) == (2, 1.7e9)


@pytest.mark.parametrize("years", [-60, -1, 1, 60])
async def test_a_jump_of_years_between_two_starts_removes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, years: int
) -> None:
    real = time.time
    path = tmp_path / "store.db"
    for start in range(10):
        monkeypatch.setattr(time, "time", lambda start=start: real() + (start % 2) * years * 365 * DAY)
        store = await Store.open(path, KEY, new=start == 0)
        await store.run(lambda tx, start=start: request(tx, start, processed=True))  # type: ignore[misc]
        await prune(store, KEEP_ALL)
        assert await counted(store, "requests") == start + 1
        await store.close()


async def test_the_store_s_days_outlive_restarts_and_crashes(tmp_path: Path, days: Days) -> None:
    path = tmp_path / "store.db"
    store = await Store.open(path, KEY, new=True)
    days.passed(4)
    await store.close()
    store = await Store.open(path, KEY, new=False)
    assert await store.run(lambda tx: tx.day) == 4
    days.passed(3)
    await store.run(store.save_clock)
    await store.close()
    store = await Store.open(path, KEY, new=False)
    assert await store.run(lambda tx: tx.day) == 7
    await store.close()


# -- housekeeping ----------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "INTERVAL", 0.02)
    monkeypatch.setattr(upkeep, "QUIET", 0.0)
    monkeypatch.setattr(upkeep, "PROBE", 0.05)


async def test_upkeep_prunes_gives_space_back_and_keeps_the_log_short(store: Store, quick: None) -> None:
    text = "x" * 2000

    def fill(first: int) -> Callable[[Tx], None]:
        def job(tx: Tx) -> None:
            for number in range(first, first + 1000):
                request(tx, number, processed=True, text=text)
                reply(tx, number, "submitted", text=text)
                event(tx)

        return job

    sizes = []
    tending = Upkeep(store, replace(KEEP_ALL, requests=100, replies=100, events=100))
    tending.start()
    try:
        for first in range(0, 4000, 1000):
            await store.run(fill(first))

            async def done() -> bool:
                rows = await store.run(lambda tx: [count(tx, t) for t in ("requests", "replies", "events")])
                return rows == [100, 100, 100] and store.log_size() == 0

            await until(done, "upkeep", 60)
            sizes.append(store.path.stat().st_size)
    finally:
        await tending.stop()
    assert max(sizes) < 1.3 * sizes[0], sizes
    assert sizes[-1] < 4 << 20, sizes
    assert await counted(store, "receipts") == 3900
    assert await store.run(lambda tx: tx.one("PRAGMA quick_check")[0]) == "ok"


async def test_a_step_is_short_and_lets_others_through(store: Store) -> None:
    def fill(tx: Tx) -> None:
        for number in range(3000):
            request(tx, number, processed=True)

    await store.run(fill)
    due = await store.run(lambda tx: retention.look(tx, replace(KEEP_ALL, requests=0)))
    steps = 1
    while await store.run(lambda tx: retention.prune(tx, due, upkeep.BUDGET)):
        steps += 1
    assert steps > 10
    assert await counted(store, "requests") == 0


async def test_upkeep_does_not_wait_for_ever_for_a_quiet_moment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "INTERVAL", 0.01)
    monkeypatch.setattr(upkeep, "PATIENCE", 0.1)
    for number in range(50):
        await store.run(lambda tx, n=number: request(tx, n, processed=True))  # type: ignore[misc]
    tending = Upkeep(store, replace(KEEP_ALL, requests=0))
    tending.start()
    try:

        async def gone() -> bool:  # asks all the time
            return await counted(store, "requests") == 0

        await until(gone)
    finally:
        await tending.stop()


async def test_a_store_that_could_not_be_written_is_tried_until_it_can(store: Store, quick: None) -> None:
    def limit(pages: int | None) -> Callable[[Tx], None]:
        def job(tx: Tx) -> None:
            tx.execute(f"PRAGMA max_page_count = {pages or tx.one('PRAGMA page_count')[0]}")

        return job

    tending = Upkeep(store, KEEP_ALL)
    tending.start()
    try:
        await store.run(limit(None))
        with pytest.raises(Exception, match="cannot be written"):
            await store.run(lambda tx: request(tx, 1, processed=False, text="x" * 100_000))
        assert store.problem is not None
        assert store.problem.code == "store_unavailable"
        await store.run(limit(1 << 30))
        await until(lambda: store.problem is None and not store.failing.is_set())
    finally:
        await tending.stop()


async def test_upkeep_survives_a_bug_of_ours(
    store: Store, quick: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def failing(tx: Tx, policy: Policy) -> list[retention.Due]:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError("secret words")

    monkeypatch.setattr(retention, "look", failing)
    tending = Upkeep(store, KEEP_ALL)
    tending.start()
    try:
        await until(lambda: calls > 2)
    finally:
        await tending.stop()
    assert "secret words" not in caplog.text
    await asyncio.sleep(0)


# -- in the daemon ---------------------------------------------------------------------------------------------


async def test_a_request_that_went_is_recognised_when_the_relay_delivers_it_again(core: Core) -> None:
    async with ScriptedRelay() as relay:
        agent = await core.agent(relay.url)
        human = await Human.meet(relay)
        frames = [human.frame(f"{number}") for number in range(5)]
        await relay.push(*frames)
        await until(lambda: len(relay.acked) == 5)
        for request in (await agent.inbox())[0][:4]:
            await agent.mark_processed(core.session(), request.message_id)
        await prune(core.store, replace(KEEP_ALL, requests=0))
        assert [r.text for r in (await agent.inbox(state="all"))[0]] == ["4"]
        await relay.drop()
        await relay.push(*frames)
        await until(lambda: len(relay.acked) == 10)
        assert relay.acked[5:] == relay.acked[:5]
        assert [r.text for r in (await agent.inbox(state="all"))[0]] == ["4"]
        assert await agent.quarantine.select() == []
        other = human.frame("another text", id=json.loads(frames[0])["id"])
        await relay.push(other)
        await until(lambda: len(relay.acked) == 11)
        assert [q["reason"] for q in await agent.quarantine.select()] == ["id_conflict"]


async def test_a_daemon_keeps_what_its_settings_say(machine: Stack, world: World) -> None:
    machine.configure("retention_requests = 100\nretention_replies = 100\nretention_events = 100\n")
    world.bend(set={"pacerelled.store.upkeep.INTERVAL": 0.1})
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    async with bent_daemon(machine, world):
        host = await machine.host(agent)
        await host.connected()
        async with machine.control() as control, control.get("/v1/events?last=1") as response:
            first = (await response.json())["next_cursor"]
        for number in range(130):
            await phone.send(agent.agent_id, str(number))
        taken = 0
        while taken < 125:
            for message in (await host.tool("wait_for_messages", timeoutMs=30_000, limit=25))["messages"]:
                await host.tool("mark_processed", messageId=message["message_id"])
                taken += 1

        async def pruned() -> bool:
            async with machine.control() as control:
                async with control.get("/v1/agents/-/inbox?state=all&limit=500") as response:
                    texts = [m["text"] for m in (await response.json())["messages"]]
                async with control.get(f"/v1/events?cursor={first}") as response:
                    gap = (await response.json())["gap"]
            return gap and texts == [str(number) for number in range(25, 130)]

        await until(pruned, "the newest 100 processed requests, and the 5 that wait", 60)


@pytest.mark.parametrize("value", ["99", "1000001", "100.5", "many", "", "nan"])
def test_a_setting_that_makes_no_sense(tmp_path: Path, value: str) -> None:
    (tmp_path / "config.toml").write_text(f'retention_requests = "{value}"')
    with pytest.raises(ConfigError, match=r"`retention_requests` .* whole number from 100 to 1000000"):
        load_settings(tmp_path / "config.toml", {}, {})


def test_settings_from_file_and_environment(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("retention_requests = 200\nretention_days = 30")
    settings = load_settings(tmp_path / "config.toml", {"PACERELLED_RETENTION_DAYS": "7"}, {})
    assert (settings.retention_requests, settings.retention_days) == (200, 7)
