"""Reminders: an event for a request that nobody answered for long, and for a widget that expired without an answer."""

from __future__ import annotations

import asyncio
import logging
import time

from pacerelled.agent.event_log import EventLog
from pacerelled.errors import StoreError, place_of
from pacerelled.store import events, reminders
from pacerelled.store.database import Store, Tx

log = logging.getLogger(__name__)

GRAIN = 60.0  # seconds between looks, at most: so exact a reminder of an hour is
LONGEST = 300.0  # seconds until the next look while a widget waits: its time is the wall clock's, which can be set
RETRY = 2.0  # seconds, while the store cannot be used


class Reminders:
    """Looks when something happened, and when something is due; never else.

    `after`: seconds that a request may be unanswered; 0: as long as it likes.
    """

    def __init__(self, store: Store, event_log: EventLog, *, after: float) -> None:
        self._store = store
        self._log = event_log
        self._after = after
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="reminders")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        grain = min(GRAIN, max(self._after / 20, 0.05)) if self._after else GRAIN
        while True:
            try:
                news = self._log.news
                left = await self._store.run(self._look)
                try:
                    await asyncio.wait_for(news.wait(), left)
                    # What happens in a burst is looked at once; what is due meanwhile is not made to wait.
                    await asyncio.sleep(grain if left is None else min(grain, max(left, 0.0)))
                except TimeoutError:
                    continue
            except StoreError as error:
                log.error("Reminders wait: %s", error.message)
                await asyncio.sleep(RETRY)
            except Exception as error:
                log.error("Reminders failed: %s", place_of(error))
                await asyncio.sleep(RETRY)

    def _look(self, tx: Tx) -> float | None:
        """Writes what is due; returns the seconds until something else is, or None."""
        left: list[float] = []
        for agent_id, message_id, conversation_id in reminders.expired(tx, time.time()):
            events.add(tx, agent_id, "widget.expired", message_id=message_id, conversation_id=conversation_id)
        if (expiry := reminders.next_expiry(tx)) is not None:
            left.append(min(expiry - time.time(), LONGEST))
        if self._after:
            left += self._overdue(tx)
        return max(min(left), 0.01) if left else None

    def _overdue(self, tx: Tx) -> list[float]:
        lived = self._store.lived
        reminders.mark(tx, lived)
        if (due := reminders.due(tx, lived - self._after)) is not None:
            for agent_id, message_id, conversation_id, sender, received_at in reminders.unanswered(tx, *due):
                events.add(
                    tx,
                    agent_id,
                    "message.overdue",
                    message_id=message_id,
                    conversation_id=conversation_id,
                    sender=sender,
                    received_at=received_at,
                )
            reminders.seen(tx, due[1])
        oldest = reminders.next_mark(tx)
        return [] if oldest is None else [oldest + self._after - lived]
