"""The database file and the one thread that touches it."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pacerelled.errors import (
    InvalidArgument,
    StoreCorrupt,
    StoreError,
    StoreUnavailable,
    place_of,
)

from .clock import StoreClock
from .driver import Connection, DatabaseError
from .opening import RESTORE_HINT as RESTORE_HINT
from .opening import beside, mapped, open_connection

log = logging.getLogger(__name__)
T = TypeVar("T")

AUTOCHECKPOINT = 1000  # pages of log after which SQLite folds it in: its own default


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


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The store's file as it was at one moment, with the key that opens it. `size` in bytes."""

    size: int
    key: bytes = field(repr=False)
    read: Callable[[int, int], Awaitable[bytes]] = field(repr=False)  # at an offset, so many bytes; raises StoreError


class Store:
    """All access goes through `run`: one function, one transaction, one thread, in order of the calls.

    Raises StoreKeyError, StoreCorrupt, StoreTooNew when opening. `run` raises StoreUnavailable when the disk is full or
    fails (then nothing of that transaction was written), and InvalidArgument for text that is no UTF-8. `on_event` is
    called on the store's thread after each commit that added events.

    No other program can read the store while it is open: one that forgot to finish would keep the log from ever being
    folded in, and it would grow without end.
    """

    def __init__(
        self, conn: Connection, clock: StoreClock, path: Path, key: bytes, executor: ThreadPoolExecutor
    ) -> None:
        self._conn = conn
        self._key = key
        # Open as long as the store is: closing any descriptor of a file ends the locks that SQLite has on it.
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._held = False  # the log is not folded in: a snapshot is being read
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
        return cls(conn, clock, path, key, executor)

    async def run(self, fn: Callable[[Tx], T]) -> T:
        """`fn(tx)` in one transaction. A cancelled caller does not stop it."""
        if self._closed:
            raise _closed()
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
    def lived(self) -> float:
        """Seconds of the store's own time (clock.py)."""
        return self._clock.lived

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
        os.close(self._file)
        self._executor.shutdown(wait=True)

    async def fold_log(self) -> None:
        """Writes the log into the file and empties it; not while a snapshot is read. Raises StoreError."""
        if not self._closed:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._fold_log)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[Snapshot]:
        """The store at this moment, to be read inside the context while everything goes on. Raises StoreError.

        What is committed meanwhile goes to the log, which is not folded into the file before the end.
        """
        if self._closed:
            raise _closed()
        loop = asyncio.get_running_loop()
        size = await loop.run_in_executor(self._executor, self._hold_file)
        try:
            yield Snapshot(size, self._key, self._read_file)
        finally:
            if not self._closed:
                await loop.run_in_executor(self._executor, self._let_file_go)

    async def _read_file(self, at: int, size: int) -> bytes:
        data = await asyncio.to_thread(os.pread, self._file, size, at) if not self._closed else b""
        if self._closed:  # by now, which may have folded the log in
            raise _closed()
        if len(data) < size:
            raise StoreCorrupt(f"The store {self.path} is shorter than it was", hint=RESTORE_HINT)
        return data

    def _hold_file(self) -> int:
        if self._held:
            raise StoreUnavailable("The store is being copied already", hint="Try again when that has ended.")
        self._fold_log()
        if self.log_size():
            raise StoreUnavailable("The log of the store cannot be folded in now", hint="Try again.")
        self._held = True
        self._conn.execute("PRAGMA wal_autocheckpoint = 0")
        return os.fstat(self._file).st_size

    def _let_file_go(self) -> None:
        self._held = False
        self._conn.execute(f"PRAGMA wal_autocheckpoint = {AUTOCHECKPOINT}")

    def log_size(self) -> int:
        """Bytes."""
        try:
            return beside(self.path, "-wal").stat().st_size
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
        if self._held:
            return
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


def _closed() -> StoreError:
    return StoreError("The store is closed", hint="The daemon is stopping.")


def _open(path: Path, key: bytes, new: bool) -> tuple[Connection, StoreClock]:
    conn = open_connection(path, key, new=new)
    try:
        saved = conn.execute("SELECT lived, wall FROM clock").fetchone()
    except BaseException as error:
        conn.close()
        if isinstance(error, DatabaseError):
            raise mapped(error) from error
        raise
    return conn, StoreClock(saved and tuple(saved))
