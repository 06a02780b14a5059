"""The part of control.sock with which a person lets hosts in over HTTP."""

from __future__ import annotations

from typing import cast

from aiohttp import web

from pacerelled.agent.access import SCOPES, Scope
from pacerelled.agent.api import HubApi
from pacerelled.errors import InvalidArgument

from .answers import answer
from .fields import json_fields, query_fields


class TokenCalls:
    """Access tokens: made, listed, revoked. A token itself is only in the answer to the call that makes it."""

    def __init__(self, hub: HubApi) -> None:
        self._hub = hub

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/v1/tokens", self._tokens),
            web.post("/v1/tokens", self._create),
            web.delete("/v1/tokens/{name}", self._revoke),
        ]

    async def _tokens(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer({"tokens": [token.as_dict() for token in self._hub.access.select()]})

    async def _create(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        label = fields.required_text("label")
        scope = cast(Scope, fields.choice("scope", of=SCOPES) or "full")
        agents = fields.texts("agents")
        labels = fields.object("labels") or {}
        fields.done()
        if not all(isinstance(value, str) for value in labels.values()):
            raise InvalidArgument("labels must have texts as values", argument="labels")
        token, secret = await self._hub.access.create(label, scope, agents, labels)
        return answer({"token": token.as_dict(), "secret": secret}, status=201)

    async def _revoke(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer({"token": (await self._hub.access.revoke(request.match_info["name"])).as_dict()})
