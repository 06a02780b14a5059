"""What the daemon itself asks a person, and what they answer. Nothing of it passes through an assistant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from pacerelled.errors import InvalidArgument, NotPossible, UnknownMessage
from pacerelled.store import approvals, conversations, requests
from pacerelled.store.database import Store, Tx

from . import shapes
from .api import AgentApi
from .model import Reply, Request, Session

_RECENT = 200  # answers of a conversation that are looked through


@dataclass(frozen=True, slots=True)
class Asked:
    """A question that was shown, and to whom."""

    key: str
    agent_id: str
    message_id: str  # of the reply that shows it
    conversation_id: str
    person: str
    device_id: str | None
    spec: dict[str, Any] = field(repr=False)


def decide(asked: Asked, response: Request) -> str | None:
    """`allow` or `deny`; None for an answer that does not count: not from who was asked, not proven, or not in time."""
    ours = response.widget or {}
    trusted = (
        response.encrypted
        and response.authorized
        and not response.group
        and (response.sender, response.device_id) == (asked.person, asked.device_id)
        and ours.get("message_id") == asked.message_id
        and ours.get("late") is False
    )
    said = response.widget_response or {}
    if not trusted:
        return None
    if said.get("cancelled") is True:
        return "deny"
    value = said.get("value")
    if not isinstance(value, dict) or not isinstance(value.get("granted"), bool):
        return None
    if not value["granted"]:
        return "deny"
    return "allow" if value.get("scope", "once") == "once" else None


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

    async def ask_once(self, agent_id: str, key: str, widget: dict[str, Any], *, request: Request) -> Asked:
        """Asks the person, and the device, that a request came from. The answer is for the daemon, and no host's work.

        Nobody takes it up again after a restart: who asks has to wait for the `decision`.
        """
        shown = await self.ask(
            agent_id,
            widget,
            conversation_id=request.conversation_id,
            source_message_id=request.message_id,
            key=key,
        )
        asked = Asked(key, agent_id, shown.message_id, shown.conversation_id, shown.to, shown.device_id, widget["spec"])
        row = approvals.Ask(
            "", key, agent_id, asked.message_id, asked.conversation_id, asked.person, asked.device_id, {},
            widget["expires_at"], "closed",
        )  # fmt: skip
        await self._store.run(lambda tx: approvals.insert(tx, row))
        return asked

    async def decision(self, asked: Asked) -> str | None:
        """`allow` or `deny`, by the first answer that counts; None as long as there is none."""
        found = await self.answers(asked.agent_id, asked.conversation_id, asked.message_id)
        return next(filter(None, (decide(asked, response) for response in found)), None)

    async def close(self, agent_id: str, asked: Asked, status: str) -> None:
        """Tells the phone how it ended."""
        authorization = {**asked.spec["authorization"], "status": status}
        over = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        spec = {"authorization": authorization}
        await self.change(agent_id, asked.message_id, spec=spec, expires_at=over, key=f"{asked.key}-end")

    async def answers(self, agent_id: str, conversation_id: str, message_id: str) -> list[Request]:
        """What came in answer to the widget in a reply, oldest first, whoever wrote it."""
        rows = await self._store.run(
            lambda tx: requests.select(
                tx, agent_id, kind="widget_response", conversation_id=conversation_id, limit=_RECENT
            )
        )
        found = [shapes.request(row) for row in rows]
        return [each for each in found if each.widget is not None and each.widget["message_id"] == message_id]
