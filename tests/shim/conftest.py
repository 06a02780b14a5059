from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .shim_host import Daemon, World, a_world


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="shim-") as home:  # shorter than tmp_path: sockets lie in it
        async with a_world(Path(home)) as world:
            yield world


@pytest.fixture
async def daemon(world: World) -> AsyncIterator[Daemon]:
    daemon = Daemon(world.socket)
    await daemon.start()
    yield daemon
    await daemon.close()
