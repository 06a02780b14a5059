from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .served import Served


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with Served(tmp_path) as running:
        yield running
