"""`pacerelle` as a process, against a real ControlServer over the hub double."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pacerelled.servers.control import ControlServer
from pacerelled.servers.sockets import bind_unix
from tests.control.hub_double import AgentDouble, HubDouble

DEADLINE = 30.0


@dataclass
class Result:
    code: int
    out: str
    err: str


@dataclass
class Home:
    """A user's home; `store_root` is where commands look for the daemon."""

    path: Path

    @property
    def store_root(self) -> Path:
        return self.path / "store"

    @property
    def state(self) -> Path:
        return self.store_root / "pacerelled"

    def env(self, **more: str) -> dict[str, str]:
        base = {"PATH": os.environ["PATH"], "HOME": str(self.path), "PYTHONWARNINGS": "error", "TZ": "UTC"}
        return base | {"PACERELLE_STORE_ROOT": str(self.store_root)} | more

    async def run(self, *args: str, stdin: bytes = b"", env: dict[str, str] | None = None) -> Result:
        child = await asyncio.create_subprocess_exec(
            *command(*args),
            env=self.env(**(env or {})),
            cwd=self.path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(child.communicate(stdin), DEADLINE)
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        return Result(child.returncode or 0, out.decode(errors="replace"), err.decode())


@dataclass
class World(Home):
    hub: HubDouble

    async def agent(self, agent_id: str = "agent-1", token: str | None = "t") -> AgentDouble:
        return await self.hub.add_agent(agent_id, token=token, base_url=None, ws_url=None, e2ee=True)


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "pacerelle_cli", *args]


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)


@pytest.fixture
def home() -> Iterator[Home]:
    """No daemon runs here. pytest's own folders can be too deep for a socket's path."""
    folder = Path(tempfile.mkdtemp(prefix="pc-"))
    yield Home(folder)
    shutil.rmtree(folder)


@pytest.fixture
async def world(home: Home) -> AsyncIterator[World]:
    """A daemon runs here: its control server with a hub double."""
    hub, stopping = HubDouble(), asyncio.Event()
    home.state.mkdir(mode=0o700, parents=True)
    sock = bind_unix(home.state / "control.sock")
    server = ControlServer(hub, sock, paths={}, stop=stopping.set)  # type: ignore[arg-type]
    await server.start()
    yield World(home.path, hub)
    await server.stop()
