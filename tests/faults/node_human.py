"""Drives `human.mjs`, where Node and Signal's library for it can be had."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

from pacerelle_phone.model import PairedAgent
from tests.e2e.stack import DEADLINE, until
from tests.outside.node import Unavailable, has, node, packages

PACKAGE = "@signalapp/libsignal-client"
VERSION = "0.101.0"
FOLDER = "PACERELLED_TEST_LIBSIGNAL"  # names a folder with the package in its node_modules


def library() -> Path:
    """The folder with the library. Raises Unavailable."""
    node()
    wanted = f"{PACKAGE}@{VERSION}"
    if given := os.environ.get(FOLDER):
        if not has(Path(given), wanted):
            raise Unavailable(f"{FOLDER} names a folder without {wanted}")
        return Path(given)
    return packages(wanted)


class NodeHuman:
    """A person with one device and one agent. Commands that fail raise AssertionError with their reason."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.user_id = ""
        self.device_id = ""
        self.agent = PairedAgent("", "", "")

    @classmethod
    async def start(cls, folder: Path) -> NodeHuman:
        script = Path(__file__).with_name("human.mjs")
        return cls(
            await asyncio.create_subprocess_exec(
                "node", "--no-warnings", "--experimental-websocket", str(script), str(folder),
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24,
            )
        )  # fmt: skip

    async def register(self, relay_url: str) -> None:
        answer = await self.do("register", relay=relay_url, name="ada")
        self.user_id, self.device_id = answer["user_id"], answer["device_id"]
        self.agent = PairedAgent(answer["agent_id"], answer["agent_token"], answer["conversation_id"])

    async def do(self, name: str, /, **fields: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": name, **fields}).encode() + b"\n")
        async with asyncio.timeout(DEADLINE):
            answer = json.loads(await self._process.stdout.readline())
        assert "ok" in answer, answer
        return answer["ok"]

    async def session(self, *, one_time: bool = True) -> None:
        """Begins one with the agent, once that has published its prekeys."""

        async def begun() -> Any:
            try:
                return await self.do("session", one_time=one_time)
            except AssertionError as error:
                if "answered 404" not in str(error):
                    raise
                return None

        assert (await until(begun, "the agent's prekeys"))["one_time"] == one_time

    async def seal(self, text: str, **fields: Any) -> dict[str, Any]:
        message: dict[str, Any] = await self.do("seal", text=text, **fields)
        return message

    async def post(self, message: dict[str, Any]) -> bool:
        """Returns whether the relay knew the message already."""
        answer = await self.do("post", message=message)
        assert answer["status"] == 202, answer
        return bool(answer["answer"]["duplicate"])

    async def send(self, text: str, **fields: Any) -> str:
        message = await self.seal(text, **fields)
        assert not await self.post(message)
        return str(message["id"])

    async def receive(self) -> dict[str, Any]:
        """The next message, still closed."""
        frame: dict[str, Any] = await self.do("receive", seconds=30)
        return frame

    async def open(self, frame: dict[str, Any]) -> dict[str, Any]:
        opened: dict[str, Any] = await self.do("open", frame=frame)
        return opened

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), 10)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
