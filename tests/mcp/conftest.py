from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from mcp_client import Daemon
from mcp_hub import HubDouble


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    """mcp.sock of a daemon with one agent, "a1"."""
    daemon = Daemon(tmp_path / "mcp.sock", HubDouble("a1"))
    daemon.server.start()
    yield daemon
    await daemon.server.stop()
