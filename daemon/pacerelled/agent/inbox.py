"""Inbound: frames become requests, or go to quarantine with the reason; then, and only then, they are acknowledged.

Frames that queued up are taken together: one transaction decodes, decrypts, stores, and writes the changed Signal
pieces and the events. One bad frame never costs a good one, nor the connection.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pacerelle_protocol.envelope import IncomingMessage, ack_read_frame
from pacerelle_protocol.groups import parse_group_key_envelopes
from pacerelled.errors import LinkError, StoreError, place_of
from pacerelled.store import quarantine
from pacerelled.store.database import Store, Tx

from .crypto import AgentCrypto
from .intake import Intake, Result
from .model import short
from .rejected import KEY_MISSING, Rejected

log = logging.getLogger(__name__)

BATCH_FRAMES = 64
BATCH_BYTES = 4 * 1024 * 1024
QUEUE_FRAMES = 256  # more than that wait in the socket
QUEUE_BYTES = 16 * 1024 * 1024  # as well
PARKED_FRAMES = 1000  # of a group whose keys cannot be fetched; the relay keeps the others
RETRY_FIRST, RETRY_MAX = 0.5, 30.0  # seconds between attempts while the store or the relay does not answer
KEY_TRIES = 4  # a sender's new group key may reach the relay a moment after the message


@dataclass(slots=True)
class Problems:
    """What keeps messages from being accepted right now; shown in status."""

    store: str | None = None
    group_keys: dict[str, str] = field(default_factory=dict)


class Inbox:
    """`accept` takes raw frames; `on_accepted` is told of each batch's new requests, `send` writes acknowledgements."""

    def __init__(
        self,
        agent_id: str,
        store: Store,
        crypto: AgentCrypto,
        *,
        send: Callable[[str], Awaitable[None]],
        fetch_group_keys: Callable[[str], Awaitable[bytes]],
        on_accepted: Callable[[list[Result]], None],
        preview: int = 0,
    ) -> None:
        self._agent_id = agent_id
        self._store = store
        self._crypto = crypto
        self._intake = Intake(agent_id, crypto, preview=preview)
        self._send = send
        self._fetch_group_keys = fetch_group_keys
        self._on_accepted = on_accepted
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._news, self._room = asyncio.Event(), asyncio.Event()
        # Group conversation -> frames that wait for its keys, in order; by digest, since the relay may send them again.
        self._parked: dict[str, dict[str, bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.problems = Problems()

    def start(self) -> None:
        self._spawn(self._pump())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def accept(self, raw: bytes) -> None:
        """Queues one frame as it came; waits while the queue is full."""
        while self._queue and (len(self._queue) >= QUEUE_FRAMES or self._queued_bytes + len(raw) > QUEUE_BYTES):
            self._room.clear()
            await self._room.wait()
        self._queue.append(raw)
        self._queued_bytes += len(raw)
        self._news.set()

    async def _pump(self) -> None:
        while True:
            await self._news.wait()
            batch: list[bytes] = []
            size = 0
            while self._queue and len(batch) < BATCH_FRAMES and size < BATCH_BYTES:
                batch.append(self._queue.popleft())
                size += len(batch[-1])
            if not self._queue:
                self._news.clear()
            self._queued_bytes -= size
            self._room.set()
            try:
                await self._process(batch)
            except Exception as error:
                log.error("A batch of frames failed: %s", place_of(error))
                for raw in batch:  # one bad frame never costs a good one
                    await self._process_alone(raw)

    async def _process(self, batch: list[bytes]) -> None:
        waiting = set(self._parked)
        results = await self._durably(lambda tx: self._take_in(tx, batch, set(waiting)))
        for result in results:
            if result.outcome == "parked" and result.message is not None:
                self._park(result.message, result.raw)
        await self.finish(results)

    async def _process_alone(self, raw: bytes) -> None:
        try:
            await self._process([raw])
        except Exception as error:
            # Neither acknowledged nor kept: the relay has it, and sends it again after the next connection.
            log.error("A frame of %d bytes failed: %s", len(raw), place_of(error))

    async def finish(self, results: list[Result]) -> None:
        """After the commit: wakes who waits, then tells the relay what need not be sent again."""
        if accepted := [r for r in results if r.outcome == "accepted"]:
            self._on_accepted(accepted)
        for result in results:
            if result.ack is not None:
                to, message_id, conversation_id = result.ack
                try:
                    await self._send(ack_read_frame(to=to, message_id=message_id, conversation_id=conversation_id))
                except LinkError:
                    return  # they come again after reconnecting and are recognised

    async def _durably[T](self, fn: Callable[[Tx], T]) -> T:
        """Runs a transaction, and again while the store fails: meanwhile nothing is acknowledged."""
        delay = RETRY_FIRST
        while True:
            try:
                result = await self._store.run(fn)
            except StoreError as error:
                if self.problems.store is None:
                    log.error("Messages wait: %s", error.message)
                self.problems.store = error.message
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX)
            else:
                self.problems.store = None
                return result

    def _take_in(self, tx: Tx, batch: list[bytes], waiting: set[str]) -> list[Result]:
        self._crypto.guard(tx)
        results = []
        for raw in batch:
            result = self._intake.take(tx, raw, waiting)
            if result.outcome == "parked" and result.message is not None:
                waiting.add(result.message.conversation_id)
            results.append(result)
        self._crypto.save(tx)
        return results

    # -- what has been in quarantine ---------------------------------------------------------------------------

    def retry(self, tx: Tx, chosen: quarantine.Chosen) -> list[Result]:
        """Takes it once more, oldest first, in a transaction whose caller guards and saves the crypto.

        After the commit the results are to be given to `finish`.
        """
        return self._intake.retry(tx, quarantine.numbers(tx, self._agent_id, chosen))

    async def fetch_missing_keys(self) -> None:
        """Asks for the keys of group messages in quarantine, and takes those whose key there is. Raises StoreError."""
        for conversation_id in await self._store.run(
            lambda tx: quarantine.conversations(tx, self._agent_id, KEY_MISSING)
        ):
            try:
                await self.refresh_group_keys(conversation_id)
            except LinkError as error:
                log.info("The keys of a group could not be fetched: %s", error.code)

    # -- group keys --------------------------------------------------------------------------------------------

    def _park(self, message: IncomingMessage, raw: bytes) -> None:
        """Keeps a group message until its keys are fetched; what comes after it in that group queues behind it."""
        parked = self._parked.get(message.conversation_id)
        if parked is None:
            self._parked[message.conversation_id] = {message.digest: raw}
            self._spawn(self._fetch_and_retry(message.conversation_id))
        elif len(parked) < PARKED_FRAMES:
            parked[message.digest] = raw

    async def _fetch_and_retry(self, conversation_id: str) -> None:
        """Fetches the group's keys, then takes what was parked; the rest of the work on this group waits for it."""
        parked = self._parked[conversation_id]
        delay, tries = RETRY_FIRST, KEY_TRIES
        try:
            while parked:
                try:
                    await self.refresh_group_keys(conversation_id)
                except LinkError as error:
                    self.problems.group_keys[conversation_id] = error.message
                else:
                    self.problems.group_keys.pop(conversation_id, None)
                    tries -= 1
                    while await self._take_parked(parked, last_try=tries <= 0):
                        pass  # more queued up behind them meanwhile
                if parked:
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, RETRY_MAX)
        finally:
            self.problems.group_keys.pop(conversation_id, None)
            del self._parked[conversation_id]  # what is left comes again from the relay

    async def _take_parked(self, parked: dict[str, bytes], *, last_try: bool) -> bool:
        """Takes parked messages in order, up to one whose key is still missing; on the last try that is quarantined.

        Returns whether there are more to be taken now.
        """
        batch = list(parked.items())[:BATCH_FRAMES]

        def job(tx: Tx) -> list[Result]:
            self._crypto.guard(tx)
            results = []
            for _, raw in batch:
                result = self._intake.take(tx, raw)
                if result.outcome == "parked" and result.message is not None:
                    if not last_try:
                        break
                    missing = Rejected(KEY_MISSING, "The relay has no key for this group message")
                    result = self._intake.quarantine(tx, raw, result.message, missing)
                results.append(result)
            self._crypto.save(tx)
            return results

        results = await self._durably(job)
        for digest, _ in batch[: len(results)]:
            del parked[digest]
        await self.finish(results)
        return bool(parked) and len(results) == len(batch)

    async def refresh_group_keys(self, conversation_id: str) -> None:
        """Fetches and opens the sealed keys of a group. Raises LinkError.

        What was quarantined for want of a key that is there now becomes a request.
        """
        body = await self._fetch_group_keys(conversation_id)
        try:
            listed: Any = json.loads(body)
        except (ValueError, RecursionError):
            listed = None
        envelopes, problems = parse_group_key_envelopes(listed, conversation_id)

        def job(tx: Tx) -> tuple[list[str], list[Result]]:
            self._crypto.guard(tx)
            learned, reasons = self._crypto.learn_group_keys(tx, envelopes)
            waiting = quarantine.Chosen(reasons=(KEY_MISSING,), conversation_id=conversation_id)
            results = self.retry(tx, waiting) if learned else []
            self._crypto.save(tx)
            return reasons, results

        reasons, results = await self._durably(job)
        await self.finish(results)
        reasons += [p.reason for p in problems]
        if reasons:
            log.warning("%d group keys were not usable: %s", len(reasons), ", ".join(sorted(set(reasons))))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Receiving for agent %s failed: %s", short(self._agent_id), place_of(error))
