"""A real relay, real agents on the official SDK in processes of their own, and phones in temporary homes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from phone_world import OpenPhone, SdkAgent, StartAgent, run_agent

from pacerelle_phone.device import Device
from pacerelle_phone.model import PairedAgent
from pacerelle_relay.server import Relay, RelayConfig

StartRelay = Callable[..., Awaitable[Relay]]


@pytest.fixture
async def start_relay(tmp_path: Path) -> AsyncIterator[StartRelay]:
    """Starts the relay, again on the same data and port if `port` is given. Stopped at the end."""
    async with AsyncExitStack() as stack:

        async def start(port: int = 0) -> Relay:
            config = RelayConfig(database=tmp_path / "relay" / "relay.db", port=port)
            return await stack.enter_async_context(Relay(config))

        yield start


@pytest.fixture
async def relay(start_relay: StartRelay) -> Relay:
    return await start_relay()


@pytest.fixture
async def start_agent(relay: Relay, tmp_path: Path) -> AsyncIterator[StartAgent]:
    running: list[SdkAgent] = []

    async def start(paired: PairedAgent, store: str = "agent") -> SdkAgent:
        agent = await run_agent(paired, relay.url, tmp_path / store)
        running.append(agent)
        return agent

    yield start
    for agent in running:
        await agent.kill()


@pytest.fixture
async def open_phone(relay: Relay, tmp_path: Path) -> AsyncIterator[OpenPhone]:
    """Opens the phone in `tmp_path/<name>`, registered unless told otherwise. Closed at the end."""
    async with AsyncExitStack() as stack:

        async def start(name: str = "phone", *, register: bool = True) -> Device:
            phone = await stack.enter_async_context(await Device.open(tmp_path / name, relay.url))
            if register and not phone.is_paired:
                await phone.register(name)
            return phone

        yield start


@pytest.fixture
async def phone(open_phone: OpenPhone) -> Device:
    return await open_phone()
