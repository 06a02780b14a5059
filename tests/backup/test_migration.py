"""Before a newer version changes a store's layout it keeps a copy, until a later start finds nothing to change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pacerelled.errors import StoreError, StoreTooNew, StoreUnavailable
from pacerelled.store import events, opening, schema
from pacerelled.store.database import Store
from pacerelled.store.driver import Database
from tests.daemon.core import KEY
from tests.daemon.disk import contents, mode

SECOND = "0002_second"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def fails() -> list[Exception]:
    """What the second migration raises after it has changed something."""
    return []


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch, fails: list[Exception]) -> Iterator[None]:
    """A version with a second migration; `with` it the store is opened by that."""
    made = schema.Migrations("pacerelled")
    made(name="0001_first")(schema.first)

    @made(name=SECOND)
    def second(db: Database) -> None:
        db.execute("ALTER TABLE events ADD COLUMN colour TEXT")
        for error in fails:
            raise error

    monkeypatch.setattr(opening, "migrations", made)
    monkeypatch.setattr(schema, "migrations", made)
    monkeypatch.setattr(schema, "KNOWN", frozenset({"0001_first", SECOND}))
    return iter(())


async def use(path: Path, *, new: bool = False) -> int:
    opened = await Store.open(path, KEY, new=new)
    try:
        await opened.run(lambda tx: events.add(tx, None, "x"))
        found: int = await opened.run(lambda tx: tx.one("SELECT count(*) FROM events")[0])
        return found
    finally:
        await opened.close()


def names(path: Path) -> set[str]:
    return {each.name for each in path.parent.iterdir()}


async def test_a_new_store_has_nothing_to_copy(store: Path) -> None:
    await use(store, new=True)
    assert names(store) == {"store.db"}


async def test_a_copy_is_kept_until_the_next_start(store: Path, request: pytest.FixtureRequest) -> None:
    assert await use(store, new=True) == 1
    request.getfixturevalue("newer")
    assert await use(store) == 2
    copy = store.with_name(f"store.db.before-{SECOND}")
    assert names(store) == {"store.db", copy.name}
    assert mode(copy) == 0o600
    kept = copy.read_bytes()
    assert await use(store) == 3
    assert names(store) == {"store.db"}
    copy.write_bytes(kept)
    request.getfixturevalue("monkeypatch").undo()
    with pytest.raises(StoreTooNew):
        await use(store)
    copy.replace(store)  # as the documentation says
    assert await use(store) == 2


async def test_a_migration_that_fails_changes_nothing(
    store: Path, fails: list[Exception], request: pytest.FixtureRequest
) -> None:
    await use(store, new=True)
    request.getfixturevalue("newer")
    fails.append(RuntimeError("a mistake of ours"))
    with pytest.raises(RuntimeError):
        await use(store)
    request.getfixturevalue("monkeypatch").undo()
    assert await use(store) == 2


async def test_without_room_for_the_copy_it_does_not_start(
    store: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    await use(store, new=True)
    request.getfixturevalue("newer")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(opening.shutil, "copyfile", full)
    with pytest.raises(StoreUnavailable) as refused:
        await use(store)
    assert "space" in refused.value.hint
    assert names(store) == {"store.db"}
    monkeypatch.undo()
    assert await use(store) == 2


async def test_a_store_of_a_newer_version_is_left_as_it_is(store: Path, request: pytest.FixtureRequest) -> None:
    await use(store, new=True)
    request.getfixturevalue("newer")
    await use(store)
    request.getfixturevalue("monkeypatch").undo()
    before = contents(store.parent)
    with pytest.raises(StoreError):
        await use(store)
    assert contents(store.parent) == before
