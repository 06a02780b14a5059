"""A person's phone: `pacerelle chat` with a home of its own, one process for each thing it does."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from .errors import DemoFailed
from .stage import STEP_LIMIT, Stage


class Phone:
    def __init__(self, stage: Stage, relay_url: str) -> None:
        self.home = stage.home / "phone"
        self._stage = stage
        self._relay_url = relay_url

    async def pair(self, person: str, agent: str) -> dict[str, Any]:
        """A new account with a new agent: `{agent_id, agent_token, conversation_id}`."""
        running = await self._run("pair", "--name", person, "--new-agent", agent)
        made: dict[str, Any] = (await running.line())["agent"]
        await running.finished()
        return made

    async def send(self, text: str) -> Talk:
        """Writes to the agent. The first line of what it returns is the message, the next what answers it."""
        return await self._run("send", "--wait", f"{STEP_LIMIT:g}", "--", text)

    async def answer(self, value: str) -> Talk:
        """Answers the open widget; otherwise as `send`."""
        return await self._run("answer", "--wait", f"{STEP_LIMIT:g}", "--", value)

    async def _run(self, *arguments: str) -> Talk:
        options = ["--home", str(self.home), "--relay", self._relay_url, "--json"]
        command = [sys.executable, "-m", "pacerelle_cli", "chat", *options, *arguments]
        return Talk(self._stage, await self._stage.spawn("phone", command))


class Talk:
    """One running `pacerelle chat`."""

    def __init__(self, stage: Stage, process: asyncio.subprocess.Process) -> None:
        self._stage = stage
        self._process = process

    async def line(self) -> dict[str, Any]:
        """The next thing that the phone shows. Raises DemoFailed if it ends instead."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise DemoFailed(f"The phone failed: {' '.join(self._stage.tail('phone'))}")
        shown: dict[str, Any] = json.loads(line)
        return shown

    async def finished(self) -> None:
        """Waits for its end. Raises DemoFailed unless all went well."""
        if await self._process.wait() != 0:
            raise DemoFailed(f"The phone failed: {' '.join(self._stage.tail('phone'))}")
