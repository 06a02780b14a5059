from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.daemon.core import Core
from tests.e2e.stack import Stack, stack

from .bent import World


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Stack]:
    """A relay and an empty home."""
    async with stack(tmp_path) as running:
        yield running


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "world.json")


@pytest.fixture
async def core(tmp_path: Path) -> AsyncIterator[Core]:
    async with Core(tmp_path / "state") as running:
        yield running
