"""The level, changed while a real daemon runs, by the call and by the command."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.daemon.process import Daemon, daemon
from tests.service.handing import ask


async def cli(running: Daemon, *words: str) -> tuple[int, str]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pacerelle_cli", "--store-root", str(running.root), *words),
        env=running.env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(child.communicate(), 30)
    return child.returncode or 0, out.decode()


async def test_a_daemon_says_more_or_less_from_now_on() -> None:
    with TemporaryDirectory() as home:
        async with daemon(Path(home), env={"PACERELLED_LOG_FORMAT": "json"}) as running:
            assert await ask(running, "GET", "/v1/log") == (200, {"level": "info"})
            status, body = await ask(running, "PUT", "/v1/log", {"level": "loud"})
            assert (status, body["error"]["argument"]) == (400, "level")
            assert (await ask(running, "PUT", "/v1/log", {}))[0] == 400
            assert await cli(running, "log", "level", "debug") == (0, "The daemon logs from debug on.\n")
            await ask(running, "GET", "/v1/agents/somebody/inbox")
            assert json.loads((await cli(running, "log", "level", "error", "--json"))[1])["level"] == "error"
            assert await cli(running, "log", "level") == (0, "The daemon logs from error on.\n")
            running.signal()
            await running.ended()
            lines = [json.loads(line) for line in (await running.errors()).splitlines()]
    messages = [line["message"] for line in lines]
    assert "GET /v1/agents/{id}/inbox: 404" in messages, "which call, and not of which agent"
    assert "Stopping" not in messages
