"""The database: what it refuses without touching it, and that a transaction happens wholly or not at all."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from pacerelled.errors import (
    InvalidArgument,
    StoreCorrupt,
    StoreError,
    StoreKeyError,
    StoreTooNew,
    StoreUnavailable,
)
from pacerelled.store import driver, events
from pacerelled.store.database import Store, Tx
from pacerelled.store.wal import log_is_damaged

from .core import KEY, full_disk
from .disk import contents, cut, flip, mode
from .polling import until

WRITE = """
import asyncio, os, sys
from pathlib import Path
from pacerelled.store.database import Store
from pacerelled.store import events

async def main():
    store = await Store.open(Path(sys.argv[1]), bytes(range(32)), new=True)
    for number in range(30):
        await store.run(lambda tx: [events.add(tx, None, "filler", text="d" * 500) for _ in range(10)])
    if sys.argv[2] == "killed":
        os._exit(9)
    await store.close()

asyncio.run(main())
"""


@pytest.fixture(scope="session")
def used_stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store that was closed, and one whose process was killed: it has a log beside it."""
    folders = {}
    for end in ("closed", "killed"):
        folders[end] = tmp_path_factory.mktemp(end)
        subprocess.run([sys.executable, "-c", WRITE, str(folders[end] / "store.db"), end], check=False, timeout=60)
    assert [p.name for p in folders["closed"].iterdir()] == ["store.db"]
    assert {p.name for p in folders["killed"].iterdir()} == {"store.db", "store.db-wal"}
    return folders


