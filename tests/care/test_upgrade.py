"""Another version is installed while a daemon runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from pacerelled import __version__, upgrade
from pacerelled.upgrade import Upgrade, installed_version, is_kept_running
from tests.daemon.polling import DEADLINE, until
from tests.daemon.process import Daemon, Host
from tests.service.handing import ask


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrade, "LOOK", 0.01)
    monkeypatch.setattr(upgrade, "QUIET_LOOK", 0.01)


class Scene:
    """What is installed from look to look (the last stays), whether it starts, and whether anybody needs the daemon."""

    def __init__(self, *installed: str | None, well: bool = True, kept: bool = True) -> None:
        self.installed = iter(installed)
        self.last: str | None = None
        self.looks = self.trials = 0
        self.well, self.quiet = well, True
        self.ended = asyncio.Event()
        self.upgrade = Upgrade(
            restart=self.ended.set if kept else None,
            is_quiet=lambda: self.quiet,
            installed=self.look,
            trial=self.trial,
        )

    def look(self) -> str | None:
        self.looks += 1
        self.last = next(self.installed, self.last)
        return self.last

    async def trial(self) -> bool:
        self.trials += 1
        return self.well

    async def __aenter__(self) -> Scene:
        self.task = asyncio.create_task(self.upgrade.watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


async def test_the_same_version_is_none() -> None:
    async with Scene(__version__) as scene:
        await until(lambda: scene.looks > 5)
        assert (scene.upgrade.due, await scene.upgrade.warnings(), scene.ended.is_set()) == (None, [], False)


async def test_what_was_installed_from_the_start_on_is_no_other_version() -> None:
    async with Scene("9.2") as scene:
        await until(lambda: scene.looks > 5)
        assert (scene.upgrade.due, scene.ended.is_set()) == (None, False)


async def test_another_version_is_taken_when_it_is_there_to_stay() -> None:
    async with Scene(__version__, "9.1", None, "9.2", "9.2") as scene:
        await asyncio.wait_for(scene.ended.wait(), DEADLINE)
        assert (scene.looks, scene.trials, scene.upgrade.due) == (5, 1, "9.2")


async def test_it_waits_until_nobody_needs_the_daemon() -> None:
    async with Scene(__version__, "9.2") as scene:
        scene.quiet = False
        await until(lambda: scene.trials)
        await asyncio.sleep(0.1)
        (warning,) = await scene.upgrade.warnings()
        assert "9.2 is installed" in warning["message"]
        assert "by itself" in warning["hint"]
        assert not scene.ended.is_set()
        scene.quiet = True
        await asyncio.wait_for(scene.ended.wait(), DEADLINE)


async def test_what_cannot_be_started_is_not_taken() -> None:
    async with Scene(__version__, "9.2", well=False) as scene:
        await until(lambda: scene.trials > 2)
        assert not scene.ended.is_set()
        scene.well = True
        await asyncio.wait_for(scene.ended.wait(), DEADLINE)


async def test_where_nobody_starts_it_again_a_restart_is_only_due() -> None:
    async with Scene(__version__, "9.2", kept=False) as scene:
        await until(lambda: scene.looks > 5)
        (warning,) = await scene.upgrade.warnings()
        assert "pacerelle stop" in warning["hint"]
        assert not scene.trials


def test_what_is_installed_is_what_the_program_says_of_itself() -> None:
    assert installed_version() == version("pacerelled") == __version__


def test_who_starts_it_again() -> None:
    assert is_kept_running({"LISTEN_PID": str(os.getpid())})
    assert is_kept_running({"PACERELLED_SUPERVISOR": str(os.getppid())})
    assert not is_kept_running({"PACERELLED_SUPERVISOR": "1", "NOTIFY_SOCKET": "/run/x"})


# A supervised daemon, for which the file named first says what is installed.
PROGRAM = """
import sys
from pathlib import Path
from pacerelled import upgrade
upgrade.LOOK = upgrade.QUIET_LOOK = 0.2
upgrade.Upgrade.__init__.__kwdefaults__["installed"] = Path(sys.argv[1]).read_text
from pacerelled.__main__ import main
main(sys.argv[2:])
"""
SUPERVISOR = f"""
import sys
from pathlib import Path
from pacerelled.supervise import Supervisor
command = [sys.executable, "-c", {PROGRAM!r}, *sys.argv[1:]]
sys.exit(Supervisor(command, Path(sys.argv[1]).with_name("notify")).run())
"""


async def test_a_supervised_daemon_is_replaced_while_its_host_only_waits() -> None:
    with TemporaryDirectory() as home:
        installed = Path(home) / "installed"
        installed.write_text(__version__)
        running = Daemon(Path(home))
        await running.start(command=(sys.executable, "-c", SUPERVISOR, str(installed)))
        try:
            await running.serving()
            first = await running.status()
            assert await ask(running, "POST", "/v1/agents", {"agent_id": "a", "base_url": "http://127.0.0.1:9"})
            host = await (await Host.connect(running)).initialize()
            installed.write_text("9.9")

            async def is_due() -> bool:
                return "9.9 is installed" in str((await running.status())["health"]["warnings"])

            await until(is_due, "the news")
            await asyncio.sleep(0.5)
            assert (await running.status())["daemon"]["pid"] == first["daemon"]["pid"], "the host has just asked"
            host.send("tools/call", {"name": "wait_for_messages", "arguments": {"timeoutMs": 30_000}})
            await until(lambda: not psutil.pid_exists(first["daemon"]["pid"]), "its end")
            await running.serving()
            second = await running.status()
            assert second["daemon"]["pid"] != first["daemon"]["pid"]
            assert second["health"]["warnings"] == []
            await host.close()
            running.signal()
            assert await running.ended() == 0
        finally:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(running.process.pid).children():
                    child.kill()
            await running.kill()
