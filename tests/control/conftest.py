"""A real ControlServer on a real Unix socket, over the hub double."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from pacerelled.servers.control import ControlServer
from pacerelled.servers.sockets import bind_unix
from tests.control.hub_double import Control, HubDouble


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """pytest's own folders can be too deep for a socket's path."""
    folder = Path(tempfile.mkdtemp(prefix="pc-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def control(short_dir: Path) -> AsyncIterator[Control]:
    path = short_dir / "control.sock"
    hub, stops = HubDouble(), []
    server = ControlServer(
        hub,  # type: ignore[arg-type]
        bind_unix(path),
        paths={"store": "/somewhere/store.db"},
        stop=lambda: stops.append("stop"),
    )
    await server.start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
        yield Control(hub, server, path, http, stops)
    await server.stop()
