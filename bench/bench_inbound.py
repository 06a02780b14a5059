"""What one inbound request costs, from the relay's frame to ACK_READ, when many have been accepted before.

Ours and the official SDK's, each a real process, beside the floor: all are measured in turn, a few messages each, so
that what else the machine does falls on all alike. Our requests are all really sent; the SDK's earlier ones are
written into its store (a receipt and a reply context each, as it writes them), since sending 50,000 would take hours.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
import statistics
import tempfile
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from .floor import Floor
from .stage import CONVERSATION, DEVICE, Agent, Relay, awake, daemon, microseconds, relay, sdk_agent

LEVELS = (0, 1_000, 10_000, 50_000)
ROUNDS = 40
EACH = 20  # messages of ours in a round
SDK_EACH = {0: 10, 1_000: 5, 10_000: 1, 50_000: 1}
SDK_ROUNDS = 10
BURST = 3_000
BURSTS = 7
BATCH = 64  # the daemon's


def main() -> dict[str, Any]:
    """Microseconds a message, by the number accepted before; messages a second in a burst."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        return asyncio.run(_main(Path(folder)))


async def _main(folder: Path) -> dict[str, Any]:
    floor = Floor(folder / "floor")
    async with AsyncExitStack() as stack:
        serving = await stack.enter_async_context(relay())
        ours = {level: await _our_agent(stack, serving, folder, level) for level in LEVELS}
        sdk = {level: await _sdk_agent(stack, serving, folder, level) for level in LEVELS}
        ours_s: dict[int, list[float]] = {level: [] for level in LEVELS}
        sdk_s: dict[int, list[float]] = {level: [] for level in LEVELS}
        floor_s: list[float] = []
        for _ in range(ROUNDS):
            for level in LEVELS:
                ours_s[level] += await _one_by_one(ours[level], EACH)
                floor_s += floor.seconds(EACH // 4)
        for _ in range(SDK_ROUNDS):
            for level in LEVELS:
                sdk_s[level] += await _one_by_one(sdk[level], SDK_EACH[level])
        bursts = [await _burst(ours[0]) for _ in range(BURSTS)]
        floor_batch = statistics.median(floor.seconds(60, batch=BATCH))
        ping = [await _ping(ours[0]) for _ in range(200)]
    floor.close()
    return _report(ours_s, sdk_s, floor_s, bursts, BATCH / floor_batch, statistics.median(ping))


def _report(
    ours_s: dict[int, list[float]],
    sdk_s: dict[int, list[float]],
    floor_s: list[float],
    bursts: list[float],
    floor_rate: float,
    ping: float,
) -> dict[str, Any]:
    ours = {level: microseconds(times) for level, times in ours_s.items()}
    sdk = {level: microseconds(times) for level, times in sdk_s.items()}
    floor, rate = microseconds(floor_s), statistics.median(bursts)
    base = floor["median"]
    print("accepted before      ours, µs: median   mean    p99   / floor  / at 0      SDK, µs: median      SDK / ours")
    for level in LEVELS:
        mine, theirs = ours[level], sdk[level]
        print(
            f"{level:>15,} {mine['median']:>20.0f} {mine['mean']:>6.0f} {mine['p99']:>6.0f}"
            f" {mine['median'] / base:>8.2f} {mine['median'] / ours[0]['median']:>7.3f}"
            f" {theirs['median']:>20,.0f} {theirs['median'] / mine['median']:>14,.1f}"
        )
    print(f"floor (decrypt + one commit): {base:.0f} µs median, {floor['mean']:.0f} mean, {floor['p99']:.0f} p99")
    print(f"a WebSocket ping to the daemon and back: {ping * 1e6:.0f} µs")
    print(
        f"a burst of {BURST:,}: {rate:,.0f} messages a second (median of {BURSTS});"
        f" the floor in commits of {BATCH}: {floor_rate:,.0f}"
    )
    return {
        "ours_us": ours,
        "sdk_us": sdk,
        "floor_us": floor,
        "ping_us": round(ping * 1e6, 1),
        "ours_to_floor": {level: round(ours[level]["median"] / base, 2) for level in LEVELS},
        "ours_to_ours_at_0": {level: round(ours[level]["median"] / ours[0]["median"], 3) for level in LEVELS},
        "sdk_to_ours": {level: round(sdk[level]["median"] / ours[level]["median"], 1) for level in LEVELS},
        "burst_per_second": round(rate),
        "floor_burst_per_second": round(floor_rate),
    }


async def _one_by_one(agent: Agent, count: int) -> list[float]:
    times = []
    async with awake():
        for frame in [agent.frames(1) for _ in range(count)]:
            began = time.perf_counter()
            await agent.hand(frame)
            times.append(time.perf_counter() - began)
    return times


async def _burst(agent: Agent) -> float:
    """Messages a second."""
    frames = agent.frames(BURST)
    began = time.perf_counter()
    await agent.hand(frames)
    return BURST / (time.perf_counter() - began)


async def _ping(agent: Agent) -> float:
    assert agent.ws is not None
    began = time.perf_counter()
    await (await agent.ws.ping())
    return time.perf_counter() - began


async def _our_agent(stack: AsyncExitStack, serving: Relay, folder: Path, level: int) -> Agent:
    agent = serving.agent(f"agent-{level}")
    state = await stack.enter_async_context(daemon(serving, agent, folder / agent.id))
    await agent.hand(agent.frames(1, "hello"))
    connector = aiohttp.UnixConnector(str(state / "control.sock"))
    async with aiohttp.ClientSession("http://localhost", connector=connector) as control:
        message = {"text": "hello", "conversation_id": CONVERSATION}
        async with control.post("/v1/agents/-/messages", json=message) as answer:
            answer.raise_for_status()
    await agent.receive()
    for _ in range(0, level, 1_000):
        await agent.hand(agent.frames(1_000))
    await _one_by_one(agent, EACH)
    return agent


async def _sdk_agent(stack: AsyncExitStack, serving: Relay, folder: Path, level: int) -> Agent:
    agent = serving.agent(f"sdk-{level}")
    home = folder / agent.id
    async with sdk_agent(serving, agent, home):
        assert agent.ws is not None
        agent.ws.transport.write(b"".join(agent.frames(1, "hello")))
        await agent.receive()
        await agent.ws.recv()
    _add_accepted(home / agent.id / "signal.db", level)
    await stack.enter_async_context(sdk_agent(serving, agent, home))
    await _one_by_one(agent, 1)
    return agent


def _add_accepted(database: Path, count: int) -> None:
    conn = sqlite3.connect(database)
    state = json.loads(conn.execute("SELECT blob FROM signal_snapshot").fetchone()[0])
    context = {"from": "person-1", "conversation_id": CONVERSATION, "device_id": DEVICE}
    for _ in range(count):
        message_id = str(uuid.uuid4())
        state["accepted_messages"][message_id] = {"digest": secrets.token_hex(32), "accepted_at": time.time()}
        state["reply_contexts"][message_id] = context
    blob = json.dumps(state, separators=(",", ":")).encode()
    with conn:
        conn.execute("UPDATE signal_snapshot SET blob = ?", (blob,))
    conn.close()
