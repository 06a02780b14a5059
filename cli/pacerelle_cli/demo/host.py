"""An MCP host, as small as one can be: it starts a shim and speaks JSON-RPC with it over its pipes."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from itertools import count
from pathlib import Path
from typing import Any

from pacerelle_cli.errors import CliError

from .errors import DemoFailed
from .stage import Stage


def shim_command() -> list[str]:
    """The fast form of `pacerelle-mcp`: an interpreter that looks for nothing but the shim's file."""
    package = importlib.util.find_spec("pacerelle_shim")  # found, not imported: the shim is only ever run
    if package is None or package.origin is None:
        raise CliError("`pacerelle-mcp` is not part of this installation.")
    return [sys.executable, "-I", "-S", str(Path(package.origin).with_name("__main__.py"))]


class Host:
    """Made by `attach`. Calls may be made at the same time."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self._numbers = count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader = asyncio.create_task(self._read())

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result. Raises DemoFailed."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        try:
            message = await answer
        finally:
            del self._answers[number]
        if "error" in message:
            raise DemoFailed(f"{self.name}: {method} was answered with an error: {message['error'].get('message')}")
        result: dict[str, Any] = message["result"]
        return result

    async def tool(self, name: str, **arguments: Any) -> dict[str, Any]:
        """A tool's structured result. Raises DemoFailed."""
        result = await self.call("tools/call", name=name, arguments=arguments)
        if result.get("isError"):
            raise DemoFailed(f"{self.name}: {name} failed: {result['content'][0]['text']}")
        content: dict[str, Any] = result["structuredContent"]
        return content

    async def initialize(self) -> None:
        await self.call(
            "initialize",
            protocolVersion="2025-06-18",
            capabilities={},
            clientInfo={"name": self.name, "version": "1"},
        )
        await self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    async def _write(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        if self._reader.done():
            raise self._ended()
        try:
            self.process.stdin.write(json.dumps(message).encode() + b"\n")
            await self.process.stdin.drain()
        except ConnectionError as error:
            raise self._ended() from error

    async def _read(self) -> None:
        assert self.process.stdout is not None
        problem = None
        try:
            while line := await self.process.stdout.readline():
                message = json.loads(line)
                answer = self._answers.get(message.get("id")) if "method" not in message else None
                if answer is not None and not answer.done():
                    answer.set_result(message)
        except ValueError:
            problem = DemoFailed(f"The shim of {self.name} wrote something that is no JSON line.")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(problem or self._ended())

    def _ended(self) -> DemoFailed:
        return DemoFailed(f"The shim of {self.name} has ended.")


async def attach(stage: Stage, name: str, env: dict[str, str]) -> Host:
    """A new host; `env` is what its configuration gives to the shim."""
    return Host(name, await stage.spawn(f"shim-{name.lower()}", shim_command(), env=env, reads=True))