@pytest.fixture(params=["closed", "killed"])
def used(request: pytest.FixtureRequest, used_stores: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of a used store."""
    folder = tmp_path / "state"
    shutil.copytree(used_stores[request.param], folder)
    return folder / "store.db"


@pytest.fixture
def closed(used_stores: dict[str, Path], tmp_path: Path) -> Path:
    shutil.copytree(used_stores["closed"], tmp_path / "state")
    return tmp_path / "state" / "store.db"


@pytest.fixture
def killed(used_stores: dict[str, Path], tmp_path: Path) -> Path:
    shutil.copytree(used_stores["killed"], tmp_path / "state")
    return tmp_path / "state" / "store.db"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "store.db", KEY, new=True)
    yield store
    await store.close()


async def refused(path: Path, kind: type[StoreError], *, key: bytes = KEY) -> StoreError:
    """Opening fails so, says what to do, and nothing on disk is different."""
    before = contents(path.parent)
    with pytest.raises(kind) as caught:
        await Store.open(path, key, new=False)
    assert type(caught.value) is kind
    assert contents(path.parent) == before
    assert caught.value.hint
    assert key.hex() not in str(caught.value)
    return caught.value


async def count(path: Path) -> int:
    store = await Store.open(path, KEY, new=False)
    try:
        found: int = await store.run(lambda tx: tx.one("SELECT count(*) FROM events")[0])
        return found
    finally:
        await store.close()


# -- opening ---------------------------------------------------------------------------------------------------


async def test_a_used_store_opens_whether_it_was_closed_or_killed(used: Path) -> None:
    assert await count(used) == 300
    assert [p.name for p in used.parent.iterdir()] == ["store.db"]


async def test_a_new_store_is_private_from_the_first_moment_and_encrypted(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        store = await Store.open(tmp_path / "store.db", KEY, new=True)
        await store.run(lambda tx: events.add(tx, None, "canary", text="canary words"))
        assert {p.name: mode(p) for p in tmp_path.iterdir()} == dict.fromkeys(("store.db", "store.db-wal"), 0o600)
        for path in tmp_path.iterdir():
            assert b"canary" not in path.read_bytes()
            assert b"SQLite format" not in path.read_bytes()
        await store.close()
    finally:
        os.umask(before)


async def test_a_readable_store_is_taken_away_from_others(closed: Path) -> None:
    closed.chmod(0o644)
    await count(closed)
    assert mode(closed) == 0o600


async def test_a_wrong_key(used: Path) -> None:
    error = await refused(used, StoreKeyError, key=bytes(32))
    assert "key" in error.message


async def test_a_missing_store(closed: Path) -> None:
    closed.unlink()
    assert "missing" in (await refused(closed, StoreCorrupt)).message
    assert not closed.exists()


async def test_an_empty_store(used: Path) -> None:
    used.write_bytes(b"")
    assert "empty" in (await refused(used, StoreCorrupt)).message


@pytest.mark.parametrize("to", [0.002, 0.1, 0.5, 0.99])
async def test_a_truncated_store(closed: Path, to: float) -> None:
    cut(closed, to)
    await refused(closed, StoreKeyError if closed.stat().st_size < 4096 else StoreCorrupt)


@pytest.mark.parametrize("at", [0.0, 0.0005, 0.25, 0.5, 0.75, 1.0])
async def test_a_flipped_bit(closed: Path, at: float) -> None:
    flip(closed, at)
    first_page = at * closed.stat().st_size < 4096
    error = await refused(closed, StoreKeyError if first_page else StoreCorrupt)
    assert "damaged" in error.message


@pytest.mark.parametrize("at", [0.0, 0.00001, 0.1, 0.5, 0.9])
async def test_a_log_that_lost_committed_transactions(killed: Path, at: float) -> None:
    """SQLite would open it as it was before them: an older encryption state, whose keys would be used twice."""
    flip(killed.with_name("store.db-wal"), at)
    assert "log" in (await refused(killed, StoreCorrupt)).message


async def test_an_unfinished_last_transaction_is_no_damage(killed: Path) -> None:
    """As a power failure leaves it."""
    log = killed.with_name("store.db-wal")
    assert not log_is_damaged(log)
    flip(log, 1.0)
    assert not log_is_damaged(log)
    assert await count(killed) == 290


async def test_a_log_without_its_index(killed: Path) -> None:
    assert not killed.with_name("store.db-shm").exists()
    before = contents(killed.parent)
    with pytest.raises(StoreKeyError):
        await Store.open(killed, bytes(32), new=False)
    assert contents(killed.parent) == before
    assert await count(killed) == 300


@pytest.mark.parametrize("size", [1, 32, 33])
async def test_a_log_that_was_only_begun(closed: Path, used_stores: dict[str, Path], size: int) -> None:
    """As a crash leaves it between the log's header and its first transaction."""
    log = (used_stores["killed"] / "store.db-wal").read_bytes()
    closed.with_name("store.db-wal").write_bytes(log[:size])
    assert await count(closed) == 300


async def test_a_damaged_page_that_the_log_replaces_is_no_damage(killed: Path) -> None:
    flip(killed, 0.7)
    assert await count(killed) == 300


async def test_a_newer_store(used: Path) -> None:
    conn = driver.connect(used, KEY)
    conn.execute("INSERT INTO _sqlite_migrations (migration_set, name, applied_at) VALUES ('pacerelled', '9999_x', '')")
    copy = used.parent.with_name("copy")
    shutil.copytree(used.parent, copy)  # with the log, as if killed
    conn.close()
    for path in (used, copy / "store.db"):
        error = await refused(path, StoreTooNew)
        assert "9999_x" in error.message
        assert "Upgrade" in error.hint


async def test_something_else_at_the_store_s_place(tmp_path: Path) -> None:
    path = tmp_path / "state" / "store.db"
    path.parent.mkdir()
    path.write_bytes(b"My diary\n" * 1000)
    await refused(path, StoreKeyError)


# -- transactions ----------------------------------------------------------------------------------------------


def add(text: str = "x") -> Callable[[Tx], int]:
    return lambda tx: events.add(tx, None, "test", text=text)


async def rows(store: Store) -> int:
    found: int = await store.run(lambda tx: tx.one("SELECT count(*) FROM events")[0])
    return found


async def test_a_transaction_happens_wholly_or_not_at_all_and_hooks_tell_which(store: Store) -> None:
    told: list[str] = []

    def work(tx: Tx, fail: bool) -> str:
        tx.after_commit(lambda: told.append("commit"))
        tx.after_rollback(lambda: told.append("rollback"))
        events.add(tx, None, "test")
        if fail:
            raise ZeroDivisionError
        return threading.current_thread().name

    assert (await store.run(lambda tx: work(tx, False))).startswith("store")
    with pytest.raises(ZeroDivisionError):
        await store.run(lambda tx: work(tx, True))
    assert told == ["commit", "rollback"]
    assert await rows(store) == 1


async def test_a_hook_that_fails_does_not_hide_why(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    def work(tx: Tx) -> None:
        tx.after_rollback(lambda: {}["secret words"])  # type: ignore[call-overload]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await store.run(work)
    assert "KeyError" in caplog.text
    assert "secret words" not in caplog.text
    await store.run(add())


async def test_a_savepoint_undoes_its_part_only(store: Store) -> None:
    def part(tx: Tx, fail: bool) -> None:
        events.add(tx, None, "part")
        if fail:
            raise ZeroDivisionError

    def work(tx: Tx) -> None:
        events.add(tx, None, "before")
        with pytest.raises(ZeroDivisionError):
            tx.savepoint(lambda: part(tx, True))
        tx.savepoint(lambda: part(tx, False))

    await store.run(work)
    assert await store.run(lambda tx: [r[0] for r in tx.all("SELECT type FROM events")]) == ["before", "part"]


async def test_a_full_disk(store: Store) -> None:
    await store.run(add())
    told: list[str] = []
    await full_disk(store)

    def big(tx: Tx) -> int:
        tx.after_commit(lambda: told.append("commit"))
        tx.after_rollback(lambda: told.append("rollback"))
        return tx.savepoint(lambda: events.add(tx, None, "test", text="x" * 100_000))

    for _ in range(2):
        with pytest.raises(StoreUnavailable) as full:
            await store.run(big)
        assert "Free some disk space" in full.value.hint
    assert await rows(store) == 1
    await full_disk(store, full=False)
    await store.run(big)
    assert told == ["rollback", "rollback", "commit"]
    assert await rows(store) == 2


async def test_another_program_that_reads_the_file_is_in_the_way_of_opening_it(closed: Path) -> None:
    other = driver.connect(closed, KEY)
    other.execute("BEGIN")
    other.execute("SELECT count(*) FROM events").fetchone()
    with pytest.raises(StoreUnavailable) as busy:
        await Store.open(closed, KEY, new=False)
    assert "another program" in busy.value.message
    other.close()
    assert await count(closed) == 300


async def test_no_other_program_can_read_what_is_open(store: Store) -> None:
    """One that never finished reading would let the log grow without end."""
    await store.run(add())
    other = driver.connect(store.path, KEY)
    other.execute("PRAGMA busy_timeout = 50").fetchall()
    for statement in ("SELECT count(*) FROM events", "BEGIN IMMEDIATE", "PRAGMA wal_checkpoint"):
        with pytest.raises(driver.DatabaseError, match="locked"):
            other.execute(statement).fetchall()
    await store.run(add())
    other.close()
    await store.run(add())
    assert await rows(store) == 3


async def test_a_cancelled_caller_does_not_stop_its_transaction(store: Store) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work(tx: Tx) -> None:
        events.add(tx, None, "test")
        begun.set()
        assert go_on.wait(30)

    calls = [asyncio.create_task(store.run(work)), asyncio.create_task(store.run(add()))]
    await until(begun.is_set)
    for call in calls:
        call.cancel()
    assert [type(e) for e in await asyncio.gather(*calls, return_exceptions=True)] == [asyncio.CancelledError] * 2
    settled = asyncio.create_task(store.settled())
    await asyncio.sleep(0.02)
    assert not settled.done()
    go_on.set()
    await settled
    assert await rows(store) == 2


async def test_a_cancelled_caller_s_failure_is_not_reported_as_lost(store: Store) -> None:
    go_on = threading.Event()

    def work(tx: Tx) -> None:
        assert go_on.wait(30)
        raise ZeroDivisionError

    call = asyncio.create_task(store.run(work))
    await asyncio.sleep(0.02)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    go_on.set()
    await store.settled()  # a lost exception would be a warning, and with it a failure of this test


async def test_transactions_run_in_the_order_of_the_calls(store: Store) -> None:
    done: list[int] = []

    def note(number: int) -> Callable[[Tx], None]:
        return lambda tx: done.append(number)

    await asyncio.gather(*(store.run(note(number)) for number in range(200)))
    assert done == list(range(200))


async def test_closing_waits_for_what_was_asked_for_and_refuses_the_rest(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "store.db", KEY, new=True)
    calls = [asyncio.create_task(store.run(add())) for _ in range(20)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*calls)
    with pytest.raises(StoreError):
        await store.run(add())
    await store.close()
    await store.settled()
    assert await count(tmp_path / "store.db") == 20


async def test_text_that_is_no_utf_8_is_the_caller_s_fault(store: Store) -> None:
    with pytest.raises(InvalidArgument):
        await store.run(lambda tx: tx.execute("SELECT ?", ("\ud800",)))


async def test_events_are_told_after_their_commit_only(store: Store) -> None:
    told: list[int] = []

    def on_event() -> None:
        assert not store._conn.in_transaction
        told.append(1)

    store.on_event = on_event
    await store.run(lambda tx: tx.one("SELECT 1"))
    assert told == []
    await store.run(add())
    assert told == [1]
    with pytest.raises(ZeroDivisionError):
        await store.run(lambda tx: (events.add(tx, None, "test"), 1 / 0))
    assert told == [1]


async def test_events_are_numbered_for_ever_and_a_gap_is_said(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        await store.run(add())

    epoch = await store.run(events.epoch)

    def select(after: int, limit: int = 100) -> Callable[[Tx], tuple[list[int], int, bool]]:
        def look(tx: Tx) -> tuple[list[int], int, bool]:
            found = events.page(tx, f"{epoch}:{after}", lambda event: True, limit)
            return [e["seq"] for e in found.events], int(found.cursor.removeprefix(f"{epoch}:")), found.gap

        return look

    assert await store.run(select(0, 2)) == ([1, 2], 2, False)
    assert await store.run(select(2)) == ([3, 4, 5], 5, False)
    assert await store.run(select(5)) == ([], 5, False)
    assert await store.run(select(6)) == ([], 5, True)  # a cursor of another store
    await store.run(lambda tx: tx.execute("DELETE FROM events WHERE seq <= 3"))
    assert await store.run(select(3)) == ([4, 5], 5, False)
    assert await store.run(select(2)) == ([], 5, True)
    await store.run(lambda tx: tx.execute("DELETE FROM events"))
    assert await store.run(select(2)) == ([], 5, True)
    assert await store.run(select(5)) == ([], 5, False)
    await store.run(add())
    assert (await store.run(select(5)))[0] == [6]
