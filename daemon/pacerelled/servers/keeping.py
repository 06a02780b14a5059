"""The part of control.sock about what outlives the daemon: keys and tokens, backups, and everything read out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, cast

from aiohttp import web

from pacerelled.agent.api import AgentApi, HubApi

from .answers import answer
from .fields import json_fields, query_fields

_MAX_ROWS: Final = 500
_MAX_SEQ: Final = 2**63 - 1


class KeepingCalls:
    """`agent_of` finds the agent that a call names."""

    def __init__(self, hub: HubApi, agent_of: Callable[[web.Request], AgentApi]) -> None:
        self._hub = hub
        self._agent = agent_of

    def routes(self, agent: str) -> list[web.RouteDef]:
        """`agent`: the path of an agent."""
        return [
            web.get("/v1/keys", self._keys),
            web.delete(f"{agent}/token", self._log_out),
            web.post("/v1/backup", self._backup),
            web.get(f"{agent}/messages", self._messages),
        ]

    async def _keys(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer(await self._hub.keys.describe())

    async def _log_out(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer(await self._hub.keys.forget(self._agent(request).agent_id))

    async def _backup(self, request: web.Request) -> web.StreamResponse:
        fields = await json_fields(request)
        passphrase = fields.required_text("passphrase")
        fields.done()
        async with self._hub.backup(passphrase) as backup:
            response = web.StreamResponse(
                headers={"Content-Type": "application/octet-stream", "Content-Length": str(backup.size)}
            )
            await response.prepare(request)
            async for piece in backup.pieces:
                await response.write(piece)
            await response.write_eof()
            return response

    async def _messages(self, request: web.Request) -> web.Response:
        fields = query_fields(request)
        kind = cast(Literal["requests", "replies"], fields.choice("kind", of=("requests", "replies")) or "requests")
        after = fields.integer("after", default=0, most=_MAX_SEQ)
        conversation_id, since = fields.text("conversation_id"), fields.text("since")
        limit = fields.integer("limit", default=100, least=1, most=_MAX_ROWS)
        fields.done()
        page = self._agent(request).export.page
        return answer(await page(kind, after=after, conversation_id=conversation_id, since=since, limit=limit))
