"""`GET /v1/events`: the log of events, at once, by long poll, or as server-sent events (WHATWG HTML, 9.2)."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from aiohttp import web

from pacerelled.agent.event_log import EventLog
from pacerelled.agent.wanted import Wanted

from .answers import answer
from .fields import query_fields

_MAX_POLL = 30.0  # seconds that a call may wait
_MAX_EVENTS = 500  # in one answer
_KEEPALIVE = 15.0  # seconds between signs of life in a stream
_MAX_CURSOR = 100  # characters


class UnlessStopping(Protocol):
    """What the server's other waiting calls use as well: None when the server stops first."""

    def __call__[T](self, waiting: Coroutine[Any, Any, T]) -> Awaitable[T | None]: ...


class EventCalls:
    """`log` says where the events are, at each call."""

    def __init__(self, log: Callable[[], EventLog], unless_stopping: UnlessStopping) -> None:
        self._log = log
        self._unless_stopping = unless_stopping

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/v1/events", self._events)]

    async def _events(self, request: web.Request) -> web.StreamResponse:
        fields = query_fields(request)
        cursor = fields.text("cursor", most=_MAX_CURSOR)
        last = fields.optional_integer("last", least=1, most=_MAX_EVENTS)
        wait = fields.seconds("wait_s", most=_MAX_POLL)
        limit = fields.integer("limit", default=100, least=1, most=_MAX_EVENTS)
        wanted = Wanted(
            types=fields.names("type"),
            agents=fields.names("agent"),
            conversations=fields.names("conversation"),
            needs_attention=fields.flag("needs_attention", default=False),
        )
        fields.done()
        if "text/event-stream" in request.headers.get("Accept", ""):
            return await self._stream(request, request.headers.get("Last-Event-ID") or cursor, wanted)
        if last is not None:
            return answer(await self._log().last(last, wanted))
        found = await self._unless_stopping(self._log().wait(cursor, wanted, limit=limit, timeout=wait))
        if found is None:
            raise web.HTTPServiceUnavailable
        return answer(found)

    async def _stream(self, request: web.Request, cursor: str | None, wanted: Wanted) -> web.StreamResponse:
        """Until the client goes or the daemon stops; then the client comes back with the last id it saw."""
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        await response.prepare(request)
        timeout = 0.0
        while True:
            found = await self._unless_stopping(self._log().wait(cursor, wanted, limit=_MAX_EVENTS, timeout=timeout))
            if found is None:
                return response
            cursor = found["next_cursor"]
            if found["gap"]:
                await response.write(_message(found["state"], id=cursor, event="gap"))
            for event in found["events"]:
                await response.write(_message(event, id=event["id"], event=event["type"]))
            # An id alone: nothing happens at the client, but it will not ask again for what it did not want.
            await response.write(f"id: {cursor}\n\n".encode())
            timeout = _KEEPALIVE


def _message(data: Any, *, id: str, event: str) -> bytes:
    return f"id: {id}\nevent: {event}\ndata: {json.dumps(data)}\n\n".encode()
