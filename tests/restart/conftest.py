from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, stack

from .machine import without_relay


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Stack]:
    """A relay and an empty home; hosts that are started in it start the daemon."""
    async with stack(tmp_path) as running:
        yield running


@pytest.fixture
async def bare(tmp_path: Path) -> AsyncIterator[Stack]:
    """An empty home without a relay."""
    running = without_relay(tmp_path)
    running.configure("keyring = false\n")
    try:
        yield running
    finally:
        await running.close()
