"""The watchdog is fed while the daemon does its work, and at no other time."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pacerelled.watchdog import interval
from tests.daemon.polling import until
from tests.daemon.process import Daemon, Manager
from tests.endurance.disks import SizeLimit

from .handing import ask

# A daemon that can be brought to hang: its loop by SIGUSR1, its store's thread by SIGUSR2.
SPOILT = """
import signal, sys, time
from pacerelled.store.database import Store
stores, init = [], Store.__init__
def keep(self, *arguments):
    init(self, *arguments)
    stores.append(self)
Store.__init__ = keep
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(3600))
signal.signal(signal.SIGUSR2, lambda *_: stores[0]._executor.submit(time.sleep, 3600))
from pacerelled.__main__ import main
main(sys.argv[1:])
"""
PAUSE = 0.1  # seconds between feedings


@dataclass
class Watched:
    daemon: Daemon
    manager: Manager

    def fed(self) -> int:
        return self.manager.read().count("WATCHDOG=1")

    async def is_fed(self) -> None:
        before = self.fed()
        await until(lambda: self.fed() >= before + 3, "the watchdog's feeding")

    async def is_not_fed(self) -> None:
        await asyncio.sleep(3 * PAUSE)  # what was under way
        before = self.fed()
        await asyncio.sleep(10 * PAUSE)
        assert self.fed() == before


@pytest.fixture
async def watched(tmp_path: Path) -> AsyncIterator[Watched]:
    manager = Manager(tmp_path / "notify")
    env = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": str(int(3e6 * PAUSE))}
    daemon = await Daemon(tmp_path, env=env).start(command=(sys.executable, "-c", SPOILT))
    try:
        await manager.told("READY=1")
        yield Watched(daemon, manager)
    finally:
        manager.close()
        await daemon.kill()


async def test_a_loop_that_hangs_does_not_feed_it_and_an_abort_says_where(watched: Watched) -> None:
    await watched.is_fed()
    watched.daemon.signal(signal.SIGUSR1)
    await watched.is_not_fed()
    watched.daemon.signal(signal.SIGABRT)
    assert await watched.daemon.ended() == -signal.SIGABRT
    said = await watched.daemon.errors()
    assert "Fatal Python error: Aborted" in said
    assert "<lambda>" in said


async def test_a_store_that_hangs_does_not_feed_it_though_the_loop_serves(watched: Watched) -> None:
    await watched.is_fed()
    watched.daemon.signal(signal.SIGUSR2)
    await watched.is_not_fed()
    assert (await ask(watched.daemon, "GET", "/v1/paths"))[0] == 200


async def test_a_daemon_that_was_stopped_goes_on(watched: Watched) -> None:
    await watched.is_fed()
    watched.daemon.signal(signal.SIGSTOP)
    await watched.is_not_fed()
    watched.daemon.signal(signal.SIGCONT)
    await watched.is_fed()
    assert watched.daemon.process.returncode is None


async def test_a_full_disk_is_no_hang(watched: Watched) -> None:
    agent = {"agent_id": "a1", "token": "t", "base_url": "http://127.0.0.1:9"}
    SizeLimit(watched.daemon.paths).fill(watched.daemon)
    status, body = await ask(watched.daemon, "POST", "/v1/agents", agent)
    assert (status, body["error"]["code"]) == (503, "store_unavailable")
    await watched.is_fed()


def test_only_who_is_watched_feeds() -> None:
    assert interval({}) is None
    assert interval({"WATCHDOG_USEC": "0"}) is None
    assert interval({"WATCHDOG_USEC": "soon"}) is None
    assert interval({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid() + 1)}) is None
    assert interval({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}) == 1.0
