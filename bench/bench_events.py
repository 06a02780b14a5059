"""How soon one hears of a request: from the relay's frame to the answer of a long poll, to a line of a stream, and to a
webhook's arrival; and what the log of events costs a message.

The clock runs from writing the frame, as in `bench latency`, so decrypting and the commit are in it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from pacerelled.store import events
from pacerelled.store.database import Store, Tx

from .stage import Agent, daemon, microseconds, relay

MESSAGES = 500
COMMITS = 2_000


def main() -> dict[str, Any]:
    """Microseconds."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return asyncio.run(_main(Path(folder)))


async def _main(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = {}
    async with relay() as serving:
        agent = serving.agent("agent-1")
        async with daemon(serving, agent, folder / "home") as state:
            await agent.hand(agent.frames(1, "hello"))
            connector = aiohttp.UnixConnector(str(state / "control.sock"))
            async with aiohttp.ClientSession("http://localhost", connector=connector) as control:
                print("frame → told, µs      median   mean    p99")
                for name, measure in (("long_poll", _long_poll), ("stream", _stream), ("webhook", _webhook)):
                    result[name] = microseconds(await measure(agent, control))
                    _row(name, result[name])
    result["log"] = await _cost(folder)
    return result


async def _long_poll(agent: Agent, control: aiohttp.ClientSession) -> list[float]:
    async def begin() -> Callable[[], Awaitable[None]]:
        call = asyncio.create_task(_get(control, "/v1/events?type=message.received&wait_s=30"))
        await asyncio.sleep(0.003)  # until it waits

        async def told() -> None:
            assert (await call)["events"]

        return told

    return [await _one(agent, begin) for _ in range(MESSAGES)]


async def _stream(agent: Agent, control: aiohttp.ClientSession) -> list[float]:
    headers = {"Accept": "text/event-stream"}
    async with control.get("/v1/events?type=message.received", headers=headers) as response:

        async def told() -> None:
            async for line in response.content:
                if line.startswith(b"data:"):
                    return

        async def begin() -> Callable[[], Awaitable[None]]:
            await asyncio.sleep(0.003)
            return told

        return [await _one(agent, begin) for _ in range(MESSAGES)]


async def _webhook(agent: Agent, control: aiohttp.ClientSession) -> list[float]:
    arrived: asyncio.Queue[None] = asyncio.Queue()

    async def take(request: web.Request) -> web.Response:
        arrived.put_nowait(None)
        return web.Response(status=204)

    app = web.Application()
    app.router.add_post("/", take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    wanted = {"url": f"http://127.0.0.1:{port}/", "types": ["message.received"]}
    async with control.post("/v1/webhooks", json=wanted) as response:
        webhook_id = (await response.json())["webhook"]["id"]

    async def begin() -> Callable[[], Awaitable[None]]:
        await asyncio.sleep(0.01)  # until the last delivery's row is written
        return arrived.get

    try:
        return [await _one(agent, begin) for _ in range(MESSAGES)]
    finally:
        async with control.delete(f"/v1/webhooks/{webhook_id}"):
            pass
        await runner.cleanup()


async def _one(agent: Agent, begin: Callable[[], Awaitable[Callable[[], Awaitable[None]]]]) -> float:
    (frame,) = agent.frames(1)
    told = await begin()
    assert agent.ws is not None
    began = time.perf_counter()
    agent.ws.transport.write(frame)
    await told()
    took = time.perf_counter() - began
    await agent.ws.recv()  # its acknowledgement
    return took


async def _get(control: aiohttp.ClientSession, path: str) -> Any:
    async with control.get(path) as response:
        return await response.json()


async def _cost(folder: Path) -> dict[str, Any]:
    """Of the event in a transaction that writes a row as well, measured in turn with the same without it."""
    store = await Store.open(folder / "store.db", bytes(32), new=True)
    with_s: list[float] = []
    without_s: list[float] = []
    only_s: list[float] = []

    def row(tx: Tx) -> None:
        tx.execute(
            "INSERT INTO receipts (agent_id, message_id, digest, day) VALUES ('a', lower(hex(randomblob(16))), 'd', 0)"
        )

    def event(tx: Tx) -> None:
        began = time.perf_counter()
        events.add(tx, "a", "message.received", message_id="m" * 36, conversation_id="c" * 36, sender="u", kind="text")
        only_s.append(time.perf_counter() - began)

    def both(tx: Tx) -> None:
        row(tx)
        event(tx)

    for _ in range(COMMITS):
        for job, times in ((row, without_s), (both, with_s)):
            began = time.perf_counter()
            await store.run(job)
            times.append(time.perf_counter() - began)
    await store.close()
    found = {
        "commit_without": microseconds(without_s),
        "commit_with": microseconds(with_s),
        "insert_alone": microseconds(only_s),
    }
    print("\nthe log, µs           median   mean    p99")
    for name, figures in found.items():
        _row(name, figures)
    return found


def _row(name: str, figures: dict[str, float]) -> None:
    median, mean, p99 = (figures[part] for part in ("median", "mean", "p99"))
    print(f"{name.replace('_', ' '):<20} {median:>7.0f} {mean:>6.0f} {p99:>6.0f}", flush=True)
