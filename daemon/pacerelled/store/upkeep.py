"""The store's housekeeping, between other work: what is not kept goes, the log is folded in, free space is given back.

Each step is a transaction of a few milliseconds, and waits until nobody else has wanted the store for a moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from pacerelled.errors import StoreError, place_of

from . import retention
from .database import Store, Tx

log = logging.getLogger(__name__)

INTERVAL = 60.0  # seconds between rounds
SAVE_CLOCK = 60  # rounds between notes of the store's time, and rounds at all while nothing is written
QUIET = 0.2  # seconds without use, before a step
PATIENCE = 2.0  # seconds; then a step is taken though there was no quiet
BUDGET = 0.003  # seconds of a step, without its commit
PROBE = 2.0  # seconds between attempts to write to a store that could not be written


class Upkeep:
    """Runs beside the daemon. `start` after the store is open, `stop` before it is closed."""

    def __init__(self, store: Store, policy: retention.Policy) -> None:
        self._store = store
        self._policy = policy
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="store-upkeep")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        rounds = 0
        while True:
            try:
                async with asyncio.timeout(INTERVAL):
                    await self._store.failing.wait()
            except TimeoutError:
                pass
            try:
                if self._store.failing.is_set():
                    await self._recover()
                rounds += 1
                hourly = rounds % SAVE_CLOCK == 0
                # An empty log: nothing was written since the last round, so only age can make something due.
                if rounds == 1 or hourly or self._store.log_size():
                    await self._round(save_clock=hourly)
            except StoreError as error:
                log.error("The store's upkeep waits: %s", error.message)
            except Exception as error:
                log.error("The store's upkeep failed: %s", place_of(error))

    async def _recover(self) -> None:
        """Until it can be written again: status is then right also when nobody else writes."""
        while self._store.failing.is_set():
            await asyncio.sleep(PROBE)
            try:
                await self._store.run(self._store.save_clock)
            except StoreError:
                continue

    async def _round(self, *, save_clock: bool) -> None:
        await self._quiet()
        due = await self._store.run(lambda tx: retention.look(tx, self._policy))
        await self._steps(lambda tx: retention.prune(tx, due, BUDGET))
        await self._steps(retention.shrink)
        if save_clock:
            await self._store.run(self._store.save_clock)
        if self._store.log_size():
            await self._quiet()
            await self._store.fold_log()

    async def _steps(self, step: Callable[[Tx], bool]) -> None:
        """Takes a step again and again, until it says that nothing is left to do."""
        more = True
        while more:
            await self._quiet()
            more = await self._store.run(step)

    async def _quiet(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while self._store.idle_for < QUIET and time.monotonic() < deadline:  # noqa: ASYNC110 - no event tells of quiet
            await asyncio.sleep(QUIET / 4)
