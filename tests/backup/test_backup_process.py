"""The commands on files: what is refused, what a failure leaves, and that without a daemon they do it themselves."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from pacerelled.backup.seal import Sealer
from tests.backup.commands import FROM_STDIN, PHRASE, done, pacerelle
from tests.daemon.disk import contents, flip
from tests.daemon.process import daemon


@pytest.fixture(scope="session")
def used(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which a daemon has had an agent."""
    home = tmp_path_factory.mktemp("used")

    async def use() -> None:
        env = {"PACERELLE_AGENT_ID": "a1", "PACERELLE_AGENT_TOKEN": "token", "PACERELLE_BASE_URL": "http://127.0.0.1:9"}
        async with daemon(home, env=env) as running:
            assert (await running.status())["agents"]
            running.signal()
            await running.ended()
        await done(home, "backup", str(home / "a.backup"), *FROM_STDIN)

    asyncio.run(use())
    return home


@pytest.fixture
def home(used: Path, tmp_path: Path) -> Path:
    shutil.copytree(used, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
    return tmp_path


def state(home: Path) -> Path:
    return home / "root" / "pacerelled"


def store(home: Path) -> dict[str, tuple[str, str]]:
    """What is in the folder, but for the lock."""
    return {name: what for name, what in contents(state(home)).items() if name not in ("lock", "start.lock")}


async def test_without_a_daemon_and_into_an_empty_home(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = home / "a.backup"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    other = tmp_path_factory.mktemp("other")
    answer = await done(other, "restore", str(file), *FROM_STDIN)
    assert (answer["agents"], answer["moved_to"], answer["key_source"]) == (1, None, "file")
    assert (state(other) / "store.key").read_text() != (state(home) / "store.key").read_text()
    assert {path.name for path in state(other).iterdir()} == {"store.db", "store.json", "store.key", "lock"}
    assert {mode for mode, _ in contents(state(other)).values()} == {"0o600"}
    async with daemon(other) as running:
        [agent] = (await running.status())["agents"]
        assert (agent["agent_id"], agent["login"]) == ("a1", "needed")
        refused = (await pacerelle(other, "restore", str(file), "--move-aside", *FROM_STDIN))[1]
        assert refused["error"]["code"] == "already_running"


async def test_nothing_is_overwritten_unless_asked(home: Path) -> None:
    file = home / "a.backup"
    before = file.read_bytes()
    code, answer, _ = await pacerelle(home, "backup", str(file), *FROM_STDIN)
    assert (code, answer["error"]["code"]) == (1, "failed")
    assert file.read_bytes() == before
    await done(home, "backup", str(file), "--force", *FROM_STDIN)
    assert file.read_bytes() != before


@pytest.mark.parametrize("running", [False, True])
async def test_a_full_disk_leaves_nothing(home: Path, running: bool) -> None:
    folder = home / "place"
    folder.mkdir()
    if running:
        async with daemon(home):
            code, answer, _ = await pacerelle(home, "backup", str(folder / "b"), *FROM_STDIN, limit=64)
    else:
        code, answer, _ = await pacerelle(home, "backup", str(folder / "b"), *FROM_STDIN, limit=64)
    assert code == 1
    assert "space" in answer["error"]["hint"]
    assert list(folder.iterdir()) == []
    assert not [path for path in state(home).iterdir() if path.name.startswith(".")]


async def test_a_place_that_is_none(home: Path) -> None:
    code, answer, _ = await pacerelle(home, "backup", str(home / "nowhere" / "b"), *FROM_STDIN)
    assert (code, answer["error"]["code"]) == (1, "failed")


async def test_where_there_is_no_store(tmp_path: Path) -> None:
    code, answer, _ = await pacerelle(tmp_path, "backup", str(tmp_path / "b"), *FROM_STDIN)
    assert (code, answer["error"]["code"]) == (1, "not_possible")
    code, _, err = await pacerelle(tmp_path, "restore", str(tmp_path / "b"), *FROM_STDIN)
    assert (code, "no file" in err) == (1, True)


async def test_without_a_passphrase_or_a_terminal(home: Path) -> None:
    code, _, err = await pacerelle(home, "backup", str(home / "b"))
    assert (code, "--passphrase-file" in err) == (2, True)


@pytest.mark.parametrize("damage", ["bit", "cut", "other"])
async def test_a_damaged_backup_changes_nothing(home: Path, damage: str) -> None:
    file = home / "a.backup"
    if damage == "bit":
        flip(file, 0.6)
    elif damage == "cut":
        os.truncate(file, file.stat().st_size // 2)
    else:
        file.write_bytes(b"My diary\n" * 1000)
    before = store(home)
    code, answer, _ = await pacerelle(home, "restore", str(file), "--move-aside", *FROM_STDIN)
    assert (code, answer["error"]["code"]) == (1, "backup_damaged")
    assert store(home) == before


async def test_sealed_well_but_with_something_else_in_it(home: Path) -> None:
    file = home / "strange"
    for content in (b"", b"\x00\x00\x00\x02{}", b"\xff\xff\xff\xff", json.dumps({"format": 9}).encode()):
        sealer = Sealer(PHRASE, cost=14)
        file.write_bytes(sealer.header + sealer.update(content) + sealer.finish())
        before = store(home)
        code, answer, _ = await pacerelle(home, "restore", str(file), "--move-aside", *FROM_STDIN)
        assert (code, answer["error"]["code"]) == (1, "backup_damaged")
        assert store(home) == before


async def test_the_store_that_was_there_is_kept_whole(home: Path) -> None:
    before = {name: what for name, what in store(home).items() if name.startswith("store.")}
    answer = await done(home, "restore", str(home / "a.backup"), "--move-aside", *FROM_STDIN)
    assert contents(Path(answer["moved_to"])) == before
    assert set(before) <= set(store(home))
    again = await done(home, "restore", str(home / "a.backup"), "--move-aside", *FROM_STDIN)
    assert again["moved_to"] != answer["moved_to"]
    assert contents(Path(answer["moved_to"])) == before
