"""A command that is started by the daemon, contained: whatever it does, it ends, and nothing of it is left."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path

import psutil
import pytest

from pacerelled.notify import command
from pacerelled.notify.command import Ended
from tests.notify.rig import until

FORKS = """
import os, sys, time
for _ in range(3):
    if os.fork() == 0:
        {more}
        print(os.getpid(), flush=True)
        time.sleep(600)
time.sleep({stay})
"""


async def run(
    tmp_path: Path, code: str, *, limit: float = 30.0, mark: str = "", stop: asyncio.Event | None = None
) -> tuple[Ended, str]:
    output = tmp_path / "output.log"
    ended = await command.run(
        [sys.executable, "-I", "-c", code],
        env=command.environment(os.environ, None, {command.MARK: mark or f"test {tmp_path}"}),
        cwd=str(tmp_path),
        output=output,
        limit=limit,
        stop=stop or asyncio.Event(),
    )
    assert stat.S_IMODE(output.stat().st_mode) == 0o600
    return ended, output.read_text()


def gone(pids: list[int]) -> bool:
    return all(not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE for pid in pids)


async def test_what_it_says_and_how_it_ends(tmp_path: Path) -> None:
    ended, said = await run(tmp_path, "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
    assert (ended.how, ended.exit_code, ended.signal, ended.output_bytes) == ("exited", 3, None, 8)
    assert sorted(said.split()) == ["err", "out"]


async def test_its_environment_is_clean_and_its_input_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACERELLE_AGENT_TOKEN", "secret")
    monkeypatch.setenv("SOMETHING", "else")
    ended, said = await run(tmp_path, "import os, sys; print(sorted(os.environ), repr(sys.stdin.read()), os.getcwd())")
    assert ended.exit_code == 0
    assert "TOKEN" not in said
    assert "SOMETHING" not in said
    assert command.MARK in said
    assert f"'' {tmp_path}" in said


async def test_one_that_hangs_is_ended(tmp_path: Path) -> None:
    ended, _ = await run(tmp_path, "import time; time.sleep(600)", limit=0.5)
    assert (ended.how, ended.signal) == ("timeout", 15)


async def test_one_that_does_not_want_to_end_is_ended_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PATIENCE", 1.0)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    ended, said = await run(tmp_path, code, limit=1.0)
    assert (ended.how, ended.signal, said) == ("timeout", 9, "deaf\n")


@pytest.mark.parametrize(
    "more",
    ["pass", "os.setpgid(0, 0)", "os.setsid()", "os.close(2)"],
    ids=["plain", "own group", "own session", "closed"],
)
@pytest.mark.parametrize("stay", [0, 600])
async def test_what_it_forks_ends_with_it(tmp_path: Path, more: str, stay: int) -> None:
    ended, said = await run(tmp_path, FORKS.format(more=more, stay=stay), limit=30 if not stay else 1.5)
    assert ended.how == ("exited" if not stay else "timeout")
    await until(lambda: gone([int(pid) for pid in said.split()]), "the end of all")


async def test_a_flood_is_read_and_only_its_beginning_kept(tmp_path: Path) -> None:
    ended, said = await run(tmp_path, "import sys\nfor _ in range(200): sys.stdout.write('x' * 100_000)")
    assert (ended.how, ended.exit_code, ended.output_bytes) == ("exited", 0, 20_000_000)
    assert len(said) == command.MAX_OUTPUT


async def test_one_that_cannot_be_started(tmp_path: Path) -> None:
    output = tmp_path / "output.log"
    env = {command.MARK: "none"}
    for argv in (["/no/such/program"], [str(tmp_path)], ["a\0b"]):
        ended = await command.run(argv, env=env, cwd="/", output=output, limit=5, stop=asyncio.Event())
        assert ended.how == "could_not_start"
        assert ended.error


async def test_it_ends_when_the_daemon_stops(tmp_path: Path) -> None:
    stop = asyncio.Event()
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    running = asyncio.create_task(run(tmp_path, code, stop=stop))
    await until(lambda: (tmp_path / "output.log").exists() and (tmp_path / "output.log").read_text(), "its start")
    stop.set()
    ended, _ = await asyncio.wait_for(running, 10)
    assert (ended.how, ended.signal) == ("stopped", 9)


def test_the_path_it_gets() -> None:
    assert command.environment({"PATH": "/a"}, "/b", {})["PATH"] == "/b"
    assert command.environment({"PATH": "/a"}, None, {})["PATH"] == "/a"
    assert command.environment({}, None, {"X": "1"}) == {"PATH": "/usr/local/bin:/usr/bin:/bin", "X": "1"}
