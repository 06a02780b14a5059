"""The part of control.sock with which the daemon is asked how it is, thoroughly: for `pacerelle doctor`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from aiohttp import web

from pacerelled.checkup.finding import Finding

from .answers import answer
from .fields import query_fields

Checkup = Callable[[], Awaitable[Sequence[Finding]]]


class CheckupCalls:
    """`checkup` does it, at each call."""

    def __init__(self, checkup: Checkup) -> None:
        self._checkup = checkup

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/checkup", self._examine)]

    async def _examine(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer({"findings": [finding.as_dict() for finding in await self._checkup()]})
