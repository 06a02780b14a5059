"""Handing requests out: which session gets which, and until when it keeps them."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from typing import Any

from pacerelled.errors import NotPossible, UnknownMessage
from pacerelled.store import events, requests
from pacerelled.store.database import Store, Tx

from . import shapes
from .model import Connection, Request, Session, WaitResult
from .sessions import Sessions
from .waiting import Waiting

Taken = tuple[list[Any], list[int], bool]  # rows, seqs claimed just now, whether there are more


class Claims:
    """The waiting half of `api.AgentApi`, whose words its methods keep. `connection` tells the link's state."""

    def __init__(
        self,
        agent_id: str,
        store: Store,
        sessions: Sessions,
        *,
        connection: Callable[[], Connection],
        notify: Callable[[str], None],
    ) -> None:
        self._agent_id = agent_id
        self._store = store
        self._sessions = sessions
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
        call_id: str | None = None,
    ) -> WaitResult:
        call_id = call_id or uuid.uuid4().hex  # a request is new in the call that claimed it
        deadline = asyncio.get_running_loop().time() + timeout
        session.waiting += 1
        try:
            with self.waiting.queue(conversation_id) as waiter:
                while True:
                    waiter.woken.clear()
                    found = await self._take(session, conversation_id, limit, after or 0, include_claimed, call_id)
                    if found.messages:
                        return found
                    try:
                        async with asyncio.timeout_at(deadline):
                            await waiter.woken.wait()
                    except TimeoutError:
                        return WaitResult((), str(after) if after else None, False, self._connection())
        finally:
            session.waiting -= 1
            session.last_active = time.monotonic()

    async def _take(
        self,
        session: Session,
        conversation_id: str | None,
        limit: int,
        after: int,
        include_claimed: bool,
        call_id: str | None,
    ) -> WaitResult:
        """Claims what there is. If the caller is cancelled meanwhile, what it claimed goes back."""

        def job(tx: Tx) -> Taken:
            self._sessions.remember(tx, session)
            rows, fresh, more = requests.take(
                tx,
                self._agent_id,
                session.id,
                conversation_id=conversation_id,
                limit=limit,
                after=after,
                include_claimed=include_claimed,
                call_id=call_id,
            )
            for seq in fresh:
                events.add(tx, self._agent_id, "request.claimed", seq=seq, session=session.id)
            return rows, fresh, more

        task = asyncio.ensure_future(self._store.run(job))
        try:
            rows, _, more = await asyncio.shield(task)
        except asyncio.CancelledError:
            await asyncio.shield(asyncio.gather(self._hand_back(task), return_exceptions=True))
            raise
        found = tuple(shapes.request(row, session.id, call_id) for row in rows)
        return WaitResult(found, found[-1].cursor if found else None, more, self._connection())

    async def _hand_back(self, task: asyncio.Future[Taken]) -> None:
        """Undoes what a cancelled call claimed; nobody has seen it."""
        _, fresh, _ = await task

        def job(tx: Tx) -> None:
            requests.hand_back(tx, fresh)
            for seq in fresh:
                events.add(tx, self._agent_id, "request.released", seq=seq)

        if fresh:
            await self._store.run(job)
            self.waiting.wake_all()

    async def mark_processed(self, session: Session, message_id: str, *, note: str | None = None) -> Request:
        def job(tx: Tx) -> Any:
            row = requests.by_message_id(tx, self._agent_id, message_id)
            if row is None:
                raise unknown_request(message_id)
            found = shapes.request(row, session.id)
            if found.processed_at is not None:
                return row
            holder = found.claim
            if holder and not holder.mine and session.transport != "control" and self._held(holder.session):
                raise NotPossible(
                    f"Request {message_id} is being worked on by {holder.label}",
                    hint="Leave it to that session, or ask the user. It comes back by itself when that session ends.",
                )
            requests.mark_processed(tx, found.seq, note)
            events.add(tx, self._agent_id, "request.processed", seq=found.seq, message_id=message_id)
            return requests.by_message_id(tx, self._agent_id, message_id)

        row = await self._store.run(job)
        self._notify("inbox")
        self._notify("widget")
        return shapes.request(row, session.id)

    def _held(self, session_id: str) -> bool:
        found = self._sessions.get(session_id)
        return found is not None and found.connected


def unknown_request(message_id: str) -> UnknownMessage:
    return UnknownMessage(
        f"There is no request {message_id} in this agent's inbox",
        hint="Use a message_id as wait_for_messages or get_history gave it.",
    )
