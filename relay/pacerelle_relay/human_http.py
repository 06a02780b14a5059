"""People's calls (docs/relay.md)."""

from __future__ import annotations

import hmac

from aiohttp import web

from . import accounts, agents, conversations, keys, mail
from .accounts import Device
from .errors import Forbidden, Malformed, NotFound
from .frames import read_message
from .http import bearer_token, query_token, read_fields, receive_blob, send_blob
from .services import Services
from .sockets import DeviceSocket

BASE = "/human/v1"
MAX_GROUP_AGENTS = 100


class HumanHttp:
    """Handlers for `/human/v1/…`."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post(f"{BASE}/accounts", self.create_account),
            web.post(f"{BASE}/devices/codes", self.create_link_code),
            web.post(f"{BASE}/devices/link", self.link_device),
            web.get(f"{BASE}/devices", self.list_devices),
            web.put(f"{BASE}/devices/self/identity", self.put_identity),
            web.delete(f"{BASE}/devices/{{id}}", self.remove_device),
            web.post(f"{BASE}/agents", self.create_agent),
            web.get(f"{BASE}/agents", self.list_agents),
            web.post(f"{BASE}/agents/{{id}}/token", self.replace_agent_token),
            web.delete(f"{BASE}/agents/{{id}}", self.remove_agent),
            web.get(f"{BASE}/agents/{{id}}/prekey-bundle", self.take_bundle),
            web.post(f"{BASE}/conversations", self.create_conversation),
            web.get(f"{BASE}/conversations", self.list_conversations),
            web.post(f"{BASE}/messages", self.send),
            web.post(f"{BASE}/group-keys", self.store_group_keys),
            web.post(f"{BASE}/blobs", self.add_blob),
            web.get(f"{BASE}/blobs/{{id}}", self.blob),
            web.get(f"{BASE}/ws", self.connect),
        ]

    # Accounts and devices

    async def create_account(self, request: web.Request) -> web.Response:
        services = self._services
        services.check_open_call()
        fields = await read_fields(request)
        if services.invite is not None:
            invite = fields.optional(fields.text, "invite") or ""
            expected = services.invite.encode()
            if not hmac.compare_digest(invite.encode("utf-8", "surrogatepass"), expected):
                services.count_open_failure()
                raise Forbidden("this relay is by invitation: the invite code is missing or wrong", code="invite")
        created = await services.database.run(
            accounts.create_account,
            fields.name("name"),
            fields.optional(fields.name, "device_name"),
            services.now(),
        )
        return web.json_response(created, status=201)

    async def create_link_code(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        code = await self._services.database.run(
            accounts.create_link_code, device, self._services.limits, self._services.now()
        )
        return web.json_response(code, status=201)

    async def link_device(self, request: web.Request) -> web.Response:
        services = self._services
        services.check_open_call()
        fields = await read_fields(request)
        try:
            linked = await services.database.run(
                accounts.link_device,
                fields.text("link_code"),
                fields.optional(fields.name, "device_name"),
                services.limits,
                services.now(),
            )
        except NotFound:
            services.count_open_failure()
            raise
        return web.json_response(linked, status=201)

    async def list_devices(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        return web.json_response(await self._services.database.run(accounts.list_devices, device))

    async def put_identity(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        identity_key = keys.read_identity_key(await read_fields(request))
        services = self._services
        changed, notified = await services.database.run(
            keys.set_device_identity, device, identity_key, services.limits, services.now()
        )
        services.hub.wake(notified)
        return web.json_response({"changed": changed})

    async def remove_device(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        device_id = request.match_info["id"]
        await self._services.database.run(accounts.remove_device, device, device_id)
        self._services.hub.revoke(device_id)
        return web.Response(status=204)

    # Agents

    async def create_agent(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        fields = await read_fields(request)
        created = await self._services.database.run(
            agents.create, device, fields.name("name"), self._services.limits, self._services.now()
        )
        return web.json_response(created, status=201)

    async def list_agents(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        found = await self._services.database.run(agents.list_of, device)
        connected = self._services.hub.is_connected
        return web.json_response({"agents": [{**a, "connected": connected(a["agent_id"])} for a in found]})

    async def replace_agent_token(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        agent_id = request.match_info["id"]
        answer = await self._services.database.run(agents.replace_token, device, agent_id)
        self._services.hub.revoke(agent_id)
        return web.json_response(answer)

    async def remove_agent(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        agent_id = request.match_info["id"]
        await self._services.database.run(agents.remove, device, agent_id)
        self._services.hub.revoke(agent_id)
        return web.Response(status=204)

    async def take_bundle(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        bundle = await self._services.database.run(keys.take_bundle, device, request.match_info["id"])
        return web.json_response(bundle, headers={"Cache-Control": "no-store"})

    # Conversations and messages

    async def create_conversation(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        fields = await read_fields(request)
        kind = fields.one_of("kind", "direct", "group")
        agent_ids = fields.identifiers("agent_ids", high=MAX_GROUP_AGENTS)
        if kind == "direct" and len(agent_ids) != 1:
            raise Malformed("a direct conversation has exactly one agent")
        created = await self._services.database.run(
            conversations.create,
            device,
            kind,
            agent_ids,
            fields.optional(fields.name, "title"),
            self._services.limits,
            self._services.now(),
        )
        return web.json_response(created, status=201)

    async def list_conversations(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        return web.json_response(await self._services.database.run(conversations.list_of, device))

    async def send(self, request: web.Request) -> web.Response:
        services = self._services
        device = await self._device(request)
        services.count_send(device.account_id)
        fields = await read_fields(request)
        message = read_message(fields)
        if message.to_device_id is not None:
            raise Malformed("to_device_id is for agents' messages")
        accepted = await services.database.run(
            mail.send_from_device,
            device,
            message,
            fields.optional(fields.flag, "device_less") or False,
            services.limits,
            services.now(),
        )
        services.hub.wake(accepted.mailboxes)
        return web.json_response({"id": message.id, "duplicate": accepted.duplicate}, status=202)

    async def store_group_keys(self, request: web.Request) -> web.Response:
        device = await self._device(request)
        fields = await read_fields(request)
        stored = await self._services.database.run(
            keys.store_group_keys,
            device,
            fields.identifier("conversation_id"),
            keys.read_envelopes(fields),
            self._services.limits,
        )
        return web.json_response({"stored": stored}, status=201)

    async def add_blob(self, request: web.Request) -> web.Response:
        return await receive_blob(self._services, await self._device(request), request)

    async def blob(self, request: web.Request) -> web.FileResponse:
        return await send_blob(self._services, await self._device(request), request)

    async def connect(self, request: web.Request) -> web.WebSocketResponse:
        token = query_token(request) if "token" in request.query else bearer_token(request)
        device = await self._services.database.run(accounts.device_by_token, token)
        return await DeviceSocket(self._services, device, token).serve(request)

    async def _device(self, request: web.Request) -> Device:
        return await self._services.database.run(accounts.device_by_token, bearer_token(request))
