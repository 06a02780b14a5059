from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pacerelled.agent import outbox
from tests.cli.world import home, world  # noqa: F401
from tests.daemon.core import Core
from tests.daemon.scripted_relay import ScriptedRelay
from tests.outbound.scene import Scene


@pytest.fixture
async def relay() -> AsyncIterator[ScriptedRelay]:
    async with ScriptedRelay() as running:
        yield running


@pytest.fixture
async def scene(tmp_path: Path, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(outbox, "RETRY", 0.02)
    async with Core(tmp_path / "state") as core:
        ready = Scene(core, relay)
        await ready.begin()
        yield ready
