"""The log of events: its numbers, its cursors, what a follower hears, and what it is told when it missed something."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pacerelled.agent.event_log import EventLog
from pacerelled.agent.wanted import Wanted
from pacerelled.errors import InvalidArgument, StoreUnavailable
from pacerelled.store import events
from pacerelled.store.database import Store, Tx

KEY = bytes(range(32))
EVERYTHING = Wanted()


async def happen(store: Store, *types: str, agent: str | None = "a1", **data: Any) -> None:
    def job(tx: Tx) -> None:
        for each in types:
            events.add(tx, agent, each, **data)

    await store.run(job)


def types(found: dict[str, Any]) -> list[str]:
    return [event["type"] for event in found["events"]]


async def test_an_event_says_who_what_when_and_which(store: Store, log: EventLog) -> None:
    await happen(store, "message.received", message_id="m1")
    (event,) = (await log.last(10, EVERYTHING))["events"]
    assert event["id"] == f"{event['epoch']}:1"
    assert (event["seq"], event["type"], event["agent"], event["data"]) == (
        1,
        "message.received",
        "a1",
        {"message_id": "m1"},
    )
    assert event["at"].endswith("Z")


async def test_a_transaction_that_is_taken_back_leaves_no_hole(store: Store) -> None:
    for attempt in range(6):
        try:
            await store.run(lambda tx, attempt=attempt: (events.add(tx, None, "x"), 1 // (attempt % 2)))  # type: ignore[misc]
        except ZeroDivisionError:
            pass

    def part(tx: Tx) -> None:
        try:
            tx.savepoint(lambda: (events.add(tx, None, "x"), 1 // 0))
        except ZeroDivisionError:
            events.add(tx, None, "y")

    await store.run(part)
    assert await store.run(lambda tx: [row[0] for row in tx.all("SELECT seq FROM events")]) == [1, 2, 3, 4]


async def test_the_epoch_is_for_ever_and_a_restore_ends_it(tmp_path: Path) -> None:
    epochs = []
    for _ in range(2):
        store = await Store.open(tmp_path / "store.db", KEY, new=not epochs)
        epochs.append(await store.run(events.epoch))
        await store.close()
    assert epochs[0] == epochs[1]
    store = await Store.open(tmp_path / "store.db", KEY, new=False)
    await happen(store, "x")
    old = f"{epochs[0]}:1"
    fresh = await store.run(events.new_epoch)
    page = await store.run(lambda tx: events.page(tx, old, EVERYTHING, 10))
    assert fresh != epochs[0]
    assert (page.events, page.gap, page.cursor) == ([], True, f"{fresh}:1")
    await store.close()


async def test_a_wait_ends_with_the_first_wanted_event_and_goes_on_from_there(store: Store, log: EventLog) -> None:
    call = asyncio.create_task(log.wait(None, Wanted(types=("reply.*",)), limit=10, timeout=60))
    await asyncio.sleep(0.05)
    await happen(store, "message.received")
    await happen(store, "reply.queued", "message.processed")
    found = await call
    assert (types(found), found["gap"]) == (["reply.queued"], False)
    after_it = found["events"][0]["id"]
    assert types(await log.wait(after_it, EVERYTHING, limit=10, timeout=0)) == ["message.processed"]
    assert types(await log.wait(found["next_cursor"], EVERYTHING, limit=10, timeout=0)) == []


async def test_a_wait_that_finds_nothing_still_moves_on(store: Store, log: EventLog) -> None:
    start = (await log.last(1, EVERYTHING))["next_cursor"]
    await happen(store, *["message.received"] * (events.SCAN + 20))
    found = await log.wait(start, Wanted(types=("reply.failed",)), limit=10, timeout=0)
    assert (types(found), found["next_cursor"].rpartition(":")[2]) == ([], str(events.SCAN + 20))


async def test_a_rare_event_is_found_behind_many_others(store: Store, log: EventLog) -> None:
    await happen(store, *["message.received"] * (2 * events.SCAN), "reply.failed", *["message.received"] * 700)
    rare = Wanted(types=("reply.failed",))
    assert types(await log.wait(events.START, rare, limit=10, timeout=0)) == ["reply.failed"]
    assert types(await log.last(1, rare)) == ["reply.failed"]
    assert types(await log.last(2, rare)) == ["reply.failed"]


async def test_who_missed_something_gets_the_state_and_where_to_go_on(store: Store, log: EventLog) -> None:
    await happen(store, *["x"] * 5)
    epoch = await store.run(events.epoch)
    await store.run(lambda tx: tx.execute("DELETE FROM events WHERE seq <= 3"))
    for cursor in (f"{epoch}:2", f"{epoch}:6", "000000000000:4"):
        found = await log.wait(cursor, EVERYTHING, limit=10, timeout=60)
        assert found == {"events": [], "next_cursor": f"{epoch}:5", "gap": True, "state": {"agents": []}}
    assert len((await log.wait(f"{epoch}:3", EVERYTHING, limit=10, timeout=0))["events"]) == 2
    assert len((await log.wait(events.START, EVERYTHING, limit=10, timeout=0))["events"]) == 2


@pytest.mark.parametrize(
    "cursor", ["", "5", "abc", "abc:", ":5", "abc:x", "abc:-1", "abc:1:2", "ABC:1", "abc:" + "1" * 20]
)
async def test_what_is_no_cursor_is_refused(log: EventLog, cursor: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await log.wait(cursor, EVERYTHING, limit=10, timeout=0)
    assert caught.value.argument == "cursor"


async def test_what_is_not_stored_is_written_when_the_store_can(
    store: Store, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, failures = store.run, 2
    monkeypatch.setattr("pacerelled.agent.event_log.RETRY", 0.01)

    async def failing(fn: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailable("full", hint="")
        return await run(fn)

    monkeypatch.setattr(store, "run", failing)
    call = asyncio.create_task(log.wait(f"{await run(events.epoch)}:0", EVERYTHING, limit=10, timeout=30))
    log.note("a1", "host.attached", session="s1")
    log.note("a1", "host.detached", session="s1")
    with pytest.raises(StoreUnavailable):
        await call
    found = await log.wait(events.START, EVERYTHING, limit=1, timeout=30)
    while len(found["events"]) < 2:
        found = await log.last(10, EVERYTHING)
        await asyncio.sleep(0.02)
    assert types(found) == ["host.attached", "host.detached"]


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (Wanted(), True),
        (Wanted(types=("agent.turn_ended",)), True),
        (Wanted(types=("reply.*", "agent.*")), True),
        (Wanted(types=("agent",)), False),
        (Wanted(types=("agent.turn.*",)), False),
        (Wanted(agents=("a1", "a2")), True),
        (Wanted(agents=("a2",)), False),
        (Wanted(conversations=("c1",)), True),
        (Wanted(conversations=("c2",)), False),
        (Wanted(labels={"origin": "home"}), True),
        (Wanted(labels={"origin": "home", "task": "x"}), False),
        (Wanted(needs_attention=True), True),
        (Wanted(types=("agent.*",), conversations=("c2",)), False),
    ],
)
def test_what_is_wanted(wanted: Wanted, fits: bool) -> None:
    data = {"conversation_id": "c1", "labels": {"origin": "home"}, "needs_attention": True}
    event = {"type": "agent.turn_ended", "agent": "a1", "data": data}
    assert wanted(event) is fits
    assert wanted({"type": "x", "agent": None, "data": {}}) is (wanted == Wanted())
