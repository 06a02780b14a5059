"""Agents' calls (relay protocol reference)."""

from __future__ import annotations

from aiohttp import web

from . import accounts, keys
from .accounts import Agent
from .fields import Fields
from .frames import dump
from .http import bearer_token, query_token, read_fields, receive_blob, send_blob
from .services import Services
from .sockets import AgentSocket


class AgentHttp:
    """Handlers for `/agent/…` and `/ws/agent`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [
            web.put("/agent/prekey-bundle", self.put_bundle),
            web.post("/agent/one-time-prekeys", self.add_one_time_prekeys),
            web.get("/agent/group-keys", self.group_keys),
            web.post("/agent/blobs", self.add_blob),
            web.get("/agent/blobs/{id}", self.blob),
            web.get("/ws/agent", self.connect),
        ]

    async def put_bundle(self, request: web.Request) -> web.Response:
        agent = await self._agent(request)
        bundle = keys.read_bundle(await read_fields(request))
        services = self._services
        notified = await services.database.run(keys.publish_bundle, agent, bundle, services.limits, services.now())
        services.hub.wake(notified)
        await self._tell_prekeys_changed(agent)
        return web.json_response({"ok": True})

    async def add_one_time_prekeys(self, request: web.Request) -> web.Response:
        agent = await self._agent(request)
        prekeys = keys.read_one_time_prekeys(await read_fields(request))
        count = await self._services.database.run(keys.add_one_time_prekeys, agent, prekeys, self._services.limits)
        await self._tell_prekeys_changed(agent)
        return web.json_response({"ok": True, "count": count})

    async def _tell_prekeys_changed(self, agent: Agent) -> None:
        devices = await self._services.database.run(accounts.device_ids, agent.account_id)
        self._services.hub.tell(devices, dump({"type": "PREKEYS_CHANGED", "agent_id": agent.id}))

    async def group_keys(self, request: web.Request) -> web.Response:
        agent = await self._agent(request)
        conversation_id = Fields(dict(request.query)).identifier("conversation_id")
        return web.json_response(await self._services.database.run(keys.group_keys_for, agent, conversation_id))

    async def add_blob(self, request: web.Request) -> web.Response:
        return await receive_blob(self._services, await self._agent(request), request)

    async def blob(self, request: web.Request) -> web.FileResponse:
        return await send_blob(self._services, await self._agent(request), request)

    async def connect(self, request: web.Request) -> web.WebSocketResponse:
        token = query_token(request)
        agent = await self._services.database.run(accounts.agent_by_token, token)
        return await AgentSocket(self._services, agent, token).serve(request)

    async def _agent(self, request: web.Request) -> Agent:
        return await self._services.database.run(accounts.agent_by_token, bearer_token(request))
