"""Whom this account can write to: the relay's list, remembered for when the relay is away."""

from __future__ import annotations

from typing import Literal

from . import groups
from .core import Core
from .errors import InvalidArgument, UnknownAgent
from .model import Agent, PairedAgent
from .peers import AgentRow, ConversationRow
from .relay import text_field, text_list


class Roster:
    def __init__(self, core: Core) -> None:
        self._core = core

    async def create_agent(self, name: str) -> PairedAgent:
        """A new agent, in a conversation of this device's making."""
        answer = await self._core.api.create_agent(name)
        paired = PairedAgent(
            agent_id=text_field(answer, "agent_id"),
            agent_token=text_field(answer, "agent_token"),
            conversation_id=text_field(answer, "conversation_id"),
        )
        await self._core.run(self._put_agents, [(paired.agent_id, name, paired.conversation_id)], True)
        return paired

    async def agents(self) -> list[Agent]:
        """The account's agents, as the relay lists them; the phone remembers them."""
        listed = await self._core.api.agents()
        rows = [(text_field(a, "agent_id"), text_field(a, "name"), text_field(a, "conversation_id")) for a in listed]
        connected = {row[0]: a.get("connected") is True for row, a in zip(rows, listed, strict=True)}
        await self._core.run(self._put_agents, rows, False)
        known = await self._core.run(self._core.peers.agents)
        return [_agent(row, connected[row.agent_id]) for row in known if row.agent_id in connected]

    async def known(self) -> list[Agent]:
        """As `agents`, from memory."""
        return [_agent(row, None) for row in await self._core.run(self._core.peers.agents)]

    def _put_agents(self, rows: list[tuple[str, str, str]], made_here: bool) -> None:
        with self._core.store.transaction():
            for agent_id, name, conversation_id in rows:
                self._core.peers.put_agent(agent_id, name, conversation_id, made_here=made_here)

    async def find(self, agent: str) -> Agent:
        """By id or by unique name. Raises UnknownAgent."""
        for look in (self.known, self.agents):
            known = await look()
            found = [a for a in known if a.agent_id == agent] or [a for a in known if a.name == agent]
            if len(found) == 1:
                return found[0]
        raise UnknownAgent(f"There is no one agent {agent!r} in this account.", hint="See `pacerelle chat agents`.")

    async def conversation(self, conversation_id: str) -> ConversationRow:
        """Raises InvalidArgument for one that is not this account's."""
        found = await self._core.run(self._core.peers.conversation, conversation_id)
        if found is None:
            await self._fetch_conversations()
            found = await self._core.run(self._core.peers.conversation, conversation_id)
        if found is None:
            raise InvalidArgument("This account has no such conversation.", argument="conversation_id")
        return found

    async def group(self, conversation_id: str) -> ConversationRow:
        """A group that can be written to from here. Raises InvalidArgument and KeyMissing."""
        found = await self.conversation(conversation_id)
        if not found.is_group:
            raise InvalidArgument("That conversation is not a group.", argument="conversation_id")
        if await self._core.run(self._core.peers.newest_group_key, conversation_id) is None:
            raise groups.missing_key()
        return found

    async def _fetch_conversations(self) -> None:
        listed = await self._core.api.conversations()

        def store() -> None:
            with self._core.store.transaction():
                for c in listed:
                    self._core.peers.put_conversation(
                        text_field(c, "conversation_id"),
                        text_field(c, "kind"),
                        text_field(c, "title") if c.get("title") else "",
                        text_list(c, "agent_ids"),
                        made_here=False,
                    )

        await self._core.run(store)


def _agent(row: AgentRow, connected: bool | None) -> Agent:
    identity: Literal["unknown", "trusted", "changed"] = "trusted" if row.trusted_key else "unknown"
    if row.offered_key:
        identity = "changed"
    return Agent(row.agent_id, row.name, row.conversation_id, identity, connected)
