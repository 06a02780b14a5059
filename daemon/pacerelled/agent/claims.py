"""Handing requests out: which session gets which, and until when it keeps them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pacerelled.errors import NotPossible, UnknownMessage
from pacerelled.store import claims, events, requests
from pacerelled.store.database import Store, Tx
from pacerelled.store.requests import Taken

from . import shapes
from .holding import Holding
from .model import Connection, Fits, Request, Session, WaitResult
from .sessions import Sessions
from .waiting import Waiting


class Claims:
    """The waiting half of `api.AgentApi`, whose words its methods keep. `connection` tells the link's state."""

    def __init__(
        self,
        agent_id: str,
        store: Store,
        sessions: Sessions,
        holding: Holding,
        *,
        connection: Callable[[], Connection],
        notify: Callable[[str], None],
    ) -> None:
        self._agent_id = agent_id
        self._store = store
        self._sessions = sessions
        self._holding = holding
        self._connection = connection
        self._notify = notify
        self.waiting = Waiting()

    async def wait_for_messages(
        self,
        session: Session,
        *,
        timeout: float,
        conversation_id: str | None = None,
        limit: int = 10,
        after: int | None = None,
        include_claimed: bool = False,
        release: Sequence[str] = (),
        fits: Fits | None = None,
        call_id: str | None = None,
    ) -> WaitResult:
        call_id = call_id or uuid.uuid4().hex  # a request is new in the call that claimed it
        look = _Look(session, conversation_id, limit, after or 0, include_claimed, fits, call_id)
        clock = asyncio.get_running_loop().time
        deadline = clock() + timeout
        session.waiting += 1
        try:
            if release:
                await self._give_back(session, release)
            with self.waiting.queue(session, conversation_id) as waiter:
                while True:
                    taken = await self._take(look, self.waiting.turn(waiter))
                    self.waiting.took(waiter, len(taken.fresh), left=taken.free)
                    if taken.rows:
                        found = tuple(look.shape(row) for row in taken.rows)
                        return WaitResult(found, found[-1].cursor, taken.more, self._connection())
                    with suppress(TimeoutError):
                        async with asyncio.timeout_at(deadline):
                            await waiter.woken.wait()
                    if clock() >= deadline:  # also when it is woken again and again for nothing
                        return WaitResult((), str(after) if after else None, False, self._connection())
        finally:
            session.waiting -= 1
            session.last_active = time.monotonic()

    async def _take(self, look: _Look, share: int | None) -> Taken:
        """Claims what there is. If the caller is cancelled meanwhile, what it claimed goes back."""

        def job(tx: Tx) -> Taken:
            self._sessions.remember(tx, look.session)
            fits = look.fits
            taken = requests.take(
                tx,
                self._agent_id,
                look.session.id,
                conversation_id=look.conversation_id,
                limit=look.limit,
                after=look.after,
                include_claimed=look.include_claimed,
                call_id=look.call_id,
                share=share,
                fits=None if fits is None else lambda row: fits(look.shape(row)),
            )
            for seq in taken.fresh:
                events.add(tx, self._agent_id, "message.claimed", **requests.ids(tx, seq), session=look.session.id)
            return taken

        task = asyncio.ensure_future(self._store.run(job))
        try:
            taken = await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.gather(self._hand_back(task, look), return_exceptions=True))
            raise
        if taken.fresh:
            self._notify("inbox")
        return taken

    async def _hand_back(self, task: asyncio.Future[Taken], look: _Look) -> None:
        """Undoes what a cancelled call claimed; nobody has seen it."""
        fresh = (await task).fresh

        def job(tx: Tx) -> None:
            for seq in requests.hand_back(tx, fresh, look.session.id, look.call_id):
                events.add(tx, self._agent_id, "claim.released", **requests.ids(tx, seq))

        if fresh:
            await self._store.run(job)
            self.waiting.wake_all()

    async def _give_back(self, session: Session, message_ids: Sequence[str]) -> None:
        """What the session does not hold (any more) it may give back as well. Raises UnknownMessage; then none is."""

        def job(tx: Tx) -> None:
            for message_id in message_ids:
                request = self._find(tx, message_id)
                if request.processed_at is None and claims.give_back(tx, request.seq, session.id):
                    events.add(
                        tx, self._agent_id, "claim.released", **requests.ids(tx, request.seq), session=session.id
                    )

        await self._store.run(job)
        self.released()

    async def release(self, message_id: str) -> Request:
        def job(tx: Tx) -> Any:
            request = self._find(tx, message_id)
            if request.processed_at is not None:
                raise NotPossible(f"Request {message_id} is processed", hint="There is nothing to release.")
            if claims.release(tx, request.seq):
                events.add(tx, self._agent_id, "claim.released", **requests.ids(tx, request.seq))
            return requests.by_seq(tx, request.seq)

        row = await self._store.run(job)
        self.released()
        return shapes.request(row)

    def released(self) -> None:
        """Claims ended: whoever waits may find something."""
        self.waiting.wake_all()
        self._notify("inbox")

    async def mark_processed(
        self, session: Session, message_id: str, *, note: str | None = None, take_over: bool = False
    ) -> Request:
        def job(tx: Tx) -> Any:
            found = self._find(tx, message_id)
            if found.processed_at is None:
                self._holding.admit(tx, session, message_id, take_over=take_over)
                requests.mark_processed(tx, found.seq, note)
                events.add(tx, self._agent_id, "message.processed", **requests.ids(tx, found.seq))
            return requests.by_seq(tx, found.seq)

        row = await self._store.run(job)
        self._notify("inbox")
        self._notify("widget")
        return shapes.request(row, session.id)

    def _find(self, tx: Tx, message_id: str) -> Request:
        row = requests.by_message_id(tx, self._agent_id, message_id)
        if row is None:
            raise unknown_request(message_id)
        return shapes.request(row)


@dataclass(frozen=True, slots=True)
class _Look:
    """What a call of `wait_for_messages` wants to see."""

    session: Session
    conversation_id: str | None
    limit: int
    after: int
    include_claimed: bool
    fits: Fits | None
    call_id: str

    def shape(self, row: Any) -> Request:
        return shapes.request(row, self.session.id, self.call_id)


def unknown_request(message_id: str) -> UnknownMessage:
    return UnknownMessage(
        f"There is no request {message_id} in this agent's inbox",
        hint="Use a message_id as wait_for_messages or get_history gave it.",
    )
