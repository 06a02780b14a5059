"""The part of control.sock about the daemon's log."""

from __future__ import annotations

from aiohttp import web

from pacerelled.config import LOG_LEVELS
from pacerelled.errors import InvalidArgument
from pacerelled.logs.setup import describe, set_level

from .answers import answer
from .fields import json_fields, query_fields


class LogCalls:
    """How much is logged, changed while the daemon runs."""

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/log", self._log), web.put("/v1/log", self._change)]

    async def _log(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer(describe())

    async def _change(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        level = fields.choice("level", of=LOG_LEVELS)
        fields.done()
        if level is None:
            raise InvalidArgument("level is required", argument="level")
        set_level(level)
        return answer(describe())
