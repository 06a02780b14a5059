"""What became of replies, and what a person or an assistant can do about one: wait, send it again, give it up."""

from __future__ import annotations

import asyncio
from typing import Any

from pacerelled.errors import NotPossible, UnknownMessage
from pacerelled.store import events, replies
from pacerelled.store.database import Store, Tx

from . import shapes
from .model import Reply, Session
from .outbox import UNCERTAIN, Outbox
from .repeats import earlier, identify, remember

AGAIN = ("uncertain", "failed")  # can be sent again
DROPPABLE = ("queued", "uncertain", "failed")
DROPPED = {
    "queued": "dropped before it was sent",
    "tried": "dropped; it may have arrived",
    "failed": "dropped after it had failed",
}


class Sent:
    """The part of `api.AgentApi` that is about replies made before."""

    def __init__(self, agent_id: str, store: Store, outbox: Outbox) -> None:
        self._agent_id = agent_id
        self._store = store
        self._outbox = outbox

    async def replies(self, *, state: str | None = None, limit: int = 50) -> list[Reply]:
        rows = await self._store.run(lambda tx: replies.select(tx, self._agent_id, state=state, limit=limit))
        return [shapes.reply(row) for row in rows]

    async def wait_for_reply(self, message_id: str, *, timeout: float) -> Reply:
        with self._outbox.watch(message_id) as settled:
            found = await self._store.run(lambda tx: self._find(tx, message_id))
            if found.state not in ("queued", "sending"):
                return found
            await asyncio.wait([settled], timeout=timeout)
        return await self._store.run(lambda tx: self._find(tx, message_id))

    async def retry_reply(
        self, message_id: str, *, session: Session | None = None, call_id: str | None = None
    ) -> Reply:
        """Sends an uncertain or failed reply's identical envelope once more, for a repeated call once.

        One that is on its way, or has arrived, stays as it is (`repeated`). Raises NotPossible for a dropped one.
        """

        call = identify(session.id if session else None, call_id, None, "retry", message_id)

        def job(tx: Tx) -> Reply:
            found = self._find(tx, message_id)
            if found.state == "dropped":
                raise NotPossible(f"Reply {message_id} was dropped", hint="Send a new one.")
            if found.state not in AGAIN or earlier(tx, self._agent_id, call):
                return self._find(tx, message_id, repeated=True)
            remember(tx, self._agent_id, call, message_id)
            replies.set_state(tx, [found.seq], "queued", None)
            events.add(tx, self._agent_id, "reply.queued", **replies.ids(tx, found.seq))
            return self._find(tx, message_id)

        reply = await self._store.run(job)
        self._outbox.wake()
        return reply

    async def drop_reply(self, message_id: str) -> Reply:
        """Gives a reply up: it is not sent, or not again. Raises NotPossible for one on its way or submitted."""

        def job(tx: Tx) -> Reply:
            found = self._find(tx, message_id)
            if found.state == "dropped":
                return self._find(tx, message_id, repeated=True)
            if found.state not in DROPPABLE:
                raise NotPossible(
                    f"Reply {message_id} is {found.state}: it cannot be taken back",
                    hint=f"What can be dropped is {', '.join(DROPPABLE)}. See `pacerelle outbox list`.",
                )
            tried = found.attempts and found.state != "failed"
            replies.set_state(tx, [found.seq], "dropped", DROPPED["tried" if tried else found.state])
            events.add(tx, self._agent_id, "reply.dropped", **replies.ids(tx, found.seq))
            return self._find(tx, message_id)

        reply = await self._store.run(job)
        self._outbox.changed(message_id)
        return reply

    def _find(self, tx: Tx, message_id: str, *, repeated: bool = False) -> Reply:
        row = replies.by_message_id(tx, self._agent_id, message_id)
        if row is None:
            raise UnknownMessage(f"There is no reply {message_id}", hint="`pacerelle history` lists them.")
        return shapes.reply(row, repeated=repeated)


def fail_unsent(tx: Tx, agent_id: str, reason: str) -> None:
    """Ends what is queued, when nobody will send it. What was tried before is uncertain again."""
    for seq, _ in replies.in_state(tx, agent_id, "queued"):
        tried = shapes.reply(replies.by_seq(tx, seq)).attempts
        state = "uncertain" if tried else "failed"
        replies.set_state(tx, [seq], state, UNCERTAIN if tried else reason)
        events.add(tx, agent_id, f"reply.{state}", **replies.ids(tx, seq))


def uncertain(row: Any) -> dict[str, Any]:
    """An uncertain reply as status shows it, with what can be done."""
    reply = shapes.reply(row)
    return {
        "message_id": reply.message_id,
        "conversation_id": reply.conversation_id,
        "to": reply.to,
        "kind": reply.kind,
        "created_at": reply.created_at,
        "source_message_id": reply.source_message_id,
        "widget_id": reply.widget_id,
        "reason": reply.reason,
        "attempts": reply.attempts,
        "what_to_do": (
            "Their answer to it settles it. To send it again: send_message with retryMessageId"
            f" {reply.message_id} alone; it is the same message, shown once however often it arrives. To give it up:"
            f" pacerelle outbox drop {reply.message_id}"
        ),
    }
