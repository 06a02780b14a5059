"""The part of control.sock that shows the Paseo bridge and the agents behind it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Final

from aiohttp import web

from pacerelled.agent.api import HubApi
from pacerelled.errors import NotPossible

from .answers import answer
from .fields import json_fields, query_fields

if TYPE_CHECKING:
    from pacerelled.paseo.bridge import Bridge

_MAX_AGENTS: Final = 500
_MAX_ENTRIES: Final = 500
_PAGE: Final = 1_000_000  # bytes of a timeline


class PaseoCalls:
    def __init__(self, hub: HubApi) -> None:
        self._hub = hub

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/paseo", self._status),
            web.post("/v1/paseo/test", self._test),
            web.get("/v1/paseo/agents", self._agents),
            web.get("/v1/paseo/agents/{agent_id}/timeline", self._timeline),
            web.get("/v1/paseo/approvals", self._approvals),
            web.put("/v1/paseo/approvals/{conversation_id}", self._choose),
            web.delete("/v1/paseo/approvals/{conversation_id}", self._leave),
        ]

    async def _status(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        bridge = self._hub.paseo
        return answer(bridge.status() if bridge is not None else {"on": False})

    async def _test(self, request: web.Request) -> web.Response:
        from pacerelled.mcp.paseo.schemas import LOOKING, TOOLS

        (await json_fields(request)).done()
        bridge = self._bridge()
        tools = LOOKING if bridge.settings.read_only else tuple(TOOLS)
        return answer({**await bridge.test(), "tools": list(tools)})

    async def _agents(self, request: web.Request) -> web.Response:
        from pacerelled.paseo.guard import Scope

        fields = query_fields(request)
        status = fields.text("status")
        label = fields.text("label")
        archived = fields.flag("archived", default=False)
        limit = fields.integer("limit", default=100, least=1, most=_MAX_AGENTS)
        fields.done()
        bridge = self._bridge()
        name, _, value = (label or "").partition("=")
        agents, more, cursor = await bridge.looks.agents(
            Scope(),
            statuses=[status] if status else (),
            labels={name: value} if label else None,
            include_archived=archived,
            limit=limit,
        )
        return answer({"agents": [a.as_dict() for a in agents], "has_more": more, "events_cursor": cursor})

    async def _timeline(self, request: web.Request) -> web.Response:
        from pacerelled.paseo.guard import Scope

        fields = query_fields(request)
        limit = fields.integer("limit", default=50, least=1, most=_MAX_ENTRIES)
        cursor = fields.text("cursor")
        thinking = fields.flag("thinking", default=False)
        fields.done()
        page = await self._bridge().looks.timeline(
            request.match_info["agent_id"], Scope(), limit=limit, max_bytes=_PAGE, before=cursor, thinking=thinking
        )
        return answer(
            {
                "agent": page.agent.as_dict(),
                "entries": [entry.as_dict() for entry in page.entries],
                "older_cursor": page.older,
                "reset": page.reset,
            }
        )

    async def _approvals(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        chosen = await self._bridge().approvals.chosen()
        return answer({"conversations": [asdict(each) for each in chosen]})

    async def _choose(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        agent_id, every_agent = fields.text("agent_id"), fields.flag("every_agent", default=False)
        fields.done()
        conversation_id = request.match_info["conversation_id"]
        chosen = await self._bridge().approvals.choose(agent_id, conversation_id, every_agent=every_agent)
        return answer(asdict(chosen))

    async def _leave(self, request: web.Request) -> web.Response:
        fields = query_fields(request)
        agent_id = fields.text("agent_id")
        fields.done()
        left = await self._bridge().approvals.leave(agent_id, request.match_info["conversation_id"])
        return answer({"left": left})

    def _bridge(self) -> Bridge:
        if self._hub.paseo is None:
            raise NotPossible(
                "The Paseo bridge is off",
                hint="Add a table [paseo] to config.toml (`pacerelle paths` shows where it is), then `pacerelle stop`.",
                code="paseo_off",
            )
        return self._hub.paseo
