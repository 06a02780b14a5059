"""While several sessions wait, new requests go round."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pacerelled.agent.model import Session
from pacerelled.agent.waiting import Waiting
from pacerelled.mcp.sizes import Room
from tests.daemon.polling import until

from .machine import Machine, ids


@pytest.mark.parametrize("timeout", [60.0, 0.1])
async def test_each_gets_one_before_any_gets_a_second(machine: Machine, timeout: float) -> None:
    """Also when sessions wait in many short calls, and are away for a moment between them."""
    sessions = [machine.core.session(str(number)) for number in range(20)]
    got: list[str] = []

    async def work(session: Session) -> None:
        while True:
            for request in (await machine.agent.wait_for_messages(session, timeout=timeout)).messages:
                got.append(session.id)
                await machine.agent.mark_processed(session, request.message_id)

    workers = [asyncio.create_task(work(session)) for session in sessions]
    for number in range(60):
        await machine.waiting(20)
        await machine.ask(f"m{number}")
        await until(lambda number=number: len(got) > number, "the request's turn")
    for worker in workers:
        worker.cancel()
    await asyncio.gather(*workers, return_exceptions=True)
    if timeout > 1:
        assert got[:20] == got[20:40] == got[40:]
    else:  # a session can be away for long on a busy machine
        assert set(got) == {session.id for session in sessions}
        assert max(Counter(got).values()) <= 6


async def test_a_burst_is_shared_out_evenly(machine: Machine) -> None:
    calls = [machine.wait(machine.core.session(str(number)), limit=50) for number in range(50)]
    await machine.waiting(50)
    await machine.ask(*(f"m{number}" for number in range(100)))
    async with asyncio.timeout(30):
        found = await asyncio.gather(*calls)
    assert {len(each.messages) for each in found} == {2}
    assert not any(each.has_more for each in found)
    assert len({message_id for each in found for message_id in ids(each)}) == 100


async def test_nothing_is_left_lying_while_somebody_waits(machine: Machine) -> None:
    """However many come at once, and however few each may take, those who wait get something."""
    for first, come in ((1, 5), (3, 4), (10, 7)):
        calls = [machine.wait(machine.core.session(), limit=1) for _ in range(4)]
        await machine.waiting(4)
        await machine.ask(*(f"{first}-{number}" for number in range(come)))
        async with asyncio.timeout(30):
            assert all([(await call).messages for call in calls])
        assert len(await machine.take(machine.core.session(), limit=50)) == come - 4


async def test_a_share_that_does_not_fit_into_a_result_goes_to_the_others(machine: Machine) -> None:
    """Only one of these goes into a result: what the first leaves, the next takes at once."""
    calls = [machine.wait(machine.core.session(), fits=Room().fits) for _ in range(2)]
    await machine.waiting(2)
    later = [machine.wait(machine.core.session(), fits=Room().fits, conversation_id="c1") for _ in range(2)]
    await machine.waiting(4)
    await machine.ask(*(f"{number}" + "x" * 15_000 for number in range(8)))
    async with asyncio.timeout(30):
        found = await asyncio.gather(*calls, *later)
    assert [len(each.messages) for each in found] == [1] * 4
    assert len(await machine.claimed()) == 4


async def test_one_whose_request_another_took_passes_on_what_there_is(machine: Machine) -> None:
    """The picky one is woken for the first request, which the other takes; the second is the other kind."""
    picky = machine.wait(machine.core.session("picky"), conversation_id="c2")
    await machine.waiting(1)
    first, second = machine.wait(machine.core.session("1")), machine.wait(machine.core.session("2"))
    await machine.waiting(3)
    await machine.ask("for the picky one", conversation="c2")
    await machine.ask("for anybody")
    async with asyncio.timeout(30):
        await asyncio.wait([picky, first, second], return_when=asyncio.FIRST_COMPLETED)
        await until(lambda: _both(machine), "both requests to be taken")
    for call in (picky, first, second):
        call.cancel()
    await asyncio.gather(picky, first, second, return_exceptions=True)


async def _both(machine: Machine) -> bool:
    return len(await machine.claimed()) == 2


def test_who_comes_when_others_were_just_woken_leaves_it_to_them() -> None:
    waiting = Waiting()
    one, two, three = (Session(name, "stdio") for name in ("one", "two", "three"))
    with waiting.queue(one, None) as first, waiting.queue(two, None) as second:
        assert (waiting.turn(first), waiting.turn(second)) == (None, None)
        for _ in range(3):
            waiting.wake("c1")
        with waiting.queue(three, None) as newcomer:
            assert waiting.turn(newcomer) == 0
            assert (waiting.turn(first), waiting.turn(second)) == (2, 1)
            waiting.took(second, 1, left=False)
            assert not newcomer.woken.is_set()
            waiting.took(first, 1, left=False)
            assert not first.woken.is_set()
            assert newcomer.woken.is_set()
            assert waiting.turn(newcomer) == 1
    with waiting.queue(one, None) as alone:
        assert waiting.turn(alone) is None
        waiting.wake_all()
        assert waiting.turn(alone) is None
