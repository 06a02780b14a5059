"""Looking back, in pages: requests and replies, the inbox as it stands, checkpoints, one message. Claims nothing."""

from __future__ import annotations

import re
from typing import Any

from pacerelled.errors import InvalidArgument, UnknownMessage
from pacerelled.store import checkpoints, newest, replies, requests
from pacerelled.store.database import Store, Tx

from . import shapes
from .model import Checkpoint, CheckpointPage, Fits, HistoryPage, Reply, Request, Session

_CURSOR = re.compile(r"([0-9]{0,18})\.([0-9]{0,18})")  # of the oldest request and reply that were shown


class History:
    """The part of `api.AgentApi` that only reads, whose words its methods keep."""

    def __init__(self, agent_id: str, store: Store) -> None:
        self._agent_id = agent_id
        self._store = store

    async def history(
        self,
        *,
        session: Session | None = None,
        conversation_id: str | None = None,
        limit: int = 50,
        before: str | None = None,
        fits: Fits | None = None,
    ) -> HistoryPage:
        older = _parse(before)

        def seqs(tx: Tx, table: Any, oldest: int | None) -> list[int]:
            return newest.seqs(
                tx, table, self._agent_id, conversation_id=conversation_id, before=oldest, limit=limit + 1
            )

        def job(tx: Tx) -> HistoryPage:
            received, sent = seqs(tx, "requests", older[0]), seqs(tx, "replies", older[1])
            session_id = session.id if session is not None else None
            heads = _Heads(tx, received[:limit], sent[:limit], session_id)
            shown_requests: list[Request] = []
            shown_replies: list[Reply] = []
            while (head := heads.newest) is not None and (fits is None or fits(head)):
                heads.drop()
                if isinstance(head, Request):
                    shown_requests.insert(0, head)
                else:
                    shown_replies.insert(0, head)
            cursor = None
            if len(shown_requests) < len(received) or len(shown_replies) < len(sent):
                places = (
                    shown_requests[0].seq if shown_requests else older[0],
                    shown_replies[0].seq if shown_replies else older[1],
                )
                cursor = ".".join("" if place is None else str(place) for place in places)
            return HistoryPage(tuple(shown_requests), tuple(shown_replies), cursor)

        return await self._store.run(job)

    async def pending(
        self, *, session: Session | None = None, limit: int = 50, fits: Fits | None = None
    ) -> tuple[list[Request], bool]:
        def job(tx: Tx) -> tuple[list[Request], bool]:
            seqs = requests.pending_seqs(tx, self._agent_id, limit + 1)
            shown: list[Request] = []
            for seq in seqs[:limit]:
                request = shapes.request(requests.by_seq(tx, seq), session.id if session is not None else None)
                if fits is not None and not fits(request):
                    break
                shown.append(request)
            return shown, len(shown) < len(seqs)

        return await self._store.run(job)

    async def message(self, message_id: str, *, session: Session | None = None) -> Request | Reply:
        def job(tx: Tx) -> Request | Reply:
            if (row := requests.by_message_id(tx, self._agent_id, message_id)) is not None:
                return shapes.request(row, session.id if session is not None else None)
            if (row := replies.by_message_id(tx, self._agent_id, message_id)) is not None:
                return shapes.reply(row)
            raise UnknownMessage(
                f"There is no request or reply {message_id}",
                hint="Use a message_id as wait_for_messages or get_history gave it.",
            )

        return await self._store.run(job)

    async def checkpoints(
        self,
        *,
        conversation_id: str | None = None,
        include_completed: bool = False,
        limit: int = 50,
        after: int | None = None,
        fits: Fits | None = None,
    ) -> CheckpointPage:
        rows = await self._store.run(
            lambda tx: checkpoints.select(
                tx,
                self._agent_id,
                conversation_id=conversation_id,
                include_completed=include_completed,
                after=after or 0,
                limit=limit + 1,
            )
        )
        shown: list[Checkpoint] = []
        for checkpoint in map(shapes.checkpoint, rows[:limit]):
            if fits is not None and not fits(checkpoint):
                break
            shown.append(checkpoint)
        cursor = str(shown[-1].seq) if shown else None if after is None else str(after)
        return CheckpointPage(tuple(shown), cursor, len(shown) < len(rows))


class _Heads:
    """The newest of two lists of rows that are read one by one.

    The clock only mixes the two, so a jump of it puts nothing out of order within either.
    """

    def __init__(self, tx: Tx, received: list[int], sent: list[int], session_id: str | None) -> None:
        self._requests = (shapes.request(requests.by_seq(tx, seq), session_id) for seq in received)
        self._replies = (shapes.reply(replies.by_seq(tx, seq)) for seq in sent)
        self._request = next(self._requests, None)
        self._reply = next(self._replies, None)

    @property
    def newest(self) -> Request | Reply | None:
        if self._request is None or self._reply is None:
            return self._request or self._reply
        return self._reply if self._reply.created_at >= self._request.received_at else self._request

    def drop(self) -> None:
        if self.newest is self._request:
            self._request = next(self._requests, None)
        else:
            self._reply = next(self._replies, None)


def _parse(cursor: str | None) -> tuple[int | None, int | None]:
    if cursor is None:
        return None, None
    found = _CURSOR.fullmatch(cursor)
    if found is None:
        raise InvalidArgument(
            "before is not a cursor that an earlier result gave",
            argument="before",
            hint="Leave before out to see the newest.",
        )
    received, sent = (int(place) if place else None for place in found.groups())
    return received, sent
