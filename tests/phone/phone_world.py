"""What the phone's tests share: an agent on the official SDK as a process of its own."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from pacerelle_phone.device import Device
from pacerelle_phone.model import PairedAgent

DEADLINE = 30.0  # seconds; generous, since the machine may be busy
COMMAND = (sys.executable, "-c", "from pacerelle_phone.cli import chat; chat(prog_name='pacerelle chat')")
AGENT_SCRIPT = Path(__file__).parent / "phone_sdk_agent.py"


@dataclass
class SdkAgent:
    """A running agent process. `code` is the SDK's verification code."""

    paired: PairedAgent
    process: asyncio.subprocess.Process
    code: str

    @property
    def agent_id(self) -> str:
        return self.paired.agent_id

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def run_agent(paired: PairedAgent, relay_url: str, store: Path) -> SdkAgent:
    """Returns once the agent has published its keys."""
    env = os.environ | {
        "PACERELLE_AGENT_ID": paired.agent_id,
        "PACERELLE_AGENT_TOKEN": paired.agent_token,
        "PACERELLE_BASE_URL": relay_url,
        "AGENT_STORE": str(store),
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(AGENT_SCRIPT), env=env, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(DEADLINE):
        line = (await process.stdout.readline()).decode()
    assert line.startswith("ready "), "the agent did not start"
    return SdkAgent(paired, process, line.removeprefix("ready ").strip())


async def until_read(phone: Device, message_id: str) -> None:
    """The agent has acknowledged the message: killed now, it does not get it again."""
    async with asyncio.timeout(DEADLINE):
        while (await phone.message(message_id)).state != "read":  # noqa: ASYNC110 - it is the state that counts
            await asyncio.sleep(0.01)


StartAgent = Callable[..., Awaitable[SdkAgent]]
OpenPhone = Callable[..., Awaitable[Device]]
