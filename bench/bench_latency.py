"""How long a host that waits takes to get a new request, from the relay's frame to the answer of `wait_for_messages`.

One host waits while twenty others are attached, first idle, then all of them waiting as well; each is a connection to
mcp.sock (`bench shim` measures what a shim adds). Beside it the floor, measured in turn with it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from .floor import Floor
from .stage import Agent, daemon, microseconds, relay

OTHERS = 20  # hosts beside the one that waits
MESSAGES = 1_000
EACH = 25  # messages between two looks at the floor


def main() -> dict[str, Any]:
    """Microseconds from the frame to the answer."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return asyncio.run(_main(Path(folder)))


async def _main(folder: Path) -> dict[str, Any]:
    floor = Floor(folder / "floor")
    floor_s: list[float] = []
    idle_s: list[float] = []
    waiting_s: list[float] = []
    async with AsyncExitStack() as stack:
        serving = await stack.enter_async_context(relay())
        agent = serving.agent("agent-1")
        state = await stack.enter_async_context(daemon(serving, agent, folder / "home"))
        await agent.hand(agent.frames(1, "hello"))
        host, *others = [await stack.enter_async_context(_host(state / "mcp.sock")) for _ in range(OTHERS + 1)]
        (first,) = await host.wait()
        await host.tool("send_message", text="hello", sourceMessageId=first["message_id"])
        await agent.receive()
        await host.tool("mark_processed", messageId=first["message_id"])
        for _ in range(MESSAGES // EACH):
            idle_s += [await _one(agent, [host]) for _ in range(EACH)]
            floor_s += floor.seconds(EACH // 4)
        for one in others:
            one.begin_waiting()
        for _ in range(MESSAGES // EACH):
            waiting_s += [await _one(agent, [host, *others]) for _ in range(EACH)]
            floor_s += floor.seconds(EACH // 4)
    floor.close()
    return _report(idle_s, waiting_s, floor_s)


def _report(idle_s: list[float], waiting_s: list[float], floor_s: list[float]) -> dict[str, Any]:
    floor = microseconds(floor_s)
    result: dict[str, Any] = {"floor_us": floor}
    print("frame → answer, µs           median   mean    p99   median / floor   p99 / floor's p99")
    for name, times in (("others_idle", idle_s), ("others_waiting", waiting_s)):
        figures = microseconds(times)
        ratios = {part: round(figures[part] / floor[part], 2) for part in ("median", "p99")}
        print(
            f"{OTHERS} {name.replace('_', ' '):<24} {figures['median']:>8.0f} {figures['mean']:>6.0f}"
            f" {figures['p99']:>6.0f} {ratios['median']:>16.2f} {ratios['p99']:>19.2f}"
        )
        result[name] = {"us": figures, "to_floor": ratios}
    print(f"floor (decrypt + one commit) {floor['median']:>7.0f} {floor['mean']:>6.0f} {floor['p99']:>6.0f}")
    return result


async def _one(agent: Agent, hosts: list[Host]) -> float:
    """Sends a request to `hosts`, of which at least one waits; marks it processed afterwards."""
    for host in hosts:
        host.begin_waiting()
    (frame,) = agent.frames(1)
    assert agent.ws is not None
    await asyncio.sleep(0.002)  # until the waiting call has arrived
    began = time.perf_counter()
    agent.ws.transport.write(frame)
    done, _ = await asyncio.wait([host.waiting for host in hosts if host.waiting], return_when=asyncio.FIRST_COMPLETED)
    took = time.perf_counter() - began
    await agent.ws.recv()
    for host in hosts:
        if host.waiting in done:
            (message,) = await host.wait()
            await host.tool("mark_processed", messageId=message["message_id"])
    return took


class Host:
    """A host's MCP session on mcp.sock; one call at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._numbers = itertools.count()
        self.waiting: asyncio.Task[list[dict[str, Any]]] | None = None

    def begin_waiting(self) -> None:
        if self.waiting is None:
            self.waiting = asyncio.create_task(self._until_messages())

    async def wait(self) -> list[dict[str, Any]]:
        """The messages of the call that was begun, or of a new one."""
        self.begin_waiting()
        assert self.waiting is not None
        messages = await self.waiting
        self.waiting = None
        return messages

    async def _until_messages(self) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        while not messages:
            messages = (await self.tool("wait_for_messages", timeoutMs=30_000))["messages"]
        return messages

    async def tool(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        answer = await self.call("tools/call", {"name": name, "arguments": arguments})
        content: dict[str, Any] = answer["result"]["structuredContent"]
        return content

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        self.write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        while (answer := json.loads(await self._reader.readline())).get("id") != number:
            pass
        result: dict[str, Any] = answer
        return result

    def write(self, message: dict[str, Any]) -> None:
        self._writer.write(json.dumps(message).encode() + b"\n")


@asynccontextmanager
async def _host(sock: Path) -> AsyncIterator[Host]:
    reader, writer = await asyncio.open_unix_connection(str(sock), limit=1 << 24)
    host = Host(reader, writer)
    try:
        hello = {"pacerelle": "hello", "v": 1, "session": secrets.token_hex(16), "shim": "bench", "pid": os.getpid()}
        host.write(hello)
        await reader.readline()
        client = {"name": "bench", "version": "1"}
        await host.call("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        host.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield host
    finally:
        if host.waiting is not None:
            host.waiting.cancel()
            await asyncio.gather(host.waiting, return_exceptions=True)
        writer.close()
        await writer.wait_closed()
