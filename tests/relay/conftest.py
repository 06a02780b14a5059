"""A relay in this process, on a free port, with its data in a temporary directory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from relay_people import Agent, Device

from pacerelle_relay.limits import Limits
from pacerelle_relay.server import Relay, RelayConfig

StartRelay = Callable[..., Awaitable[Relay]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Where the relay of this test keeps its database."""
    return tmp_path / "relay"


@pytest.fixture
async def start_relay(data: Path) -> AsyncIterator[StartRelay]:
    """Starts a relay with other settings; stopped at the end."""
    async with AsyncExitStack() as stack:

        async def start(limits: Limits | None = None, **more: Any) -> Relay:
            config = RelayConfig(data / "relay.db", limits=limits or Limits(), **more)
            return await stack.enter_async_context(Relay(config))

        yield start


@pytest.fixture
async def relay(start_relay: StartRelay) -> Relay:
    return await start_relay()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def ann(relay: Relay, http: aiohttp.ClientSession) -> Device:
    return await Device.first(http, relay.url)


@pytest.fixture
async def agent(ann: Device) -> Agent:
    return await ann.new_agent()
