"""The part of control.sock with which a person sets up webhooks. A secret is only in the answer that made it."""

from __future__ import annotations

from aiohttp import web

from pacerelled.notify.webhooks import MAX_BUNDLE_S, Webhooks, wanted_of

from .answers import answer
from .fields import json_fields, query_fields


class WebhookCalls:
    def __init__(self, webhooks: Webhooks) -> None:
        self._webhooks = webhooks

    def routes(self) -> list[web.RouteDef]:
        one = "/v1/webhooks/{id}"
        return [
            web.get("/v1/webhooks", self._select),
            web.post("/v1/webhooks", self._add),
            web.delete(one, self._remove),
            web.get(f"{one}/deliveries", self._deliveries),
            web.post(f"{one}/test", self._test),
            web.post(f"{one}/pause", self._pause),
            web.post(f"{one}/resume", self._resume),
            web.post(f"{one}/rotate", self._rotate),
        ]

    async def _select(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer({"webhooks": await self._webhooks.select()})

    async def _add(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        url = fields.required_text("url")
        types, agents = fields.texts("types"), fields.texts("agents")
        labels = fields.object("labels")
        needs_attention = fields.flag("needs_attention", default=False)
        bundle_s = fields.seconds("bundle_s", most=MAX_BUNDLE_S)
        fields.done()
        wanted = wanted_of(tuple(types), tuple(agents), labels, needs_attention)
        webhook, secret = await self._webhooks.add(url, wanted, bundle_s=bundle_s)
        return answer({"webhook": webhook, "secret": secret}, status=201)

    async def _remove(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        await self._webhooks.remove(request.match_info["id"])
        return web.Response(status=204)

    async def _deliveries(self, request: web.Request) -> web.Response:
        fields = query_fields(request)
        limit = fields.integer("limit", default=20, least=1, most=100)
        fields.done()
        return answer({"deliveries": await self._webhooks.deliveries(request.match_info["id"], limit)})

    async def _test(self, request: web.Request) -> web.Response:
        (await json_fields(request)).done()
        return answer(await self._webhooks.test(request.match_info["id"]))

    async def _pause(self, request: web.Request) -> web.Response:
        (await json_fields(request)).done()
        return answer({"webhook": await self._webhooks.pause(request.match_info["id"])})

    async def _resume(self, request: web.Request) -> web.Response:
        (await json_fields(request)).done()
        return answer({"webhook": await self._webhooks.resume(request.match_info["id"])})

    async def _rotate(self, request: web.Request) -> web.Response:
        (await json_fields(request)).done()
        webhook, secret = await self._webhooks.rotate(request.match_info["id"])
        return answer({"webhook": webhook, "secret": secret})
