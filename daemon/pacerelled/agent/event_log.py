"""Hearing of events: at once or as they happen, from a cursor on, never with something left out in silence.

Events of what is not stored itself (a host that came, a connection that ended) are written here, in order.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from pacerelled.errors import InvalidArgument, StoreError, place_of
from pacerelled.store import events
from pacerelled.store.database import Store, Tx
from pacerelled.store.events import Event, Page

log = logging.getLogger(__name__)

UNWRITTEN = 1000  # events that wait for a store that cannot be written; older ones give way
RETRY = 2.0  # seconds
CURSOR = re.compile(r"[0-9a-z]{1,32}:[0-9]{1,19}")

Predicate = Callable[[Event], bool]


class EventLog:
    """`state()` is what a follower that missed something gets instead."""

    def __init__(self, store: Store, *, state: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._store = store
        self._state = state
        self._news = asyncio.Event()
        self._unwritten: deque[tuple[str | None, str, dict[str, Any]]] = deque(maxlen=UNWRITTEN)
        self._noted = asyncio.Event()
        self._writing: asyncio.Task[None] | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()

        def on_event() -> None:
            loop.call_soon_threadsafe(self._announce)

        self._store.on_event = on_event
        self._writing = asyncio.create_task(self._keep_writing(), name="events")

    async def stop(self) -> None:
        """Writes what waits, unless the store does not take it."""
        if self._writing is not None:
            self._writing.cancel()
            await asyncio.gather(self._writing, return_exceptions=True)
        try:
            await self._write()
        except StoreError as error:
            log.error("Events could not be written: %s", error.message)

    # -- reading -----------------------------------------------------------------------------------------------

    @property
    def news(self) -> asyncio.Event:
        """Set with the next commit that has events; take it before looking."""
        return self._news

    async def wait(self, cursor: str | None, wanted: Predicate, *, limit: int, timeout: float) -> dict[str, Any]:
        """`events`, `next_cursor`, `gap`; after a gap also `state`. Waits `timeout` seconds for the first.

        `cursor` as an earlier answer gave it; `events.START`; None: from now on. Raises InvalidArgument, StoreError.
        """
        if cursor not in (None, events.START) and not CURSOR.fullmatch(cursor or ""):
            raise InvalidArgument(
                "`cursor` is not one that an answer gave",
                argument="cursor",
                hint="Pass on `next_cursor`, or the `id` of an event; leave it out to hear what happens from now on.",
            )
        deadline = time.monotonic() + timeout
        while True:
            news = self._news
            found = await self.page(cursor, wanted, limit)
            cursor = found.cursor
            left = deadline - time.monotonic()
            if found.gap:
                return {"events": [], "next_cursor": cursor, "gap": True, "state": await self._state()}
            if found.events or (left <= 0 and not found.more):
                return {"events": found.events, "next_cursor": cursor, "gap": False}
            if not found.more:
                try:
                    await asyncio.wait_for(news.wait(), left)
                except TimeoutError:
                    continue  # and look once more: what is committed by now is answered

    async def page(self, cursor: str | None, wanted: Predicate, limit: int) -> Page:
        """One look. Raises StoreError."""
        return await self._store.run(lambda tx: events.page(tx, cursor, wanted, limit))

    async def last(self, count: int, wanted: Predicate) -> dict[str, Any]:
        """The newest wanted events, oldest first, with the cursor after them."""

        def look(tx: Tx, before: int | None) -> tuple[list[Event], str, int]:
            of, end = events.epoch(tx), events.newest(tx)
            return events.rows_before(tx, of, end + 1 if before is None else before), of, end

        rows, of, end = await self._store.run(lambda tx: look(tx, None))
        found: list[Event] = []
        while rows:
            found += [event for event in rows if wanted(event)]
            if len(found) >= count:
                break
            oldest = rows[-1]["seq"]
            rows, _, _ = await self._store.run(lambda tx, before=oldest: look(tx, before))  # type: ignore[misc]
        return {"events": found[:count][::-1], "next_cursor": f"{of}:{end}", "gap": False}

    # -- writing -----------------------------------------------------------------------------------------------

    def note(self, agent_id: str | None, type_: str, **data: Any) -> None:
        """Writes an event of something that is not in the store, soon."""
        self._unwritten.append((agent_id, type_, data))
        self._noted.set()

    async def _keep_writing(self) -> None:
        while True:
            await self._noted.wait()
            self._noted.clear()
            try:
                await self._write()
            except StoreError as error:
                log.error("Events wait: %s", error.message)
                await asyncio.sleep(RETRY)
                self._noted.set()
            except Exception as error:
                log.error("Events were lost: %s", place_of(error))

    async def _write(self) -> None:
        """Takes them out before, and back in if the store refuses: a cancelled caller does not stop a transaction."""
        batch = list(self._unwritten)
        self._unwritten.clear()

        def job(tx: Tx) -> None:
            for agent_id, type_, data in batch:
                events.add(tx, agent_id, type_, **data)

        if batch:
            try:
                await self._store.run(job)
            except StoreError:
                self._unwritten.extendleft(reversed(batch))
                raise

    def _announce(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
