from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.daemon.core import Core
from tests.daemon.scripted_relay import ScriptedRelay

from .file_relay import Desk, desk


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Desk]:
    async with desk(tmp_path) as running:
        yield running


@pytest.fixture
async def relay() -> AsyncIterator[ScriptedRelay]:
    async with ScriptedRelay() as running:
        yield running


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[Core]:
    async with Core(tmp_path / "state", files_in=(tmp_path / "Inbox",)) as running:
        yield running
