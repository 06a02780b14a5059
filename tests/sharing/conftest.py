from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .machine import Machine


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Machine]:
    async with Machine(tmp_path) as running:
        yield running
