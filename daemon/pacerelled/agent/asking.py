"""What the daemon itself asks a person, and what they answer. Nothing of it passes through an assistant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pacerelled.errors import InvalidArgument, NotPossible, UnknownMessage
from pacerelled.store import conversations, requests
from pacerelled.store.database import Store, Tx

from . import shapes
from .api import AgentApi
from .model import Reply, Request, Session

_RECENT = 200  # answers of a conversation that are looked through


class Asking:
    """`agent_of` raises UnknownAgent and NoAgent."""

    def __init__(self, store: Store, agent_of: Callable[[str | None], AgentApi]) -> None:
        self._store = store
        self._agent_of = agent_of
        self._session = Session(id="asking", transport="control")

    async def private_conversation(self, agent_id: str | None, conversation_id: str) -> str:
        """The id of the agent, if this is its conversation with one person, whose device is proven.

        In a group any member could have written an answer. Raises AgentError, StoreError.
        """
        agent = self._agent_of(agent_id)
        known = await self._store.run(lambda tx: conversations.conversation(tx, agent.agent_id, conversation_id))
        if known is None:
            raise InvalidArgument(
                f"Nobody has written in conversation {conversation_id[:64]!a} yet",
                argument="conversation_id",
                hint="`pacerelle inbox --all --json` shows the conversation_id of each request.",
            )
        if known.is_group:
            raise NotPossible(
                "This is a group, where an answer proves no person and no device",
                hint="Choose a conversation with one person.",
            )
        return agent.agent_id

    async def conversation_of(self, agent_id: str, message_id: str) -> str:
        """Where a request came from. Raises UnknownMessage, StoreError."""

        def look(tx: Tx) -> Any:
            return requests.by_message_id(tx, agent_id, message_id)

        row = await self._store.run(look)
        if row is None:
            raise UnknownMessage(
                f"There is no request {message_id[:64]!a} in this agent's inbox",
                hint="Use a message_id as wait_for_messages gave it.",
            )
        return shapes.request(row).conversation_id

    async def ask(
        self, agent_id: str, widget: dict[str, Any], *, conversation_id: str, source_message_id: str | None, key: str
    ) -> Reply:
        """Shows a widget: to the device that the request came from, else to the last one. Made once for a key."""
        return await self._agent_of(agent_id).send_widget(
            self._session,
            widget=widget,
            source_message_id=source_message_id,
            conversation_id=conversation_id,
            idempotency_key=key,
        )

    async def change(
        self, agent_id: str, message_id: str, *, spec: dict[str, Any], expires_at: str | None, key: str
    ) -> None:
        """Changes a widget that was shown. Made once for a key."""
        await self._agent_of(agent_id).update_widget(
            self._session, message_id=message_id, spec=spec, expires_at=expires_at, idempotency_key=key
        )

    async def answers(self, agent_id: str, conversation_id: str, message_id: str) -> list[Request]:
        """What came in answer to the widget in a reply, oldest first, whoever wrote it."""
        rows = await self._store.run(
            lambda tx: requests.select(
                tx, agent_id, kind="widget_response", conversation_id=conversation_id, limit=_RECENT
            )
        )
        found = [shapes.request(row) for row in rows]
        return [each for each in found if each.widget is not None and each.widget["message_id"] == message_id]
