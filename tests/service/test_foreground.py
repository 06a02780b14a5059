"""`pacerelled --foreground`: a daemon that is kept running without a service manager."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from tests.daemon.polling import DEADLINE, until
from tests.daemon.process import Daemon, Host

from .handing import ask

# A supervisor with little patience, of a daemon that a test writes.
SUPERVISOR = """
import os
import sys
from pathlib import Path
from pacerelled import supervise
from pacerelled.logs.setup import start_logging
supervise.WATCHDOG, supervise.FIRST_PAUSE, supervise._TICK = 1.0, 0.1, 0.1
start_logging("info", "text", Path(os.devnull), {})
sys.exit(supervise.Supervisor([sys.executable, "-c", sys.argv[1]], Path.cwd() / "notify").run())
"""
CHILD = """
import os, signal, sys, time
from pathlib import Path
from pacerelled.sd_notify import notify
with open("starts", "a") as file:
    file.write(f"{os.getpid()}\\n")
number = len(Path("starts").read_text().splitlines())
"""


@contextlib.asynccontextmanager
async def foreground(home: Path) -> AsyncIterator[Daemon]:
    running = await Daemon(home, "--foreground").start()
    try:
        yield running
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(running.process.pid).children():
                child.kill()
        await running.kill()


async def serving(running: Daemon) -> int:
    """The pid of the daemon that serves."""
    await running.serving()
    pid: int = (await running.status())["daemon"]["pid"]
    assert pid != running.process.pid
    return pid


async def test_a_killed_daemon_is_replaced_and_all_ends_with_the_signal(tmp_path: Path) -> None:
    async with foreground(tmp_path) as running:
        first = await serving(running)
        with running.paths.start_lock.open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # hosts wait instead of starting one of their own
        os.kill(first, signal.SIGKILL)
        await until(lambda: not psutil.pid_exists(first), "its end")
        second = await serving(running)
        assert second != first
        host = await (await Host.connect(running)).initialize()
        running.signal(signal.SIGTERM)
        assert await running.ended() == 0
        assert not psutil.pid_exists(second)
        assert not running.paths.mcp_sock.exists()
        await host.close()
        assert f"(pid {first}) failed (SIGKILL); starting it again in 0.5 s" in await running.errors()


async def test_who_stops_the_daemon_stops_it_all(tmp_path: Path) -> None:
    async with foreground(tmp_path) as running:
        await serving(running)
        assert (await ask(running, "POST", "/v1/stop", {}))[0] == 202
        assert await running.ended() == 0


async def test_what_never_served_is_not_tried_again(tmp_path: Path) -> None:
    program = Daemon(tmp_path, "--foreground")
    program.paths.config.parent.mkdir(parents=True)
    program.paths.config.write_text("claim_leas = 1\n")
    assert (await program.run())[0] == 78
    program.paths.config.unlink()
    program.paths.store.write_text("")
    program.paths.state.joinpath("store.json").write_text("no JSON")
    assert (await program.run())[0] == 74


async def supervised(folder: Path, child: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", SUPERVISOR, CHILD + child, cwd=folder, stderr=asyncio.subprocess.PIPE
    )


async def end(program: asyncio.subprocess.Process) -> bytes:
    """What it said; it has to end well."""
    try:
        _, said = await asyncio.wait_for(program.communicate(), DEADLINE)
    finally:
        if program.returncode is None:
            for process in (*psutil.Process(program.pid).children(), program):
                process.kill()
    assert program.returncode == 0, said
    return said


def starts(folder: Path) -> list[int]:
    file = folder / "starts"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


async def test_a_daemon_that_hangs_is_replaced(tmp_path: Path) -> None:
    program = await supervised(
        tmp_path, "notify('READY=1', os.environ)\nwhile number == 1:\n    time.sleep(0.1)\nsys.exit(0)"
    )
    said = await end(program)
    assert len(starts(tmp_path)) == 2
    assert b"hangs: nothing heard" in said
    assert b"failed (SIGABRT)" in said


async def test_a_stopped_daemon_does_not_hang(tmp_path: Path) -> None:
    program = await supervised(
        tmp_path, "notify('READY=1', os.environ)\nos.kill(os.getpid(), signal.SIGSTOP)\nsys.exit(0)"
    )
    await until(lambda: starts(tmp_path), "the start")
    (pid,) = starts(tmp_path)
    await until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "its sleep")
    await asyncio.sleep(1.5)  # longer than it may be silent
    os.kill(pid, signal.SIGCONT)
    await end(program)
    assert starts(tmp_path) == [pid]


async def test_the_pause_grows(tmp_path: Path) -> None:
    program = await supervised(tmp_path, "notify('READY=1', os.environ)\nsys.exit(7 if number < 4 else 0)")
    said = await end(program)
    assert [line.rsplit(b" ", 2)[1] for line in said.splitlines() if b"again in" in line] == [b"0.1", b"0.2", b"0.4"]
    assert said.count(b"exit code 7") == 3
