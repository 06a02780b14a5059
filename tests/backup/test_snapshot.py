"""A snapshot is the store at one moment, though it is written to while it is read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pacerelled.errors import StoreError, StoreUnavailable
from pacerelled.store import events
from pacerelled.store.database import Snapshot, Store
from tests.daemon.core import KEY

STEP = 50_000


async def opened(path: Path, *, new: bool = True) -> Store:
    return await Store.open(path, KEY, new=new)


async def add(store: Store, count: int = 1) -> None:
    await store.run(lambda tx: [events.add(tx, None, "x", text="y" * 3000) for _ in range(count)])


async def copied(snapshot: Snapshot, target: Path) -> None:
    with target.open("wb") as out:
        for at in range(0, snapshot.size, STEP):
            out.write(await snapshot.read(at, min(STEP, snapshot.size - at)))


async def count(path: Path) -> int:
    store = await opened(path, new=False)
    found: int = await store.run(lambda tx: tx.one("SELECT count(*) FROM events")[0])
    await store.close()
    return found


async def test_what_is_written_meanwhile_is_not_in_it(tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    await add(store, 300)
    async with store.snapshot() as snapshot:
        assert KEY.hex() not in repr(snapshot)

        async def write() -> None:
            for _ in range(60):
                await add(store, 30)
                await store.fold_log()

        writing = asyncio.create_task(write())
        await copied(snapshot, tmp_path / "copy.db")
        await writing
        assert store.log_size() > 4 * 1024 * 1024, "the log waits"
    await add(store)
    await store.fold_log()
    assert store.log_size() == 0
    await store.close()
    assert await count(tmp_path / "copy.db") == 300
    assert await count(tmp_path / "store.db") == 300 + 1800 + 1


async def test_one_at_a_time(tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    async with store.snapshot():
        with pytest.raises(StoreUnavailable):
            async with store.snapshot():
                pass
    async with store.snapshot():
        pass
    await store.close()


async def test_a_store_that_is_closed_meanwhile(tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    await add(store, 100)
    async with store.snapshot() as snapshot:
        await snapshot.read(0, 4096)
        await store.close()
        with pytest.raises(StoreError):
            await snapshot.read(4096, 4096)
    with pytest.raises(StoreError):
        async with store.snapshot():
            pass
    assert await count(tmp_path / "store.db") == 100


async def test_a_reader_that_is_cancelled_lets_the_log_go(tmp_path: Path) -> None:
    store = await opened(tmp_path / "store.db")
    reading = asyncio.Event()

    async def read() -> None:
        async with store.snapshot():
            reading.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(read())
    await reading.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await add(store)
    await store.fold_log()
    assert store.log_size() == 0
    await store.close()


async def test_the_lock_on_the_file_outlives_a_snapshot(tmp_path: Path) -> None:
    """Closing a descriptor of the file would end it: another program could then write to the store."""
    store = await opened(tmp_path / "store.db")
    async with store.snapshot() as snapshot:
        await snapshot.read(0, 4096)
    process = await asyncio.create_subprocess_exec(
        "python3", "-c",
        "import fcntl, sys; f = open(sys.argv[1], 'r+b'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        str(tmp_path / "store.db"),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert await process.wait() != 0
    await store.close()
