"""Many requests, several hosts and agents, and things being killed: what must hold anyway."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from pacerelle_phone.device import Device
from pacerelle_phone.model import PairedAgent
from tests.e2e.stack import Host, HostGone, Stack, until


@dataclass
class Seen:
    """What hosts and phones saw, by message id."""

    new: Counter[str] = field(default_factory=Counter)
    again: Counter[str] = field(default_factory=Counter)
    after_processed: list[str] = field(default_factory=list)
    processed: set[str] = field(default_factory=set)
    accepted: dict[str, str] = field(default_factory=dict)  # request -> the reply that the daemon took on
    by_host: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


class Worker:
    """An assistant in a host: waits, replies once to each request, marks it processed; comes back when killed."""

    def __init__(self, stack: Stack, agent: PairedAgent, name: str, seen: Seen) -> None:
        self.stack, self.agent, self.name, self.seen = stack, agent, name, seen
        self.host: Host | None = None
        self.replied: set[str] = set()
        self.restarts = 0

    async def run(self) -> None:
        while True:
            try:
                self.host = await self.stack.host(self.agent, self.name)
                while True:
                    await self._round(self.host)
            except HostGone:
                self.restarts += 1
                assert self.host is not None
                with contextlib.suppress(HostGone):
                    await self.host.stop()

    async def _round(self, host: Host) -> None:
        got = await host.tool("wait_for_messages", timeoutMs=5000, limit=5)
        for message in got["messages"]:
            known = message["message_id"] in self.seen.processed
            if message["delivery"] == "new":
                self.seen.new[message["message_id"]] += 1
                if known:
                    self.seen.after_processed.append(message["message_id"])
            else:
                self.seen.again[message["message_id"]] += 1
            self.seen.by_host[self.name].add(message["message_id"])
        for message in got["messages"]:
            message_id = message["message_id"]
            if message_id not in self.replied:
                sent = await host.tool("send_message", text=f"re: {message['text']}", sourceMessageId=message_id)
                self.replied.add(message_id)
                self.seen.accepted[message_id] = sent["message_id"]
            await host.tool("mark_processed", messageId=message_id)
            self.seen.processed.add(message_id)


async def storm(stack: Stack, *, requests: int, kills: int, rng: random.Random) -> None:
    """`requests` from two devices to two agents with three hosts, while `kills` things are killed."""
    first = await stack.phone("ada")
    code, _ = await first.create_link_code()
    second = await stack.phone("tablet", register=False)
    await second.link(code)
    agents = [await first.create_agent("one"), await first.create_agent("two")]
    seen = Seen()
    workers = [
        Worker(stack, agents[0], "host-a", seen),
        Worker(stack, agents[0], "host-b", seen),
        Worker(stack, agents[1], "host-c", seen),
    ]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    asked: dict[str, tuple[Device, str]] = {}
    try:
        for device in (first, second):
            for agent in agents:
                await ready(device, agent)
        sending = asyncio.create_task(_send_all([first, second], agents, requests, asked))
        for _ in range(kills):
            await asyncio.sleep(rng.uniform(0.1, 1.0))
            await _kill_something(stack, workers, rng)
        await sending
        # Not by what was answered to mark_processed: a host may be killed before it reads the answer.
        await until(lambda: failed(running) or len(seen.new | seen.again) >= requests, "all requests to be seen", 180)
        assert not failed(running)
        await nothing_left(workers)
        await all_replies(asked)
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    assert len(asked) == requests
    sightings = {m: seen.new[m] + seen.again[m] for m in asked}
    assert all(sightings.values()), "a request was never handed out"
    twice = [m for m in asked if seen.new[m] > 1]
    assert not twice, f"{len(twice)} requests were handed out as new more than once"
    assert not seen.after_processed
    assert seen.by_host["host-c"].isdisjoint(seen.by_host["host-a"] | seen.by_host["host-b"])
    if not kills:
        assert all(seen.new[m] == 1 and seen.again[m] == 0 for m in asked)
        assert seen.by_host["host-a"].isdisjoint(seen.by_host["host-b"])
        assert seen.by_host["host-a"]
        assert seen.by_host["host-b"]


def failed(tasks: list[asyncio.Task[None]]) -> bool:
    for task in tasks:
        if task.done():
            task.result()
    return False


async def ready(device: Device, agent: PairedAgent) -> None:
    """Prekeys are published once the daemon has connected."""

    async def known() -> bool:
        return any(a.agent_id == agent.agent_id and a.connected for a in await device.agents())

    await until(known, "the agent to connect")


async def _send_all(
    devices: list[Device], agents: list[PairedAgent], count: int, asked: dict[str, tuple[Device, str]]
) -> None:
    for number in range(count):
        device, agent = devices[number % 2], agents[number // 2 % 2]
        text = f"request {number}"
        asked[await device.send(agent.agent_id, text)] = (device, text)
        if number % 10 == 9:
            await asyncio.sleep(0.01)


async def _kill_something(stack: Stack, workers: list[Worker], rng: random.Random) -> None:
    what = rng.choice(["daemon", "shim", "relay", "shim", "daemon"])
    if what == "daemon":
        stack.kill_daemon()
    elif what == "shim":
        worker = rng.choice(workers)
        if worker.host is not None:
            worker.host.kill()
    else:
        await stack.relay.kill()
        await asyncio.sleep(rng.uniform(0, 0.3))
        await stack.relay.start()


async def all_replies(asked: dict[str, tuple[Device, str]]) -> None:
    """Every request has its reply, decrypted, on the device that asked."""
    wanted = dict(asked)
    counted: Counter[str] = Counter()
    for device in {id(d): d for d, _ in asked.values()}.values():
        async with asyncio.timeout(120):
            async for message in device.messages(0):
                if message.direction != "in":
                    continue
                assert message.kind == "text", f"{message.kind}: {message.reason}"
                counted[message.id] += 1
                assert message.reply_to is not None
                source = wanted.pop(message.reply_to, None)
                if source is not None:
                    assert source == (device, message.text.removeprefix("re: "))
                if not any(d is device for d, _ in wanted.values()):
                    break
    assert not wanted
    assert max(counted.values()) == 1


async def nothing_left(workers: list[Worker]) -> None:
    for worker in workers:

        async def empty(worker: Worker = worker) -> bool:
            try:
                assert worker.host is not None
                status = await worker.host.tool("get_status")
            except HostGone:
                return False  # it is being started again
            return bool(status["pending_requests"] == 0 and status["queued"] == 0 and status["claimed"] == 0)

        await until(empty, "an empty inbox")
