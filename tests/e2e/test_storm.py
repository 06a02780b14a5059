"""500 requests for two agents and three hosts; then the same while daemon, shims and relay are killed."""

from __future__ import annotations

import random

import pytest

from tests.e2e.stack import Stack
from tests.e2e.storm import storm

CONFIG = "retry_uncertain = true\nreconnect_max = 1.0\nclaim_grace = 3.0\n"


async def test_each_request_is_handed_out_exactly_once(machine: Stack) -> None:
    machine.configure(CONFIG)
    await storm(machine, requests=500, kills=0, rng=random.Random(1))


async def test_nothing_is_lost_or_doubled_while_things_are_killed(machine: Stack) -> None:
    machine.configure(CONFIG)
    await storm(machine, requests=500, kills=8, rng=random.Random(2))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 20))
async def test_storms(machine: Stack, seed: int) -> None:
    machine.configure(CONFIG)
    await storm(machine, requests=500, kills=25, rng=random.Random(seed))
