"""The database file and the one thread that touches it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pacerelled.errors import (
    InvalidArgument,
    StoreCorrupt,
    StoreError,
    StoreKeyError,
    StoreTooNew,
    StoreUnavailable,
    place_of,
)
from pacerelled.files import make_private

from .clock import StoreClock
from .driver import Connection, Database, DatabaseError, connect
from .schema import migrations, unknown_migrations
from .wal import log_is_damaged

log = logging.getLogger(__name__)
T = TypeVar("T")

RESTORE_HINT = (
    "Nothing was changed. Restore the folder from a backup (store.db, store.json and store.key belong together), "
    "or start with an empty store: `pacerelle store move-aside` says what is lost then, and asks."
)


def now() -> str:
    """The wall clock as ISO 8601 UTC with milliseconds: for people, never for order."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Tx:
    """One transaction, on the store's thread. Hooks run there too, after its end."""

    __slots__ = ("_after_commit", "_after_rollback", "conn", "day", "has_events", "now")

    def __init__(self, conn: Connection, day: int) -> None:
        self.conn = conn
        self.now = now()
        self.day = day  # of the store's own time
        self.has_events = False  # it added some to the log of events
        self._after_commit: list[Callable[[], None]] = []
        self._after_rollback: list[Callable[[], None]] = []

    def execute(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        return self.conn.execute(sql, parameters)

    def one(self, sql: str, parameters: tuple[Any, ...] = ()) -> Any:
        """The first row, or None."""
        return self.conn.execute(sql, parameters).fetchone()

    def all(self, sql: str, parameters: tuple[Any, ...] = ()) -> list[Any]:
        rows: list[Any] = self.conn.execute(sql, parameters).fetchall()
        return rows

    def after_commit(self, hook: Callable[[], None]) -> None:
        self._after_commit.append(hook)

    def after_rollback(self, hook: Callable[[], None]) -> None:
        """For state in memory that ran ahead of the disk (a Signal ratchet): take it back."""
        self._after_rollback.append(hook)

    def savepoint(self, fn: Callable[[], T]) -> T:
        """Runs `fn`; if it raises, what it wrote is undone and the rest of the transaction stands."""
        self.conn.execute("SAVEPOINT part")
        try:
            result = fn()
        except BaseException:
            if self.conn.in_transaction:  # SQLite ends it by itself over some failures, such as a full disk
                self.conn.execute("ROLLBACK TO part")
                self.conn.execute("RELEASE part")
            raise
        self.conn.execute("RELEASE part")
        return result


class Store:
    """All access goes through `run`: one function, one transaction, one thread, in order of the calls.

    Raises StoreKeyError, StoreCorrupt, StoreTooNew when opening. `run` raises StoreUnavailable when the disk is full or
    fails (then nothing of that transaction was written), and InvalidArgument for text that is no UTF-8. `on_event` is
    called on the store's thread after each commit that added events.

    No other program can read the store while it is open: one that forgot to finish would keep the log from ever being
    folded in, and it would grow without end.
    """

    def __init__(self, conn: Connection, clock: StoreClock, path: Path, executor: ThreadPoolExecutor) -> None:
        self._conn = conn
        self._executor = executor
        self._clock = clock
        self._waiting = 0  # transactions asked for that have not ended
        self._last_use = time.monotonic()
        self._closed = False
        self.path = path
        self.on_event: Callable[[], None] = lambda: None
        self.failing = asyncio.Event()  # set from a write that failed until the next that succeeds
        self.problem: StoreUnavailable | None = None  # why it fails

    @classmethod
    async def open(cls, path: Path, key: bytes, *, new: bool) -> Store:
        """Opens `path`, checks every page, brings the schema up to date. A store that is refused is not touched.

        `new` says whether the file may be created: an existing store whose file is gone or empty is refused instead.
        """
        executor = ThreadPoolExecutor(1, thread_name_prefix="store")
        loop = asyncio.get_running_loop()
        try:
            conn, clock = await loop.run_in_executor(executor, _open, path, key, new)
        except BaseException:
            executor.shutdown(wait=False)
            raise
        return cls(conn, clock, path, executor)

    async def run(self, fn: Callable[[Tx], T]) -> T:
        """`fn(tx)` in one transaction. A cancelled caller does not stop it."""
        if self._closed:
            raise StoreError("The store is closed", hint="The daemon is stopping.")
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[T] = loop.create_future()

        # Not `run_in_executor`: its chain of futures, with a shield around, costs a message a tenth of its commit.
        def work() -> None:
            try:
                result = self._transaction(fn)
            except BaseException as error:
                loop.call_soon_threadsafe(self._ended, outcome, None, error)
            else:
                loop.call_soon_threadsafe(self._ended, outcome, result, None)

        self._executor.submit(work)
        self._waiting += 1
        return await outcome

    @property
    def idle_for(self) -> float:
        """Seconds since the last transaction ended; 0 while there is one."""
        return 0.0 if self._waiting else time.monotonic() - self._last_use

    async def settled(self) -> None:
        """Returns when every transaction asked for before has ended, also those whose callers were cancelled."""
        if not self._closed:
            await asyncio.get_running_loop().run_in_executor(self._executor, lambda: None)

    async def close(self) -> None:
        """Waits for what is running, checkpoints the log and closes the file."""
        if self._closed:
            return
        try:
            await self.run(self.save_clock)
        except StoreError as error:
            log.warning("The store's clock could not be saved: %s", error.message)
        self._closed = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self._conn.close)
        self._executor.shutdown(wait=True)

    async def fold_log(self) -> None:
        """Writes the log into the file and empties it. Raises StoreError."""
        if not self._closed:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._fold_log)

    def log_size(self) -> int:
        """Bytes."""
        try:
            return _beside(self.path, "-wal").stat().st_size
        except FileNotFoundError:
            return 0

    def save_clock(self, tx: Tx) -> None:
        tx.execute("REPLACE INTO clock (one, lived, wall) VALUES (1, ?, ?)", self._clock.reading())

    def _ended(self, outcome: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        self._waiting -= 1
        self._last_use = time.monotonic()
        if self.problem is None:
            self.failing.clear()
        else:
            self.failing.set()
        if outcome.done():
            return  # the caller was cancelled
        if error is None:
            outcome.set_result(result)
        else:
            outcome.set_exception(error)

    def _fold_log(self) -> None:
        try:
            self._conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        except DatabaseError as error:
            raise mapped(error) from error

    def _transaction(self, fn: Callable[[Tx], T]) -> T:
        tx = Tx(self._conn, self._clock.day)
        changes = self._conn.total_changes
        try:
            self._conn.execute("BEGIN IMMEDIATE")
            result = fn(tx)
            self._conn.execute("COMMIT")
        except BaseException as error:
            if self._conn.in_transaction:
                try:
                    self._conn.execute("ROLLBACK")
                except DatabaseError as failure:
                    log.error("Rolling back failed: %s", place_of(failure))
            for hook in tx._after_rollback:
                try:
                    hook()
                except Exception as failure:
                    log.error("Taking back what was in memory failed: %s", place_of(failure))
            if isinstance(error, DatabaseError):
                failed = mapped(error)
                if isinstance(failed, StoreUnavailable):
                    self.problem = failed
                raise failed from error
            if isinstance(error, UnicodeEncodeError):
                raise InvalidArgument(
                    "There is half of a surrogate pair in what was given, which nobody can read",
                    argument="",
                    hint="Send the character whole, or leave it out.",
                ) from None
            raise
        if self._conn.total_changes != changes:
            self.problem = None
        for hook in tx._after_commit:
            hook()
        if tx.has_events:
            self.on_event()
        return result


def _open(path: Path, key: bytes, new: bool) -> tuple[Connection, StoreClock]:
    if examine(path, key, new=new):
        make_private(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
    conn = connect(path, key)
    try:
        conn.execute("PRAGMA locking_mode = EXCLUSIVE")  # before the first reading: the log's index stays in memory
        conn.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new store: what is pruned can be given back
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA synchronous = FULL")
        conn.execute("PRAGMA foreign_keys = ON")
        conn.execute("PRAGMA temp_store = MEMORY")
        conn.execute("PRAGMA journal_size_limit = 8388608")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # what a crash left of the log must not meet the next crash
        migrations.apply(Database(conn))
        saved = conn.execute("SELECT lived, wall FROM clock").fetchone()
    except BaseException as error:
        conn.close()
        if isinstance(error, DatabaseError):
            raise mapped(error) from error
        raise
    return conn, StoreClock(saved and tuple(saved))


def examine(path: Path, key: bytes, *, new: bool, also: Callable[[Tx], object] = lambda tx: None) -> bool:
    """Raises StoreError for a store that cannot be used, and changes nothing. False if there is none yet.

    `new` says whether that may be; `also` may look further.
    """
    size = path.stat().st_size if path.exists() else None
    if size:
        _check(path, key, also)
        return True
    if not new:
        state = "is missing" if size is None else "is empty"
        raise StoreCorrupt(f"The store {path} {state}, though it existed before", hint=RESTORE_HINT)
    return False


def _check(path: Path, key: bytes, also: Callable[[Tx], object]) -> None:
    """Reads every page: one whose authentication code is wrong must stop us now, not in a month.

    On a connection that cannot write: opening a store as usual, even in vain, would fold its log into it.
    """
    log_file, index = _beside(path, "-wal"), _beside(path, "-shm")
    if log_is_damaged(log_file):
        raise StoreCorrupt(f"The log of the store {path} is damaged", hint=RESTORE_HINT)
    index_wanted = log_file.exists() and not index.exists()
    if index_wanted:
        try:
            index.touch(0o600)  # a reader that may not make it wants it to be there
        except OSError as error:
            raise StoreUnavailable(
                f"{index} cannot be made: {error.strerror}",
                hint="Free some disk space, or make the folder writable.",
            ) from error
    conn = connect(path, key, read_only=True)
    try:
        if newer := unknown_migrations(Database(conn)):
            raise StoreTooNew(
                f"The store was written by a newer version (it has {', '.join(newer)})",
                hint="Upgrade pacerelled, or restore the backup made before the upgrade. Nothing was changed.",
            )
        if any(row[0] != "ok" for row in conn.execute("PRAGMA quick_check(1)").fetchall()):
            raise StoreCorrupt(f"The store {path} is damaged", hint=RESTORE_HINT)
        also(Tx(conn, 0))
    except DatabaseError as error:
        if "not a database" in str(error):
            raise StoreKeyError(
                f"The store {path} does not open with this key (wrong key, or its first page is damaged)",
                hint=RESTORE_HINT,
            ) from error
        raise mapped(error) from error
    finally:
        conn.close()
        if index_wanted:
            index.unlink()


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def mapped(error: Exception) -> StoreError:
    """The one seam at which the driver's errors become ours."""
    text = str(error)
    if "disk is full" in text or "disk I/O" in text or "readonly" in text or "unable to open" in text:
        return StoreUnavailable(
            f"The store cannot be written now: {text}",
            hint="Free some disk space (or make the folder writable). Unread messages wait at the relay.",
        )
    if "locked" in text or "busy" in text:
        return StoreUnavailable(f"The store is in use by another program: {text}", hint="Close what has store.db open.")
    if "malformed" in text or "not a database" in text:
        return StoreCorrupt(f"The store is damaged: {text}", hint=RESTORE_HINT)
    return StoreError(f"The store failed: {text}", hint="Restart the daemon; report this if it comes back.")
