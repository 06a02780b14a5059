"""A daemon of its own for these tests: a process that can be killed and started again, and a client of control.sock."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp

from pacerelle_protocol.local import LocalPaths, local_paths

DEADLINE = 30.0  # seconds


async def until(condition: Callable[[], Any], what: str = "the condition", deadline: float = DEADLINE) -> Any:
    """Polls until `condition()` (which may be a coroutine function) is true; returns its value."""
    loop = asyncio.get_running_loop()
    end = loop.time() + deadline
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert loop.time() < end, f"timed out waiting for {what}"
        await asyncio.sleep(0.02)


class Daemon:
    """`pacerelled` in the foreground, with an agent that has no token: nothing leaves this machine."""

    def __init__(self, home: Path, settings: str = "") -> None:
        self.home = home
        self.root = home / "root"
        self.process: asyncio.subprocess.Process | None = None
        self.paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.paths.config.write_text('base_url = "http://127.0.0.1:9"\nkeyring = false\n' + settings)

    @property
    def paths(self) -> LocalPaths:
        return local_paths(str(self.root), env={}, uid=os.getuid())

    async def start(self, **env: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-m", "pacerelled", "--store-root", str(self.root),
            env={"HOME": str(self.home), "PATH": os.environ["PATH"], "PACERELLE_AGENT_ID": "a1", **env},
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await until(self._answers, "the daemon")

    async def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()

    async def stop(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.terminate()
            await asyncio.wait_for(self.process.wait(), DEADLINE)

    @contextlib.asynccontextmanager
    async def control(self) -> AsyncIterator[aiohttp.ClientSession]:
        connector = aiohttp.UnixConnector(str(self.paths.control_sock))
        async with aiohttp.ClientSession("http://localhost", connector=connector) as session:
            yield session

    async def call(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, Any]:
        async with self.control() as control, control.request(method, path, json=body, params=query) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else None

    async def get(self, path: str, **query: Any) -> Any:
        status, body = await self.call("GET", path, **query)
        assert status == 200, body
        return body

    async def events(self, *types: str) -> list[dict[str, Any]]:
        found = await self.get("/v1/events", last=500, type=",".join(types))
        return list(found["events"])

    async def _answers(self) -> bool:
        try:
            return (await self.call("GET", "/v1/status"))[0] == 200
        except aiohttp.ClientError:
            return False


@contextlib.asynccontextmanager
async def daemon(home: Path, settings: str = "", **env: str) -> AsyncIterator[Daemon]:
    running = Daemon(home, settings)
    try:
        await running.start(**env)
        yield running
        await running.stop()
    finally:
        await running.kill()
