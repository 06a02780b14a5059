"""Outbound: a reply is committed with its encrypted envelope first and sent afterwards, in order.

States: `queued` → `sending` (committed before the frame is written: from then on it may have left) → `submitted`
(the relay answered a ping that was sent after the frame), `uncertain` (the link ended in between) or `failed` (the
relay does not take it). Nothing is encrypted twice: sending again sends the same bytes under the same id, which a
receiver's ratchet accepts once.

The order holds within a conversation. One reply that cannot be sent holds up no other conversation.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from pacerelled.errors import FrameRefused, LinkError, NotConnected, StoreError, StoreUnavailable, place_of
from pacerelled.store import events, replies
from pacerelled.store.database import Store, Tx

log = logging.getLogger(__name__)

BATCH = 32  # frames under one ping
UNCERTAIN = "the relay connection ended before the relay confirmed it"
REFUSED = "the relay does not take a message as large as this one"
INTERRUPTED = "the daemon ended before the relay confirmed it"
TRIES = 5  # with `retry_uncertain`; then somebody has to ask
RETRY = 0.5  # seconds, after the link ended or the store refused
STOP_PATIENCE = 1.0  # seconds

Queued = tuple[int, str, str]  # seq, message id, envelope


class Link(Protocol):
    """What the outbox needs of the relay connection."""

    connected: asyncio.Event

    def send(self, frame: str) -> Awaitable[None]: ...

    def flushed(self) -> Awaitable[None]: ...


class Outbox:
    """Sends what is queued whenever the link is up. `on_change` is called after each change of states."""

    def __init__(
        self,
        agent_id: str,
        store: Store,
        link: Link,
        *,
        on_change: Callable[[], None],
        retry_uncertain: bool,
    ) -> None:
        self._agent_id = agent_id
        self._store = store
        self._link = link
        self._on_change = on_change
        self._retry_uncertain = retry_uncertain
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._task: asyncio.Task[None] | None = None
        self._waiters: defaultdict[str, list[asyncio.Future[None]]] = defaultdict(list)

    async def start(self) -> None:
        """What a crash left in `sending` may or may not have left: it is uncertain."""
        await self._store.run(self._after_crash)
        self._work.set()
        self._task = asyncio.create_task(self._pump(), name="outbox")

    async def stop(self) -> None:
        """Lets what is being sent come to its proof, for a moment."""
        if self._task is not None:
            try:
                await asyncio.wait_for(self._idle.wait(), STOP_PATIENCE)
            except TimeoutError:
                log.warning("Stopping while replies are being sent; they will be uncertain")
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def wake(self) -> None:
        """There is something queued."""
        self._work.set()

    def changed(self, message_id: str) -> None:
        """Something else decided what became of this reply."""
        self._tell(message_id)
        self._on_change()

    def link_up(self) -> None:
        """The connection stands again."""
        if self._retry_uncertain:
            self._work.set()

    @contextmanager
    def watch(self, message_id: str) -> Iterator[asyncio.Future[None]]:
        """A future that is done when sending this reply has come to an end, one way or the other."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters[message_id].append(future)
        try:
            yield future
        finally:
            self._waiters[message_id].remove(future)
            if not self._waiters[message_id]:
                del self._waiters[message_id]

    def _after_crash(self, tx: Tx) -> None:
        for seq, _ in replies.in_state(tx, self._agent_id, "sending"):
            replies.set_state(tx, [seq], "uncertain", INTERRUPTED)
            events.add(tx, self._agent_id, "reply.uncertain", **replies.ids(tx, seq))

    async def _pump(self) -> None:
        while True:
            await self._work.wait()
            await self._link.connected.wait()
            self._work.clear()
            self._idle.clear()
            try:
                while await self._send_some():
                    pass
            except StoreError as error:
                log.error("Replies wait: %s", error.message)
                self._work.set()
            except Exception as error:
                # The replies in hand stay `sending`, and are uncertain after the next start; others go on.
                log.error("Sending failed: %s", place_of(error))
                self._work.set()
            finally:
                self._idle.set()
            if self._work.is_set():
                await asyncio.sleep(RETRY)

    async def _send_some(self) -> bool:
        """Sends the oldest queued replies and waits for the proof. False when there was nothing, or the link ended."""

        def begin(tx: Tx) -> list[Queued]:
            if self._retry_uncertain:
                replies.requeue_uncertain(tx, self._agent_id, tries=TRIES)
            return replies.begin_sending(tx, self._agent_id, BATCH)

        batch = await self._store.run(begin)
        if not batch:
            return False
        left, ended = await self._transmit(batch)
        sent, unsent = batch[:left], batch[left:]
        if ended is None:
            await self._settle(sent, "submitted", None)
        elif isinstance(ended, FrameRefused) and len(sent) == 1:
            await self._settle(sent, "failed", REFUSED, unsent)
        else:
            await self._settle(sent, "uncertain", UNCERTAIN, unsent)
        if ended is not None:
            self._work.set()
        return ended is None

    async def _transmit(self, batch: list[Queued]) -> tuple[int, LinkError | None]:
        """How many of them may have left, and what ended the link before the proof, if something did."""
        for count, (_, _, envelope) in enumerate(batch):
            try:
                await self._link.send(envelope)
            except NotConnected as error:
                return count, error
            except LinkError as error:
                return count + 1, error
        try:
            await self._link.flushed()
        except LinkError as error:
            return len(batch), error
        return len(batch), None

    async def _settle(
        self, batch: list[Queued], state: str, reason: str | None, unsent: list[Queued] | None = None
    ) -> None:
        """Writes down what became of the batch, as soon as the store takes it."""

        def job(tx: Tx) -> None:
            replies.take_back(tx, [seq for seq, _, _ in unsent or () if replies.is_sending(tx, seq)])
            for seq, _, _ in batch:
                if replies.is_sending(tx, seq):  # else the person's answer has proven it meanwhile
                    replies.set_state(tx, [seq], state, reason)
                    events.add(tx, self._agent_id, f"reply.{state}", **replies.ids(tx, seq))

        while True:
            try:
                await self._store.run(job)
                break
            except StoreUnavailable as error:
                log.error("The state of replies cannot be written: %s", error.message)
                await asyncio.sleep(RETRY)
        for _, message_id, _ in batch:
            self._tell(message_id)
        self._on_change()

    def _tell(self, message_id: str) -> None:
        for future in self._waiters.get(message_id, ()):
            if not future.done():
                future.set_result(None)
