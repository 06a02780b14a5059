"""Webhooks: events as signed POSTs, in order within an endpoint, over restarts.

An endpoint's cursor in the log and its delivery under way are rows: a message's path does nothing for them. A daemon
that was killed between an answer and its row tries again, under the same delivery id.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
import uuid
from collections.abc import Callable
from typing import Any

from pacerelled.agent.event_log import EventLog
from pacerelled.agent.wanted import Wanted
from pacerelled.errors import InvalidArgument, NotPossible, StoreError, UnknownWebhook, place_of
from pacerelled.store import events, webhooks
from pacerelled.store.database import Store, Tx, now
from pacerelled.store.webhooks import DeliveryRow, WebhookRow

from .addresses import checked_address
from .posting import Outcome, Poster, pause
from .signing import new_secret

log = logging.getLogger(__name__)

MAX_WEBHOOKS = 20
MAX_BUNDLE = 100  # events in a delivery
MAX_BUNDLE_S = 300.0
FAILURES = 5  # deliveries in a row, after which an endpoint pauses
BY_HAND = "paused by hand"
SKIP_EVERY = 5.0  # seconds between looks at what a paused endpoint skips
RETRY = 2.0  # seconds, while the store cannot be used
UNMOVED = 100  # events that are not wanted, before the cursor is written all the same


class Webhooks:
    """All endpoints. Each has a task, which ends with `stop` and begins anew when something about it changes."""

    def __init__(self, store: Store, event_log: EventLog, poster: Poster | None = None) -> None:
        self._store = store
        self._log = event_log
        self._poster = poster or Poster()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Raises StoreError."""
        for row in await self._store.run(webhooks.select):
            self._begin(row.id)

    async def stop(self) -> None:
        """What is on its way is broken off, and sent again after the next start."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await self._poster.close()

    # -- what a person does ------------------------------------------------------------------------------------

    async def add(self, url: str, wanted: Wanted, *, bundle_s: float = 0.0) -> tuple[dict[str, Any], str]:
        """The endpoint, from now on, and its secret, which is shown once. Raises InvalidArgument, NotPossible."""
        checked_address(url)
        webhook_id, secret = f"wh_{secrets.token_hex(4)}", new_secret()

        def job(tx: Tx) -> WebhookRow:
            if len(webhooks.select(tx)) >= MAX_WEBHOOKS:
                raise NotPossible(f"There are {MAX_WEBHOOKS} webhooks already", hint="Remove one you do not use.")
            start = f"{events.epoch(tx)}:{events.newest(tx)}"
            webhooks.insert(tx, webhook_id, url, secret, json.dumps(wanted.as_dict()), bundle_s, start)
            return _found(tx, webhook_id)

        row = await self._store.run(job)
        self._begin(webhook_id)
        return _shown(row), secret

    async def select(self) -> list[dict[str, Any]]:
        return [_shown(row) for row in await self._store.run(webhooks.select)]

    async def deliveries(self, webhook_id: str, limit: int) -> list[dict[str, Any]]:
        def job(tx: Tx) -> list[DeliveryRow]:
            _found(tx, webhook_id)
            return webhooks.deliveries(tx, webhook_id, limit)

        return [_delivery(row) for row in await self._store.run(job)]

    async def test(self, webhook_id: str) -> dict[str, Any]:
        """One attempt with an event `webhook.test` that is not in the log: what came of it."""
        row = await self._store.run(lambda tx: _found(tx, webhook_id))
        event: events.Event = {"id": "test", "epoch": None, "seq": None, "at": now(), "type": "webhook.test"}
        event |= {"agent": None, "data": {}}
        started = time.monotonic()
        outcome = await self._post(row, str(uuid.uuid4()), json.dumps([event]), "test", missed=False)
        return {
            "delivered": outcome.delivered,
            "code": outcome.code,
            "error": outcome.error,
            "duration_s": round(time.monotonic() - started, 3),
        }

    async def warnings(self) -> list[dict[str, Any]]:
        """For GET /v1/status: endpoints that have paused without being asked to. Raises StoreError."""
        return [
            {
                "code": "webhook_paused",
                "message": f"Webhook {row.id} has paused: {row.reason}",
                "hint": f"When it is mended: pacerelle webhook resume {row.id}",
            }
            for row in await self._store.run(webhooks.select)
            if row.paused and row.reason != BY_HAND
        ]

    async def pause(self, webhook_id: str) -> dict[str, Any]:
        """It is sent nothing, and what it would have been sent is counted. What is under way waits."""
        return await self._change(webhook_id, lambda tx: webhooks.set_paused(tx, webhook_id, BY_HAND))

    async def resume(self, webhook_id: str) -> dict[str, Any]:
        """Goes on with what happens from now on; what was skipped stays skipped."""

        def job(tx: Tx) -> None:
            if _found(tx, webhook_id).paused:
                while self._skip(tx, webhook_id):
                    pass
                webhooks.set_paused(tx, webhook_id, None)

        return await self._change(webhook_id, job)

    async def rotate(self, webhook_id: str) -> tuple[dict[str, Any], str]:
        """A new secret; the old one signs nothing any more."""
        secret = new_secret()
        return await self._change(webhook_id, lambda tx: webhooks.set_secret(tx, webhook_id, secret)), secret

    async def remove(self, webhook_id: str) -> None:
        def job(tx: Tx) -> None:
            _found(tx, webhook_id)
            webhooks.delete(tx, webhook_id)

        await self._store.run(job)
        await self._end(webhook_id)

    async def _change(self, webhook_id: str, change: Callable[[Tx], None]) -> dict[str, Any]:
        def job(tx: Tx) -> WebhookRow:
            _found(tx, webhook_id)
            change(tx)
            return _found(tx, webhook_id)

        await self._end(webhook_id)
        try:
            return _shown(await self._store.run(job))
        finally:
            self._begin(webhook_id)

    # -- delivering --------------------------------------------------------------------------------------------

    def _begin(self, webhook_id: str) -> None:
        self._tasks[webhook_id] = asyncio.create_task(self._run(webhook_id), name="webhook")

    async def _end(self, webhook_id: str) -> None:
        if (task := self._tasks.pop(webhook_id, None)) is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _run(self, webhook_id: str) -> None:
        while True:
            try:
                if not await self._work(webhook_id):
                    return
            except StoreError as error:
                log.error("A webhook waits: %s", error.message)
                await asyncio.sleep(RETRY)
            except Exception as error:
                log.error("A webhook failed: %s", place_of(error))
                await asyncio.sleep(RETRY)

    async def _work(self, webhook_id: str) -> bool:
        """Does what there is to do, then waits for news. False when the endpoint is gone."""
        news = self._log.news
        row = await self._store.run(lambda tx: webhooks.find(tx, webhook_id))
        if row is None:
            return False
        if row.paused:
            while await self._store.run(lambda tx: self._skip(tx, webhook_id)):
                pass
            await news.wait()
            await asyncio.sleep(SKIP_EVERY)
            return True
        delivery, more = await self._store.run(lambda tx: self._next(tx, row, 0 if row.bundle_s else 1))
        if delivery is None and more and row.bundle_s:
            await asyncio.sleep(row.bundle_s)
            delivery, more = await self._store.run(lambda tx: self._next(tx, row, MAX_BUNDLE))
        if delivery is not None:
            await self._deliver(row, delivery)
        elif not more:
            await news.wait()
        return True

    def _next(self, tx: Tx, row: WebhookRow, most: int) -> tuple[DeliveryRow | None, bool]:
        """The delivery under way, or a new one of at most so many events; and whether there may be more to send.

        With 0 it only looks.
        """
        if (delivery := webhooks.pending(tx, row.id)) is not None:
            return delivery, True
        row = _found(tx, row.id)
        page = events.page(tx, row.cursor, Wanted.from_dict(json.loads(row.wanted)), most or 1)
        if page.gap:
            log.warning("A webhook has missed events that are not kept any more")
            webhooks.move_on(tx, row.id, page.cursor, missed=True)
            return None, False
        if not page.events:
            if page.more or _distance(row.cursor, page.cursor) >= UNMOVED:
                webhooks.move_on(tx, row.id, page.cursor)
            return None, page.more and not row.bundle_s
        if not most:
            return None, True
        last = page.events[-1]["id"]
        webhooks.insert_delivery(tx, str(uuid.uuid4()), row, json.dumps(page.events), last, len(page.events))
        webhooks.move_on(tx, row.id, last)
        return webhooks.pending(tx, row.id), True

    def _skip(self, tx: Tx, webhook_id: str) -> bool:
        """Counts some of what a paused endpoint would have been sent. False when there is no more."""
        row = _found(tx, webhook_id)
        page = events.page(tx, row.cursor, Wanted.from_dict(json.loads(row.wanted)), events.SCAN)
        if page.cursor != row.cursor:
            webhooks.move_on(tx, webhook_id, page.cursor, skipped=len(page.events), missed=page.gap)
        return page.more

    async def _deliver(self, row: WebhookRow, delivery: DeliveryRow) -> None:
        attempts = delivery.attempts
        while True:
            outcome = await self._post(
                row, delivery.id, delivery.events, delivery.event_id, missed=bool(delivery.missed)
            )
            attempts += 1
            wait = pause(attempts, outcome)
            state = "delivered" if outcome.delivered else "failed" if wait is None else "pending"
            await self._note(delivery, state, outcome)
            if wait is None:
                return
            await asyncio.sleep(wait)

    async def _note(self, delivery: DeliveryRow, state: str, outcome: Outcome) -> None:
        """Writes down an attempt, as soon as the store takes it."""

        def job(tx: Tx) -> None:
            failures = webhooks.tried(tx, delivery, state, outcome.code, outcome.error)
            if state == "failed" and failures >= FAILURES:
                reason = f"{failures} deliveries in a row failed"
                webhooks.set_paused(tx, delivery.webhook_id, reason)
                events.add(tx, None, "webhook.paused", webhook_id=delivery.webhook_id, reason=reason)

        while True:
            try:
                return await self._store.run(job)
            except StoreError as error:
                log.error("The state of a delivery cannot be written: %s", error.message)
                await asyncio.sleep(RETRY)

    async def _post(self, row: WebhookRow, delivery_id: str, sent: str, event_id: str, *, missed: bool) -> Outcome:
        body = {"delivery_id": delivery_id, "sent_at": now(), "events": json.loads(sent)}
        if missed:
            body["gap"] = True
        headers = {"Pacerelle-Delivery": delivery_id, "Pacerelle-Event-Id": event_id}
        return await self._poster.post(row.url, row.secret, json.dumps(body).encode(), headers)


def wanted_of(
    types: tuple[str, ...], agents: tuple[str, ...], labels: dict[str, Any] | None, needs_attention: bool
) -> Wanted:
    """What an endpoint asks for. Raises InvalidArgument."""
    if any(not isinstance(value, str) for value in (labels or {}).values()):
        raise InvalidArgument("`labels` must be texts", argument="labels", hint='For example {"origin": "home"}.')
    return Wanted(types=types, agents=agents, labels=labels or {}, needs_attention=needs_attention)


def _distance(before: str, after: str) -> int:
    return int(after.rpartition(":")[2]) - int(before.rpartition(":")[2])


def _found(tx: Tx, webhook_id: str) -> WebhookRow:
    row = webhooks.find(tx, webhook_id)
    if row is None:
        raise UnknownWebhook(f"There is no webhook {webhook_id}", hint="`pacerelle webhook list` shows them.")
    return row


def _shown(row: WebhookRow) -> dict[str, Any]:
    """The JSON shape in docs/local-protocol.md, without the secret."""
    return {
        "id": row.id,
        "url": row.url,
        "state": "paused" if row.paused else "active",
        "reason": row.reason,
        "wanted": json.loads(row.wanted),
        "bundle_s": row.bundle_s,
        "failures": row.failures,
        "skipped": row.skipped,
        "created_at": row.created_at,
    }


def _delivery(row: DeliveryRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "event_id": row.event_id,
        "events": row.count,
        "state": row.state,
        "attempts": row.attempts,
        "code": row.code,
        "error": row.error,
        "created_at": row.created_at,
        "updated_at": row.updated_at,
    }
