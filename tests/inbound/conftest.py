from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pacerelled.agent.agent import Agent
from tests.daemon.core import Core
from tests.daemon.human import Human
from tests.daemon.scripted_relay import ScriptedRelay


@pytest.fixture
async def relay() -> AsyncIterator[ScriptedRelay]:
    async with ScriptedRelay() as running:
        yield running


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[Core]:
    async with Core(tmp_path / "state") as running:
        yield running


@pytest.fixture
async def agent(core: Core, relay: ScriptedRelay) -> Agent:
    return await core.agent(relay.url)


@pytest.fixture
async def ada(agent: Agent, relay: ScriptedRelay) -> Human:
    """A person's device that has the agent's prekeys and has not written yet."""
    return await Human.meet(relay)
