"""A new key for the store: at whatever moment it is killed, the store opens, and no old key or copy is left."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pacerelled.errors import NotPossible, StoreKeyError, StoreUnavailable
from pacerelled.store import rekey as module
from pacerelled.store.keyring import Keyring
from pacerelled.store.rekey import rekey, store_key
from tests.daemon.disk import contents, mode
from tests.keys.killed_rekey import OFF, make, paths_in, read

BOOKS = {"file": ["store.db", "store.json", "store.key"], "keyring": ["store.db", "store.json"]}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("keyring", "file"),
        pytest.param("file", "file", marks=pytest.mark.long),
        pytest.param("file", "keyring", marks=pytest.mark.long),
        pytest.param("keyring", "keyring", marks=pytest.mark.long),
    ],
)
def test_killed_at_each_step(before: str, after: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.keys.killed_rekey", str(tmp_path), before, after],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        timeout=120,
        check=True,
    )
    lines: list[dict[str, Any]] = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) > 20
    changed = [line["new"] for line in lines]
    assert changed == sorted(changed), "before the one rename nothing has changed, after it everything has"
    assert {False, True} == set(changed)
    for line in lines:
        place = after if line["new"] else before
        assert line["source"] == place, line
        assert line["rows"] == 200, line
        assert line["ring"] == (place == "keyring"), line
        left = [name for name in line["left"] if not name.startswith(".")]  # a file that was begun has no name yet
        assert left == BOOKS[place], line
    assert not lines[-1]["killed"]


async def test_a_new_key_in_a_private_file(tmp_path: Path) -> None:
    await make(tmp_path, "file")
    paths = paths_in(tmp_path)
    old = paths.key_file.read_bytes()
    assert await rekey(paths, reader=OFF, keeper=OFF, env={}) == "file"
    assert paths.key_file.read_bytes() != old
    assert {mode(path) for path in paths.state.iterdir()} == {0o600}
    assert (await read(tmp_path))["rows"] == 200
    paths.key_file.write_bytes(old)
    with pytest.raises(StoreKeyError):
        await read(tmp_path)


async def test_without_room_for_a_copy_nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await make(tmp_path, "file")
    key = (await read(tmp_path))["key"]
    before = {name: content for name, content in contents(paths_in(tmp_path).state).items() if name != "store.json"}

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.shutil, "copyfile", full)
    with pytest.raises(StoreUnavailable) as refused:
        await rekey(paths_in(tmp_path), reader=OFF, keeper=OFF, env={})
    assert "space" in refused.value.hint
    assert (await read(tmp_path))["key"] == key
    after = {name: content for name, content in contents(paths_in(tmp_path).state).items() if name != "store.json"}
    assert after.keys() == before.keys()
    assert "next" not in (paths_in(tmp_path).state / "store.json").read_text()


async def test_cancelled_in_the_midst_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await make(tmp_path, "file")
    key = (await read(tmp_path))["key"]

    def cancelled(*_: Any, **__: Any) -> None:
        raise asyncio.CancelledError

    monkeypatch.setattr(module, "examine", cancelled)
    with pytest.raises(asyncio.CancelledError):
        module.under_another_key(paths_in(tmp_path).store, bytes.fromhex(key), tmp_path / "copy", bytes(32))
    assert not (tmp_path / "copy").exists()
    assert (await read(tmp_path))["key"] == key


async def test_a_credential_is_not_ours_to_change(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "pacerelled-store-key").write_text("A" * 43 + "=\n")
    env = {"CREDENTIALS_DIRECTORY": str(credentials)}
    paths = paths_in(tmp_path)
    paths.state.mkdir()
    key = await store_key(paths, keyring=OFF, env=env)
    assert key.source == "credential"
    paths.store.write_bytes(b"a store")
    before = contents(paths.state)
    with pytest.raises(NotPossible) as refused:
        await rekey(paths, reader=OFF, keeper=OFF, env=env)
    assert "credential" in refused.value.message
    assert "backup" in refused.value.hint
    assert contents(paths.state) == before


async def test_without_a_store_there_is_nothing_to_do(tmp_path: Path) -> None:
    paths_in(tmp_path).state.mkdir()
    with pytest.raises(NotPossible):
        await rekey(paths_in(tmp_path), reader=OFF, keeper=OFF, env={})


async def test_an_interrupted_change_waits_for_a_keyring_that_is_out_of_reach(tmp_path: Path) -> None:
    """Neither key can be found: nothing is concluded, and nothing changed."""
    await make(tmp_path, "file")
    state = paths_in(tmp_path).state
    memo = json.loads((state / "store.json").read_text())
    memo |= {"key_source": "keyring", "next": {"store_id": "x", "key_source": "keyring", "key_check": "y"}}
    (state / "store.json").write_text(json.dumps(memo))
    before = contents(state)
    with pytest.raises(StoreKeyError) as refused:
        await store_key(paths_in(tmp_path), keyring=Keyring(False, {}), env={})
    assert "keyring" in refused.value.message
    assert refused.value.hint
    assert contents(state) == before
