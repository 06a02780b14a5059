"""SIGKILL at each point of a message's way: every request is handed out, every reply arrives once or is uncertain."""

from __future__ import annotations

import random
import signal

import pytest

from pacerelled.agent.outbox import TRIES
from tests.e2e.stack import Stack, until
from tests.faults.crashing import POINTS
from tests.faults.keeper import Keeper
from tests.faults.traffic import Traffic

CONFIG = "reconnect_max = 0.3\nclaim_grace = 20.0\n"


MAKING_UNCERTAIN = ("reply about to be sent", "reply sent", "reply confirmed")


async def crash(
    machine: Stack, point: str, *, retrying: bool, requests: int, kills: int, most: int, hosts: int
) -> None:
    machine.configure(CONFIG + ("retry_uncertain = true\n" if retrying else ""))
    rng = random.Random(point)
    async with (
        Keeper.watching(machine, point, kills=kills, most=most, rng=rng) as keeper,
        Traffic.going_on(machine, hosts=hosts, all_certain=retrying and kills < TRIES) as traffic,
    ):
        await traffic.ask(requests)
        while not keeper.all_died.is_set():  # what is under way may be over before the last one dies
            await until(lambda: keeper.all_died.is_set() or traffic.is_quiet, "the next crash", 600)
            if not keeper.all_died.is_set():
                await traffic.ask(1)
        await traffic.ask(1)
        await traffic.check()
        assert keeper.ends == [-signal.SIGKILL] * kills


@pytest.mark.parametrize("point", POINTS)
async def test_nothing_is_lost_or_doubled_by_a_crash(machine: Stack, point: str) -> None:
    await crash(machine, point, retrying=True, requests=10, kills=2, most=4, hosts=1)


@pytest.mark.parametrize("point", MAKING_UNCERTAIN)
async def test_what_may_have_left_stays_uncertain(machine: Stack, point: str) -> None:
    await crash(machine, point, retrying=False, requests=10, kills=1, most=4, hosts=1)


@pytest.mark.long
@pytest.mark.parametrize("retrying", [True, False])
@pytest.mark.parametrize("point", POINTS)
async def test_nothing_is_lost_or_doubled_by_many_crashes(machine: Stack, point: str, retrying: bool) -> None:
    await crash(machine, point, retrying=retrying, requests=150, kills=10, most=15, hosts=3)
