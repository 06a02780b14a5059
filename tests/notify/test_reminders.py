"""Reminders: requests that nobody answers, and widgets that expire, told once, also over restarts."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from pacerelled.agent.event_log import EventLog
from pacerelled.agent.wanted import Wanted
from pacerelled.notify.reminders import Reminders
from pacerelled.store import clock, events, reminders, replies, requests
from pacerelled.store.database import Store, Tx
from tests.notify.rig import until

AFTER = 100.0


class Clock:
    def __init__(self) -> None:
        self.moment = 1_000_000.0

    def passed(self, seconds: float) -> None:
        self.moment += seconds


@pytest.fixture
def clock_(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(clock, "steady", lambda: found.moment)
    return found


@pytest.fixture
def looks(clock_: Clock, store: Store, log: EventLog) -> Reminders:
    """Not started: tests make it look."""
    store._clock._since = clock_.moment
    return Reminders(store, log, after=AFTER)


async def look(store: Store, looks: Reminders) -> float | None:
    return await store.run(looks._look)


def request(tx: Tx, message_id: str) -> None:
    new = requests.NewRequest(message_id, "c1", "ada", None, False, True, "text", "words", None, None, None)
    requests.insert_request(tx, "a1", new, "digest")
    events.add(tx, "a1", "message.received", message_id=message_id)


def reply(tx: Tx, source_id: str) -> int:
    return replies.insert_reply(
        tx, "a1",
        replies.NewReply(
            message_id=f"r-{source_id}", conversation_id="c1", recipient="ada", device_id=None, kind="text", text="t",
            widget_id=None, widget=None, source_id=source_id, reply_to=None, envelope="", call_key=None, digest="",
        ),
    )  # fmt: skip


async def told(log: EventLog, kind: str) -> list[dict[str, Any]]:
    return [event["data"] for event in (await log.last(100, Wanted(types=(kind,))))["events"]]


async def overdue(log: EventLog) -> list[str]:
    return [data["message_id"] for data in await told(log, "message.overdue")]


async def test_a_request_is_overdue_once(store: Store, log: EventLog, looks: Reminders, clock_: Clock) -> None:
    assert await look(store, looks) is None
    await store.run(lambda tx: request(tx, "m1"))
    assert await look(store, looks) == AFTER
    clock_.passed(60)
    await store.run(lambda tx: request(tx, "m2"))
    assert await look(store, looks) == 40
    clock_.passed(40)
    assert await look(store, looks) == 60
    assert await overdue(log) == ["m1"]
    clock_.passed(60)
    assert await look(store, looks) is None
    assert await overdue(log) == ["m1", "m2"]
    clock_.passed(1000)
    await look(store, looks)
    assert await overdue(log) == ["m1", "m2"]
    (first, _) = await told(log, "message.overdue")
    assert set(first) == {"message_id", "conversation_id", "sender", "received_at"}


async def test_what_is_answered_or_done_is_not_overdue(
    store: Store, log: EventLog, looks: Reminders, clock_: Clock
) -> None:
    def job(tx: Tx) -> None:
        for message_id in ("done", "answered", "failed", "open"):
            request(tx, message_id)
        requests.mark_processed(tx, 1, None)
        reply(tx, "answered")
        replies.set_state(tx, [reply(tx, "failed")], "failed", "why")

    await store.run(job)
    await look(store, looks)
    clock_.passed(AFTER)
    await look(store, looks)
    assert await overdue(log) == ["failed", "open"]


async def test_a_look_at_nothing_new_writes_nothing(store: Store, looks: Reminders, clock_: Clock) -> None:
    await store.run(lambda tx: request(tx, "m1"))
    await look(store, looks)
    size = store.log_size()
    clock_.passed(10)
    await look(store, looks)
    assert store.log_size() == size


async def test_a_widget_expires_without_an_answer(store: Store, log: EventLog, looks: Reminders) -> None:
    soon = time.time() + 1000

    def job(tx: Tx) -> None:
        reminders.expect_answer(tx, "a1", "w1", "c1", soon - 2000)
        reminders.expect_answer(tx, "a1", "w2", "c1", soon)
        reminders.expect_answer(tx, "a1", "w3", "c1", soon - 2000)
        reminders.answered(tx, "a1", "w3")
        reminders.expect_answer(tx, "a1", "w4", "c1", soon - 2000)
        reminders.expect_answer(tx, "a1", "w4", "c1", None)

    await store.run(job)
    assert await look(store, looks) == 300
    assert await told(log, "widget.expired") == [{"message_id": "w1", "conversation_id": "c1"}]


async def test_it_looks_by_itself(store: Store, log: EventLog) -> None:
    running = Reminders(store, log, after=0.3)
    running.start()
    await asyncio.sleep(0.05)
    await store.run(lambda tx: request(tx, "m1"))
    await until(lambda: overdue(log), "the reminder")
    await running.stop()
    assert await overdue(log) == ["m1"]


async def test_a_restart_does_not_begin_the_waiting_anew(store: Store, log: EventLog, clock_: Clock) -> None:
    store._clock._since = clock_.moment
    await store.run(lambda tx: request(tx, "m1"))
    await look(store, Reminders(store, log, after=AFTER))
    clock_.passed(AFTER - 1)
    assert await look(store, Reminders(store, log, after=AFTER)) == 1
