"""`pacerelle store move-aside`: only what cannot be used is moved, once, whole, and when somebody says so."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.disk import contents, flip
from tests.daemon.process import Daemon, daemon
from tests.e2e.stack import Stack, until

from .bent import World, bent_daemon, pacerelle

MOVE = ("store", "move-aside", "--yes")


@pytest.fixture(scope="session")
def used_homes(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Homes in which a daemon has had an agent, by the signal that ended it."""
    homes = {}
    for end in (signal.SIGTERM, signal.SIGKILL):
        homes[int(end)] = tmp_path_factory.mktemp("used")
        asyncio.run(use(homes[int(end)], end))
    return homes


async def use(home: Path, end: int) -> None:
    env = {"PACERELLE_AGENT_ID": "a1", "PACERELLE_AGENT_TOKEN": "token", "PACERELLE_BASE_URL": "http://127.0.0.1:9"}
    async with daemon(home, env=env) as running:
        assert (await running.status())["agents"]
        running.signal(end)
        await running.ended()


def copied(used: Path, home: Path) -> Path:
    shutil.copytree(used, home, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    return home


@pytest.fixture
def home(used_homes: dict[int, Path], tmp_path: Path) -> Path:
    """A home with a store that a daemon has closed."""
    return copied(used_homes[signal.SIGTERM], tmp_path)


@pytest.fixture
def killed(used_homes: dict[int, Path], tmp_path: Path) -> Path:
    """One with a store whose daemon was killed: it has a log."""
    return copied(used_homes[signal.SIGKILL], tmp_path)


async def cli(home: Path, *args: str) -> tuple[int, dict[str, Any]]:
    return await pacerelle(Stack(home, None), *args)  # type: ignore[arg-type]


def state(home: Path) -> Path:
    return home / "root" / "pacerelled"


def damaged_folders(home: Path) -> list[Path]:
    return sorted(state(home).glob("damaged-*"))


def damage_page(home: Path) -> None:
    flip(state(home) / "store.db", 0.5)


def truncate(home: Path) -> None:
    path = state(home) / "store.db"
    os.truncate(path, path.stat().st_size // 2)


def lose_database(home: Path) -> None:
    (state(home) / "store.db").unlink()


def lose_key(home: Path) -> None:
    (state(home) / "store.key").unlink()


def wrong_key(home: Path) -> None:
    (state(home) / "store.key").write_text("A" * 43 + "=\n")


def damage_memo(home: Path) -> None:
    (state(home) / "store.json").write_text("{")


DAMAGES = [damage_page, truncate, lose_database, lose_key, wrong_key, damage_memo]


@pytest.mark.parametrize("damage", DAMAGES)
async def test_what_cannot_be_used_is_moved_whole(home: Path, damage: Callable[[Path], None]) -> None:
    damage(home)
    before = {path.name: path.read_bytes() for path in state(home).glob("store.*")}
    code, answer = await cli(home, *MOVE)
    assert code == 0, answer
    assert answer["reason"]["code"] in ("store_corrupt", "store_key")
    assert any("encryption sessions" in what for what in answer["lost"])
    [folder] = damaged_folders(home)
    assert answer["moved_to"] == str(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert list(state(home).glob("store.*")) == []


async def test_the_daemon_refuses_before_and_starts_anew_after_it(home: Path) -> None:
    for count in (1, 2):
        damage_page(home)
        code, said = await Daemon(home).run()
        assert code == 74, said
        assert "move-aside" in said
        code, answer = await cli(home, *MOVE)
        assert code == 0, answer
        assert len(damaged_folders(home)) == count
        async with daemon(home) as running:
            assert (await running.status())["agents"] == []
            running.signal()
            await running.ended()
    code, answer = await cli(home, *MOVE)
    assert (code, answer["error"]["code"]) == (1, "not_possible"), "once: what is there now can be used"
    assert len(damaged_folders(home)) == 2


async def test_a_damaged_log_goes_with_its_database(killed: Path) -> None:
    log = state(killed) / "store.db-wal"
    flip(log, 0.01)
    code, answer = await cli(killed, *MOVE)
    assert code == 0, answer
    assert "log" in answer["reason"]["message"]
    [folder] = damaged_folders(killed)
    assert (folder / "store.db-wal").exists()
    assert not log.exists()


async def test_a_store_that_is_well_stays(home: Path) -> None:
    before = contents(state(home))
    for args in (MOVE, MOVE[:-1]):
        code, answer = await cli(home, *args)
        assert (code, answer["error"]["code"]) == (1, "not_possible")
        assert "can be used" in answer["error"]["message"]
    assert contents(state(home)) == before


async def test_a_store_that_was_killed_is_well(killed: Path) -> None:
    before = contents(state(killed))
    code, answer = await cli(killed, *MOVE)
    assert "can be used" in answer["error"]["message"]
    assert code == 1
    for content in (before, after := contents(state(killed))):
        content.pop("lock")
    assert after == before


async def test_nothing_is_moved_under_a_running_daemon(home: Path) -> None:
    async with daemon(home):
        code, answer = await cli(home, *MOVE)
        assert (code, answer["error"]["code"]) == (1, "already_running")
        assert "pacerelle stop" in answer["error"]["hint"]
    assert damaged_folders(home) == []


async def test_where_there_is_no_store_there_is_nothing_to_move(tmp_path: Path) -> None:
    code, answer = await cli(tmp_path, *MOVE)
    assert (code, answer["error"]["code"]) == (1, "not_possible")
    state(tmp_path).mkdir(parents=True)
    code, answer = await cli(tmp_path, *MOVE)
    assert (code, answer["error"]["code"]) == (1, "not_possible")


async def test_a_key_that_is_out_of_reach_is_no_damage(home: Path, tmp_path: Path) -> None:
    memo = state(home) / "store.json"
    memo.write_text(memo.read_text().replace('"file"', '"keyring"'))
    before = contents(state(home))
    code, answer = await cli(home, *MOVE)
    assert (code, answer["error"]["code"]) == (1, "not_possible")
    assert "cannot be told" in answer["error"]["message"]
    assert contents(state(home)) == before


@pytest.mark.parametrize(("answer", "moved"), [(b"n\n", False), (b"", False), (b"y\n", True)])
async def test_it_says_what_is_lost_and_asks(home: Path, answer: bytes, moved: bool) -> None:
    damage_page(home)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pacerelle_cli", "--store-root", str(home / "root"), "store", "move-aside",
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(process.communicate(answer), 60)
    for words in (b"is damaged", b"backup", b"write first again", b"Move it aside?"):
        assert words in err
    assert (process.returncode == 0) == moved
    assert (b"Moved to" in out) == moved
    assert bool(damaged_folders(home)) == moved
    assert (state(home) / "store.db").exists() != moved


async def test_people_write_first_again_and_see_another_safety_code(machine: Stack, world: World) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    async with bent_daemon(machine, world) as running:
        host = await machine.host(agent)
        await host.connected()
        await phone.send(agent.agent_id, "before")
        await host.tool("wait_for_messages", timeoutMs=30_000)
        old = (await running.status())["agents"][0]["safety_code"]
        await host.stop()
        running.signal()
        await running.ended()
    flip(machine.paths.store, 0.3)
    code, answer = await pacerelle(machine, *MOVE)
    assert code == 0, answer
    async with bent_daemon(machine, world) as running:
        host = await machine.host(agent)
        await host.connected()
        new = (await running.status())["agents"][0]["safety_code"]
        assert new != old

        async def shown() -> bool:
            return await phone.new_safety_code(agent.agent_id) == new

        await until(shown, "the new safety code on the phone")
        await phone.trust_new_key(agent.agent_id)
        sent = await phone.send(agent.agent_id, "after")
        texts: list[str] = []

        async def there() -> bool:
            got = await host.tool("wait_for_messages", timeoutMs=1000)
            texts.extend(m["text"] for m in got["messages"])
            return "after" in texts

        await until(there, "the first message to the new identity")
        await host.tool("send_message", text="hello again", sourceMessageId=sent)
        assert (await phone.wait_reply(sent, 30)).text == "hello again"
