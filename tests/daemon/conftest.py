from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .core import Core
from .scripted_relay import ScriptedRelay


@pytest.fixture
async def relay() -> AsyncIterator[ScriptedRelay]:
    async with ScriptedRelay() as running:
        yield running


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[Core]:
    async with Core(tmp_path / "state") as running:
        yield running
