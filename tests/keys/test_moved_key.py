"""A store that is moved aside takes its key along, also one in the keyring; the next store has its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import keyring as library
import pytest

from pacerelled.store.aside import move_aside
from pacerelled.store.custody import obtain_store_key
from pacerelled.store.keyring import Keyring
from pacerelled.store.rekey import opens
from tests.keys.kept_keyring import BUS, FileKeyring, use
from tests.keys.killed_rekey import make, paths_in, read


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[FileKeyring]:
    before = library.get_keyring()
    yield use(tmp_path / "ring.json")
    library.set_keyring(before)


async def test_the_key_goes_with_its_store(backend: FileKeyring, tmp_path: Path) -> None:
    await make(tmp_path, "keyring")
    old = (await read(tmp_path))["key"]
    keyring = Keyring(True, BUS)
    folder = await move_aside(paths_in(tmp_path), "replaced", keyring=keyring)
    assert folder is not None
    await make(tmp_path, "keyring")
    assert (await read(tmp_path))["key"] != old
    moved = await obtain_store_key(folder, folder / "store.key", folder / "store.db", keyring=keyring, env={})
    assert moved.raw.hex() == old
    assert opens(folder / "store.db", moved.raw)


async def test_where_there_is_no_store_nothing_is_moved(tmp_path: Path) -> None:
    paths_in(tmp_path).state.mkdir()
    assert await move_aside(paths_in(tmp_path), "replaced", keyring=Keyring(False, {})) is None
    assert list(paths_in(tmp_path).state.iterdir()) == []
