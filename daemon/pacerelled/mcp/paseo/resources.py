"""`paseo://agents` and `paseo://agents/{id}`: how coding agents are, and telling hosts that they changed."""

from __future__ import annotations

from typing import Any, Final

from mcp_types import Resource, ResourceTemplate

from pacerelled.errors import InvalidArgument
from pacerelled.mcp.sizes import MAX_RESULT, some
from pacerelled.paseo.bridge import Bridge
from pacerelled.paseo.guard import Scope

from .texts import NOTICE

AGENTS: Final = "paseo://agents"
TOPIC: Final = "coding"
"""Of the hub: the agent id is a coding agent's."""
MAX_LISTED: Final = 100  # agents that are listed one by one
_MIME = "application/json"
_MOST = 200  # agents that are looked at for the list

TEMPLATE: Final = ResourceTemplate(
    uri_template=f"{AGENTS}/{{id}}",
    name="paseo_agent",
    title="A coding agent",
    description="One coding agent of Paseo on this machine.",
    mime_type=_MIME,
)
_LIST: Final = Resource(
    uri=AGENTS,
    name="paseo_agents",
    title="Coding agents",
    description="The coding agents of Paseo on this machine that are not archived.",
    mime_type=_MIME,
)


class CodingResources:
    """What one session sees of them. Looking which there are costs nothing: it is known here."""

    def __init__(self, bridge: Bridge, scope: Scope) -> None:
        self._bridge = bridge
        self._scope = scope
        self._last = self._ids()

    def listed(self) -> list[Resource]:
        agents = self._bridge.active(self._scope)
        return [_LIST, *(_resource(agent_id, title) for agent_id, title in list(agents.items())[:MAX_LISTED])]

    def owns(self, uri: str) -> bool:
        return uri == AGENTS or (uri.startswith(f"{AGENTS}/") and "/" not in uri.removeprefix(f"{AGENTS}/"))

    async def read(self, uri: str) -> dict[str, Any]:
        """Raises PacerelledError."""
        looks = self._bridge.looks
        if uri == AGENTS:
            agents, more, cursor = await looks.agents(self._scope, limit=_MOST)
            shown = some([agent.as_row() for agent in agents], MAX_RESULT - 1_500)
            more = more or len(shown) < len(agents)
            return {"agents": shown, "has_more": more, "events_cursor": cursor, "notice": NOTICE}
        cursor = await looks.cursor()
        agent_id = uri.removeprefix(f"{AGENTS}/")
        if not agent_id:
            raise InvalidArgument("The URI names no agent", argument="uri", hint=f"{AGENTS}/ID")
        agent = await looks.agent(agent_id, self._scope)
        return {"agent": agent.as_dict(), "events_cursor": cursor, "notice": NOTICE}

    def changed(self, agent_id: str) -> list[str]:
        """The resources that changed with an agent."""
        if not agent_id:
            return [AGENTS]  # the connection
        if agent_id not in self._last and agent_id not in self._ids():
            return []
        return [AGENTS, f"{AGENTS}/{agent_id}"]

    def came_or_went(self) -> bool:
        """Whether other agents are listed than when this was asked before."""
        before, self._last = self._last, self._ids()
        return before != self._last

    def _ids(self) -> frozenset[str]:
        return frozenset(self._bridge.active(self._scope))


def _resource(agent_id: str, title: str | None) -> Resource:
    return Resource(uri=f"{AGENTS}/{agent_id}", name=agent_id, title=title or agent_id, mime_type=_MIME)
