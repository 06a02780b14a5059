"""A real Claude Code connects over HTTP, with the entry that docs/http.md tells, in whichever era it speaks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.served import Served
from tests.outside.node import Unavailable
from tests.outside.real_hosts import claude_code

pytestmark = pytest.mark.outside

TIME = 120  # seconds for a command


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with Served(tmp_path) as running:
        yield running


async def test_claude_code_connects(served: Served, tmp_path: Path) -> None:
    try:
        program = claude_code()
    except Unavailable as why:
        pytest.skip(str(why))
    home = tmp_path / "home"
    home.mkdir()
    env = {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "ANTHROPIC_API_KEY": "none",
        "DISABLE_TELEMETRY": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
    }

    async def run(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            program, *arguments, cwd=home, env=env,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        try:
            said, _ = await asyncio.wait_for(process.communicate(), TIME)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        return said.decode()

    for name, token in (("right", await served.token()), ("wrong", "pcl_wrong")):
        header = f"Authorization: Bearer {token}"
        await run("mcp", "add", "--transport", "http", name, served.url, "--header", header)
    lines = (await run("mcp", "list")).splitlines()
    (right,) = [line for line in lines if line.startswith("right:")]
    (wrong,) = [line for line in lines if line.startswith("wrong:")]
    assert "Connected" in right
    assert "Connected" not in wrong
    assert served.core.hub.access.select()[0].last_used_at is not None
