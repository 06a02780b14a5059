from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.stack import Stack, stack


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Stack]:
    """A relay and an empty home."""
    async with stack(tmp_path) as running:
        yield running
