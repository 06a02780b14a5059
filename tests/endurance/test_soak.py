"""Half an hour of a machine's life: traffic, hosts that come and go, things that are killed, sleep. All stays level.

The daemon runs as it does without a service manager (`pacerelled --foreground`). `samples.jsonl` in the test's folder
has what was measured, once in ten seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import psutil
import pytest

from pacerelle_phone.device import Device
from pacerelle_phone.model import PairedAgent
from tests.daemon.process import Daemon
from tests.e2e.stack import HostGone, Stack, until
from tests.e2e.storm import Seen, Worker, all_replies, failed, nothing_left, ready

MINUTE = 60.0  # seconds
SLEEP = 120.0  # seconds that things are stopped with SIGSTOP
EACH = 0.5  # seconds between two requests of a phone
LONG_TEXT = 2_000  # characters, of each tenth request; five of them are handed out whole
SAMPLE = 10.0  # seconds
# So little is kept that what comes in the first two minutes fills it; more must then not be needed.
CONFIG = """retry_uncertain = true
reconnect_max = 2.0
claim_grace = 5.0
ping_interval = 10
retention_requests = 200
retention_replies = 200
retention_events = 2000
retention_receipts = 1000
"""
MIB = 1 << 20


@dataclass
class Soak:
    """A machine under way: who works on it, what was asked, what was measured."""

    machine: Stack
    supervisor: Daemon
    phones: list[Device]
    agents: list[PairedAgent]
    seen: Seen = field(default_factory=Seen)
    workers: list[Worker] = field(default_factory=list)
    asked: dict[str, tuple[Device, str]] = field(default_factory=dict)
    samples: list[dict[str, float]] = field(default_factory=list)
    followed: list[int] = field(default_factory=list)  # numbers of events, as the stream told them
    awake: asyncio.Event = field(default_factory=asyncio.Event)  # nothing is stopped with SIGSTOP
    began: float = field(default_factory=time.monotonic)

    @property
    def minute(self) -> float:
        return (time.monotonic() - self.began) / MINUTE

    async def ask(self, phone: Device) -> None:
        """One person, who asks two agents in turn."""
        for number in range(sys.maxsize):
            text = f"request {number}".ljust(LONG_TEXT if number % 10 == 5 else 0, "x")
            self.asked[await phone.send(self.agents[number % 2].agent_id, text)] = (phone, text)
            await asyncio.sleep(EACH)

    async def visit(self) -> None:
        """Hosts that are opened, look around and are closed or killed; nobody opens any on a machine that sleeps."""
        for number in range(sys.maxsize):
            await self.awake.wait()
            with contextlib.suppress(HostGone):
                host = await self.machine.host(self.agents[number % 2], "visitor")
                await host.call("tools/list", {})
                await host.tool("get_status")
                await host.tool("get_history", limit=5)
                if number % 3:
                    await host.stop()
                else:
                    host.kill()
                    await host.stop()
                self.machine.hosts.remove(host)
            await asyncio.sleep(5)

    async def follow(self) -> None:
        """A program that listens to the events for ever, and comes back from where it was."""
        last = ""
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with (
                    self.machine.control() as control,
                    control.get(
                        "/v1/events?cursor=start",
                        headers={"Accept": "text/event-stream"} | ({"Last-Event-ID": last} if last else {}),
                        timeout=aiohttp.ClientTimeout(total=None, sock_read=300),
                    ) as answer,
                ):
                    assert answer.status == 200, await answer.text()
                    async for line in answer.content:
                        if line.startswith(b"id:"):
                            last = line[3:].strip().decode()
                        elif line.startswith(b"data:"):  # an id without data is a sign of life
                            self.followed.append(json.loads(line[5:])["seq"])
            await asyncio.sleep(1)

    async def measure(self, file: Path) -> None:
        with file.open("w") as out:
            while True:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.samples.append(self._sample())
                    print(json.dumps(self.samples[-1]), file=out, flush=True)
                await asyncio.sleep(SAMPLE)

    def _sample(self) -> dict[str, float]:
        paths = self.machine.paths
        pid = self.machine.daemon_pid()
        if pid is None:
            raise psutil.NoSuchProcess(0)
        assert self.machine.relay.process is not None
        found: dict[str, float] = {"minute": round(self.minute, 2), "pid": pid, "asked": len(self.asked)}
        watched = {"daemon": pid, "supervisor": self.supervisor.process.pid, "relay": self.machine.relay.process.pid}
        watched |= {"shim": self.workers[0].host.pid} if self.workers[0].host else {}
        for name, number in watched.items():
            process = psutil.Process(number)
            found[f"{name} MiB"] = round(process.memory_info().rss / MIB, 2)
            found[f"{name} descriptors"] = process.num_fds()
            found[f"{name} threads"] = process.num_threads()
        found["store MiB"] = round(paths.store.stat().st_size / MIB, 2)
        log = paths.store.with_name(f"{paths.store.name}-wal")
        found["store's log MiB"] = round(log.stat().st_size / MIB, 2) if log.exists() else 0
        return found

    async def disturb(self, until_minute: float, rng: random.Random) -> None:
        """Kills the daemon once a minute, and in between shims and the relay."""
        while self.minute < until_minute:
            self.machine.kill_daemon()
            for _ in range(3):
                await asyncio.sleep(rng.uniform(15, 25))
                worker = rng.choice(self.workers)
                if rng.random() < 0.5 and worker.host is not None:
                    worker.host.kill()
                else:
                    await self.machine.relay.kill()
                    await asyncio.sleep(rng.uniform(0, 5))
                    await self.machine.relay.start()

    async def sleep(self, *names: str) -> None:
        """SIGSTOP to these, and SIGCONT after a while."""
        self.awake.clear()
        await asyncio.sleep(10)  # visitors leave
        daemon = self.machine.daemon_pid()
        assert daemon is not None
        assert self.machine.relay.process is not None
        pids = {
            "daemon": [daemon],
            "supervisor": [self.supervisor.process.pid],
            "shims": [worker.host.pid for worker in self.workers if worker.host is not None],
            "relay": [self.machine.relay.process.pid],
        }
        stopped = [pid for name in names for pid in pids[name]]
        try:
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(SLEEP)
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self.awake.set()

    def level(self, name: str, early: tuple[float, float], late: tuple[float, float], slack: float) -> None:
        """`name` was in minutes `late` no more than `slack` above what it was in minutes `early`."""

        def typical(span: tuple[float, float]) -> float:
            return statistics.median(s[name] for s in self.samples if span[0] <= s["minute"] < span[1] and name in s)

        before, after = typical(early), typical(late)
        assert after <= before + slack, f"{name}: {before} in minutes {early}, {after} in minutes {late}"


@contextlib.asynccontextmanager
async def running(machine: Stack, file: Path) -> AsyncIterator[Soak]:
    """The daemon with its supervisor, two phones that ask, three hosts that answer, visitors, a follower."""
    machine.configure(CONFIG)
    machine.deadline = 2 * SLEEP
    supervisor = await Daemon(machine.home, "--foreground", root=machine.root).start()
    tasks: list[asyncio.Task[None]] = []
    try:
        await supervisor.serving()
        first = await machine.phone("ada")
        code, _ = await first.create_link_code()
        second = await machine.phone("tablet", register=False)
        await second.link(code)
        agents = [await first.create_agent("one"), await first.create_agent("two")]
        soak = Soak(machine, supervisor, [first, second], agents)
        soak.awake.set()
        for name, agent in (("host-a", 0), ("host-b", 0), ("host-c", 1)):
            soak.workers.append(Worker(machine, agents[agent], name, soak.seen))
            tasks.append(asyncio.create_task(soak.workers[-1].run()))
        for phone in soak.phones:
            for paired in agents:
                await ready(phone, paired)
        asking = [asyncio.create_task(soak.ask(phone)) for phone in soak.phones]
        tasks += [*asking, *(asyncio.create_task(work) for work in (soak.visit(), soak.follow(), soak.measure(file)))]
        yield soak
        assert not failed(tasks)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        await until(lambda: len(soak.seen.new | soak.seen.again) >= len(soak.asked), "all requests to be seen", 180)
        await nothing_left(soak.workers)
        await all_replies(soak.asked)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        supervisor.signal()
        try:
            assert await supervisor.ended() == 0
        finally:
            machine.kill_daemon()
            await supervisor.kill()


@pytest.mark.long
async def test_half_an_hour(machine: Stack, tmp_path: Path) -> None:
    async with running(machine, tmp_path / "samples.jsonl") as soak:
        await asyncio.sleep(9 * MINUTE)
        first_daemon = machine.daemon_pid()
        await soak.disturb(15, random.Random(5))
        await asyncio.sleep(30)
        slept = machine.daemon_pid()
        for names in (("daemon", "supervisor", "shims"), ("daemon",), ("relay",)):
            await soak.sleep(*names)
            await asyncio.sleep(20)
        await asyncio.sleep(30 * MINUTE - (time.monotonic() - soak.began))
        last_daemon = machine.daemon_pid()

    assert {s["pid"] for s in soak.samples if s["minute"] < 9} == {first_daemon}, "it ended by itself"
    assert last_daemon == slept, "sleep was taken for a hang"
    # Within one life nearly nothing grows, and another life is like the first.
    early, late, rested, last = (3.0, 5.0), (7.0, 9.0), (24.0, 26.0), (28.0, 30.0)
    for span, other, slack in ((early, late, 1), (rested, last, 1), (early, last, 8)):
        for name in ("daemon", "supervisor", "relay", "shim"):
            soak.level(f"{name} MiB", span, other, slack)
            soak.level(f"{name} descriptors", span, other, 2)
            soak.level(f"{name} threads", span, other, 0)
        soak.level("store MiB", span, other, 1)
        soak.level("store's log MiB", span, other, 2)
    log = await soak.supervisor.errors()
    assert len(log) < 256 * 1024
    assert "request" not in log, "what people write is in the log"
    assert soak.followed == list(range(soak.followed[0], soak.followed[-1] + 1)), "a hole or a repetition"
    twice = [m for m in soak.asked if soak.seen.new[m] > 1]
    assert not twice, f"{len(twice)} requests were handed out as new more than once"
    assert not soak.seen.after_processed
