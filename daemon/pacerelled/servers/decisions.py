"""The part of control.sock with which a person decides about devices, about people, and about what is in quarantine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web

from pacerelled.agent.api import AgentApi

from .answers import answer
from .fields import Fields, json_fields, query_fields

_MAX_NUMBER: Final = 2**63 - 1


class DecisionCalls:
    """`agent_of` finds the agent that a call names."""

    def __init__(self, agent_of: Callable[[web.Request], AgentApi]) -> None:
        self._agent = agent_of

    def routes(self, agent: str) -> list[web.RouteDef]:
        """`agent`: the path of an agent."""
        return [
            web.get(f"{agent}/devices", self._devices),
            web.post(f"{agent}/devices/verify", self._verify),
            web.post(f"{agent}/devices/trust", self._trust),
            web.post(f"{agent}/devices/refuse", self._refuse),
            web.post(f"{agent}/devices/block", self._block),
            web.get(f"{agent}/allow", self._allow_list),
            web.put(f"{agent}/allow/{{user_id}}", self._allow),
            web.delete(f"{agent}/allow/{{user_id}}", self._disallow),
            web.delete(f"{agent}/allow", self._allow_everybody),
            web.get(f"{agent}/quarantine", self._quarantine),
            web.get(f"{agent}/quarantine/{{number:[0-9]{{1,18}}}}", self._show),
            web.post(f"{agent}/quarantine/retry", self._retry),
            web.post(f"{agent}/quarantine/drop", self._drop),
        ]

    async def _devices(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer({"devices": await self._agent(request).devices.select()})

    async def _verify(self, request: web.Request) -> web.Response:
        user_id, device_id, code = _key(await json_fields(request))
        return answer(await self._agent(request).devices.verify(user_id, device_id, code))

    async def _trust(self, request: web.Request) -> web.Response:
        user_id, device_id, code = _key(await json_fields(request))
        return answer(await self._agent(request).devices.trust(user_id, device_id, code))

    async def _refuse(self, request: web.Request) -> web.Response:
        user_id, device_id, code = _key(await json_fields(request))
        return answer(await self._agent(request).devices.refuse(user_id, device_id, code))

    async def _block(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        user_id, device_id = fields.required_text("user_id"), fields.text("device_id")
        fields.done()
        return answer(await self._agent(request).devices.block(user_id, device_id))

    async def _allow_list(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer(await self._agent(request).allow_list.show())

    async def _allow(self, request: web.Request) -> web.Response:
        (await json_fields(request)).done()
        return answer(await self._agent(request).allow_list.add(request.match_info["user_id"]))

    async def _disallow(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer(await self._agent(request).allow_list.remove(request.match_info["user_id"]))

    async def _allow_everybody(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer(await self._agent(request).allow_list.off())

    async def _quarantine(self, request: web.Request) -> web.Response:
        fields = query_fields(request)
        reason = fields.text("reason")
        fields.done()
        return answer({"quarantine": await self._agent(request).quarantine.select(reason=reason)})

    async def _show(self, request: web.Request) -> web.Response:
        fields = query_fields(request)
        text = fields.flag("text", default=False)
        fields.done()
        return answer(await self._agent(request).quarantine.show(int(request.match_info["number"]), text=text))

    async def _retry(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        number, reason = fields.optional_integer("id", most=_MAX_NUMBER), fields.text("reason")
        fields.done()
        return answer(await self._agent(request).quarantine.retry(number=number, reason=reason))

    async def _drop(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        number, reason = fields.optional_integer("id", most=_MAX_NUMBER), fields.text("reason")
        sender = fields.text("sender")
        fields.done()
        return answer(await self._agent(request).quarantine.drop(number=number, reason=reason, sender=sender))


def _key(fields: Fields) -> tuple[str, str | None, str]:
    """Which key of which device is meant."""
    found = fields.required_text("user_id"), fields.text("device_id"), fields.required_text("safety_code")
    fields.done()
    return found
