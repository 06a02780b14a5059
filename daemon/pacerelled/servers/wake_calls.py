"""The part of control.sock with which a person sets what wakes an assistant."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from pacerelled.agent.api import AgentApi
from pacerelled.notify.wake import Limits, Wake

from .answers import answer
from .fields import json_fields, query_fields

_MAX_WAIT = 3600.0  # seconds that a test may be waited for
_WEEK = 7 * 86_400.0


class WakeCalls:
    """`agent` finds the agent that a request names; it raises UnknownAgent, NoAgent."""

    def __init__(self, wake: Wake, agent: Callable[[str | None], AgentApi]) -> None:
        self._wake = wake
        self._find = agent

    def routes(self) -> list[web.RouteDef]:
        one = "/v1/agents/{id}/wake"
        return [
            web.get(one, self._show),
            web.put(one, self._set),
            web.delete(one, self._remove),
            web.post(f"{one}/on", self._on),
            web.post(f"{one}/off", self._off),
            web.post(f"{one}/test", self._test),
            web.get(f"{one}/runs", self._runs),
            web.get(f"{one}/runs/{{run}}", self._run),
        ]

    def _agent(self, request: web.Request) -> str:
        return self._find(request.match_info["id"]).agent_id

    async def _show(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer({"wake": await self._wake.show(self._agent(request))})

    async def _set(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        argv = fields.texts("command")
        cwd, path = fields.text("cwd"), fields.text("path")
        usual = Limits()
        limits = Limits(
            fields.seconds("after_s", most=_WEEK, default=usual.after_s),
            fields.seconds("max_s", most=_WEEK, default=usual.max_s),
            fields.seconds("cooldown_s", most=_WEEK, default=usual.cooldown_s),
            fields.integer("per_day", default=usual.per_day, least=1, most=10_000),
        )
        fields.done()
        return answer({"wake": await self._wake.set(self._agent(request), argv, limits, cwd=cwd, path=path)})

    async def _remove(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        await self._wake.remove(self._agent(request))
        return web.Response(status=204)

    async def _on(self, request: web.Request) -> web.Response:
        (await json_fields(request)).done()
        return answer({"wake": await self._wake.turn(self._agent(request), on=True)})

    async def _off(self, request: web.Request) -> web.Response:
        (await json_fields(request)).done()
        return answer({"wake": await self._wake.turn(self._agent(request), on=False)})

    async def _test(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        wait = fields.seconds("wait_s", most=_MAX_WAIT)
        fields.done()
        return answer({"run": await self._wake.test(self._agent(request), wait=wait)})

    async def _runs(self, request: web.Request) -> web.Response:
        fields = query_fields(request)
        limit = fields.integer("limit", default=20, least=1, most=500)
        fields.done()
        return answer({"runs": await self._wake.runs(self._agent(request), limit)})

    async def _run(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer({"run": await self._wake.run(self._agent(request), request.match_info["run"])})
