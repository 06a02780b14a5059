from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.e2e.stack import RelayProcess, Stack


class SharedRelay(RelayProcess):
    """Nobody here harms the relay, so that one serves all tests: each has people of its own."""

    async def kill(self) -> None:
        pass


@pytest.fixture(scope="session")
def relay(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayProcess]:
    data = tmp_path_factory.mktemp("relay")
    command = [sys.executable, "-m", "pacerelle_cli", "relay", "--json", "--data", str(data), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            yield SharedRelay(data, url=json.loads(process.stdout.readline())["url"])
        finally:
            process.kill()


@pytest.fixture
async def machine(tmp_path: Path, relay: RelayProcess) -> AsyncIterator[Stack]:
    """An empty home, and the relay."""
    running = Stack(tmp_path, relay)
    try:
        yield running
    finally:
        await running.close()
