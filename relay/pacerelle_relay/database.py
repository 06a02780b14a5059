"""The one thread that owns the SQLite database.

Work is submitted from the event loop and done in the order of submission. Whatever has queued up is done in one
transaction (a group commit); a future is resolved only after the commit, so a result that has been seen is durable.
"""

from __future__ import annotations

import asyncio
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Concatenate

from .errors import DataError, RelayError, StorageFailed
from .schema import prepare

BATCH = 256  # pieces of work in one transaction at most


class _Job:
    __slots__ = ("error", "future", "result", "work")

    def __init__(self, future: asyncio.Future[Any], work: Callable[[sqlite3.Connection], Any]) -> None:
        self.future = future
        self.work = work
        self.result: Any = None
        self.error: BaseException | None = None

    def resolve(self) -> None:
        if self.future.done():  # cancelled by its owner; the work is done all the same
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)


class Database:
    """`await database.run(work, *args)` calls `work(connection, *args)` inside a transaction on the database's thread.

    Work that raises is undone alone; `RelayError` reaches the caller as it is, `sqlite3.Error` as `StorageFailed`.
    Work may be done twice if the transaction around it fails, so it must have no effect but on the database.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        """Raises DataError if the file is not ours to use."""
        self._loop = asyncio.get_running_loop()
        self._connection = await asyncio.to_thread(self._connect)
        self._thread = threading.Thread(target=self._serve, name="relay-database", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Finishes what was submitted, then closes the file. Work submitted later is refused."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._jobs.put(None)
            await asyncio.to_thread(thread.join)

    def submit[**P, T](
        self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[T]:
        """Queues the work; later work is done later. The future's result is durable."""
        assert self._loop is not None
        future: asyncio.Future[T] = self._loop.create_future()
        if self._thread is None:
            future.set_exception(StorageFailed("the relay is stopping", retry_after=1))
        else:
            self._jobs.put(_Job(future, lambda connection: work(connection, *args, **kwargs)))
        return future

    async def run[**P, T](
        self, work: Callable[Concatenate[sqlite3.Connection, P], T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self.submit(work, *args, **kwargs)

    def _connect(self) -> sqlite3.Connection:
        # SQLite gives its journal files the mode of the database file, so the mode is set before the first open.
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, cached_statements=256)
        try:
            prepare(connection)  # first: a file that is not ours stays as it is
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA foreign_keys=ON")
        except sqlite3.Error as error:
            connection.close()
            raise DataError(f"{self._path} cannot be used as a relay's database: {error}") from error
        except BaseException:
            connection.close()
            raise
        return connection

    def _serve(self) -> None:
        assert self._connection is not None
        assert self._loop is not None
        stopping = False
        while not stopping:
            batch: list[_Job] = []
            job = self._jobs.get()
            while job is not None:
                batch.append(job)
                if len(batch) == BATCH:
                    break
                try:
                    job = self._jobs.get_nowait()
                except queue.Empty:
                    break
            stopping = job is None
            if batch:
                self._commit(self._connection, batch)
                try:
                    self._loop.call_soon_threadsafe(_resolve, batch)
                except RuntimeError:  # the loop is closed: nobody waits any more
                    break
        self._connection.close()

    def _commit(self, connection: sqlite3.Connection, batch: list[_Job]) -> None:
        try:
            connection.execute("BEGIN IMMEDIATE")
            for job in batch:
                _attempt(connection, job)
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            if len(batch) > 1:  # one of them is the culprit: the others shall not suffer
                for job in batch:
                    self._commit(connection, [job])
                return
            failure = StorageFailed(f"the relay's database failed: {error}", retry_after=5)
            failure.__cause__ = error
            batch[0].error = failure


def _attempt(connection: sqlite3.Connection, job: _Job) -> None:
    job.result = job.error = None
    connection.execute("SAVEPOINT job")
    try:
        job.result = job.work(connection)
    except sqlite3.Error:
        raise
    except Exception as error:  # ours (RelayError) or a defect: either way its owner's to deal with
        job.error = error
        if not isinstance(error, RelayError):
            error.add_note("in work for the relay's database")
        connection.execute("ROLLBACK TO job")
    connection.execute("RELEASE job")


def _resolve(batch: list[_Job]) -> None:
    for job in batch:
        job.resolve()
