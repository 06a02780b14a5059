"""control.sock: HTTP and JSON over the domain, for the command line and for scripts (docs/local-protocol.md).

Here calls become calls of the domain, and what it returns becomes an answer; nothing else happens here. A
browser cannot reach a Unix socket by itself, but a careless proxy could let it: what looks like one is refused.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, Literal, cast
from urllib.parse import quote

from aiohttp import web

from pacerelled import errors
from pacerelled.agent.api import AgentApi, HubApi
from pacerelled.agent.model import Reply, Session

from .accepting import Acceptor
from .answers import answer, answer_error
from .decisions import DecisionCalls
from .event_calls import EventCalls
from .fields import MAX_JSON, file_pieces, json_fields, query_fields
from .keeping import KeepingCalls
from .log_calls import LogCalls
from .paseo_calls import PaseoCalls
from .sockets import peer_uid
from .tokens import TokenCalls

log = logging.getLogger(__name__)

_MAX_LINE = 1024 * 1024  # bytes of a request line: the text that comes with a file travels in its query
_MAX_ROWS = 500  # rows of any list
_MAX_NOTE = 2000  # characters, as for the tool mark_processed
_MAX_WAIT = 3600.0  # seconds that a sender may wait for its reply to leave
_STOP_GRACE = 0.3  # seconds that answers under way get when the server stops
_MAX_SEQ = 2**63 - 1

_REPLY_STATES = ("queued", "sending", "submitted", "uncertain", "failed", "dropped", "open")
_MIME = re.compile(r"[a-z0-9!#$&^_.+-]{1,64}/[a-z0-9!#$&^_.+-]{1,64}", re.IGNORECASE | re.ASCII)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ControlServer:
    """Serves `hub` on `sock`, a listening Unix socket that belongs to this server from now on.

    `paths` is what `GET /v1/paths` answers; `stop` is called when somebody asks the daemon to end. `calls` are those
    of parts that the hub knows nothing of.
    """

    def __init__(
        self,
        hub: HubApi,
        sock: socket.socket,
        *,
        paths: Mapping[str, Any],
        stop: Callable[[], None],
        calls: Sequence[web.RouteDef] = (),
    ) -> None:
        self._hub = hub
        self._calls = calls
        self._acceptor = Acceptor(sock, self._take, name="control.sock")
        self._connecting: set[asyncio.Future[Any]] = set()  # for a moment; somebody has to hold them
        self._paths = dict(paths)
        self._stop = stop
        self._stopping = asyncio.Event()
        self._session = Session(id="control", transport="control")
        self._runner: web.AppRunner | None = None
        self._changing = 0  # calls under way that change something, or hand a file over

    @property
    def is_busy(self) -> bool:
        """Whether a caller would notice it if the daemon ended now; who waits for events would not."""
        return self._changing > 0

    async def start(self) -> None:
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_JSON)
        app.add_routes(self._routes())
        app.on_shutdown.append(self._end_waiting)
        self._runner = web.AppRunner(
            app,
            access_log=None,  # its lines have the query, where text can be
            logger=_http_log(),
            max_line_size=_MAX_LINE,
            handler_cancellation=True,
            shutdown_timeout=_STOP_GRACE,
        )
        await self._runner.setup()
        self._acceptor.start()

    async def stop(self) -> None:
        """Ends within a second: waiting calls are answered with what there is, or with 503 `stopping`."""
        self._acceptor.close()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def _take(self, sock: socket.socket) -> None:
        assert self._runner is not None
        assert self._runner.server is not None
        connecting = asyncio.get_running_loop().connect_accepted_socket(self._runner.server, sock)
        task = asyncio.ensure_future(connecting)
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    def _routes(self) -> list[web.RouteDef]:
        agent = "/v1/agents/{id}"
        return [
            web.get("/v1/status", self._status),
            web.get("/v1/hosts", self._hosts),
            web.get("/v1/paths", self._show_paths),
            web.post("/v1/stop", self._stop_daemon),
            web.get("/v1/agents", self._agents),
            web.post("/v1/agents", self._add_agent),
            web.delete(agent, self._remove_agent),
            web.put(f"{agent}/token", self._set_token),
            web.get(f"{agent}/inbox", self._inbox),
            web.post(f"{agent}/inbox/{{message_id}}/processed", self._processed),
            web.post(f"{agent}/inbox/{{message_id}}/release", self._release),
            web.get(f"{agent}/history", self._history),
            web.post(f"{agent}/messages", self._send),
            web.post(f"{agent}/files", self._send_file),
            web.get(f"{agent}/attachments/{{message_id}}/{{attachment_id}}", self._attachment),
            web.get(f"{agent}/replies", self._replies),
            web.post(f"{agent}/replies/{{message_id}}/retry", self._retry),
            web.post(f"{agent}/replies/{{message_id}}/drop", self._drop),
            web.post(f"{agent}/replies/{{message_id}}/widget", self._update_widget),
            *DecisionCalls(self._agent).routes(agent),
            *KeepingCalls(self._hub, self._agent).routes(agent),
            *PaseoCalls(self._hub).routes(),
            *TokenCalls(self._hub).routes(),
            *EventCalls(lambda: self._hub.event_log, self._unless_stopping).routes(),
            *LogCalls().routes(),
            *self._calls,
        ]

    # The daemon

    async def _status(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer(await self._hub.status())

    async def _hosts(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer({"hosts": (await self._hub.status())["hosts"]})

    async def _show_paths(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer({"paths": self._paths})

    async def _stop_daemon(self, request: web.Request) -> web.Response:
        (await json_fields(request)).done()
        log.info("asked to stop over control.sock")
        self._stop()
        return answer({"stopping": True, "pid": os.getpid()}, status=202)

    # Agents

    async def _agents(self, request: web.Request) -> web.Response:
        query_fields(request).done()
        return answer({"agents": (await self._hub.status())["agents"]})

    async def _add_agent(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        agent_id = fields.required_text("agent_id")
        token = fields.text("token")
        base_url = fields.text("base_url")
        ws_url = fields.text("ws_url")
        e2ee = fields.flag("e2ee", default=True)
        fields.done()
        known = any(agent.agent_id == agent_id for agent in self._hub.agents())
        await self._hub.add_agent(agent_id, token=token, base_url=base_url, ws_url=ws_url, e2ee=e2ee)
        if token:
            await self._hub.set_token(agent_id, token)  # a person's choice is kept for good, where a keyring is
        rows: list[dict[str, Any]] = (await self._hub.status())["agents"]
        row = next((row for row in rows if row["agent_id"] == agent_id), None)
        if row is None:
            raise errors.UnknownAgent("the agent was removed while it was being added")
        return answer(row, status=200 if known else 201)

    async def _remove_agent(self, request: web.Request) -> web.Response:
        fields = query_fields(request)
        purge = fields.flag("purge", default=False)
        fields.done()
        await self._hub.remove_agent(self._agent(request).agent_id, purge=purge)
        return web.Response(status=204)

    async def _set_token(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        token = fields.required_text("token")
        fields.done()
        await self._hub.set_token(self._agent(request).agent_id, token)
        return web.Response(status=204)

    # One agent's messages

    async def _inbox(self, request: web.Request) -> web.Response:
        fields = query_fields(request)
        state = cast(Literal["pending", "all"], fields.choice("state", of=("pending", "all")) or "pending")
        limit = fields.integer("limit", default=50, least=1, most=_MAX_ROWS)
        before = fields.optional_integer("before", most=_MAX_SEQ)
        fields.done()
        found, more = await self._agent(request).inbox(state=state, limit=limit, before=before)
        return answer({"messages": [each.as_dict() for each in found], "has_more": more})

    async def _processed(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        note = fields.text("note", most=_MAX_NOTE)
        fields.done()
        agent, message_id = self._agent(request), request.match_info["message_id"]
        return answer((await agent.mark_processed(self._session, message_id, note=note)).as_dict())

    async def _release(self, request: web.Request) -> web.Response:
        (await json_fields(request)).done()
        return answer((await self._agent(request).release(request.match_info["message_id"])).as_dict())

    async def _history(self, request: web.Request) -> web.Response:
        fields = query_fields(request)
        conversation_id = fields.text("conversation_id")
        limit = fields.integer("limit", default=50, least=1, most=_MAX_ROWS)
        before = fields.text("before")
        fields.done()
        found = await self._agent(request).history(conversation_id=conversation_id, limit=limit, before=before)
        return answer(found.as_dict())

    async def _send(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        text = fields.text("text")
        widget = fields.text_or_object("widget")
        source = fields.text("source_message_id")
        conversation_id = fields.text("conversation_id")
        to = fields.text("to")
        reply_to = fields.text("reply_to_message_id")
        key = fields.text("idempotency_key")
        wait = fields.seconds("wait_s", most=_MAX_WAIT)
        fields.done()
        agent = self._agent(request)
        if widget is None:
            if text is None:
                raise errors.InvalidArgument("text is required (or widget)", argument="text")
            reply = await agent.send_message(
                self._session,
                text=text,
                source_message_id=source,
                conversation_id=conversation_id,
                to=to,
                reply_to_message_id=reply_to,
                idempotency_key=key,
            )
        else:
            for name, value in (("text", text), ("reply_to_message_id", reply_to)):
                if value is not None:
                    raise errors.InvalidArgument(f"{name} cannot go with a widget", argument=name)
            reply = await agent.send_widget(
                self._session,
                widget=widget,
                source_message_id=source,
                conversation_id=conversation_id,
                to=to,
                idempotency_key=key,
            )
        return await self._sent(agent, reply, wait)

    async def _send_file(self, request: web.Request) -> web.Response:
        fields = query_fields(request)
        name = fields.required_text("name")
        mime = fields.text("mime")
        text = fields.text("text") or ""
        source = fields.text("source_message_id")
        conversation_id = fields.text("conversation_id")
        to = fields.text("to")
        key = fields.text("idempotency_key")
        wait = fields.seconds("wait_s", most=_MAX_WAIT)
        fields.done()
        agent = self._agent(request)
        reply = await agent.send_file(
            self._session,
            name=name,
            data=file_pieces(request),
            size=request.content_length,
            mime=mime,
            text=text,
            source_message_id=source,
            conversation_id=conversation_id,
            to=to,
            idempotency_key=key,
        )
        return await self._sent(agent, reply, wait)

    async def _retry(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        wait = fields.seconds("wait_s", most=_MAX_WAIT)
        fields.done()
        agent = self._agent(request)
        reply = await agent.retry_reply(request.match_info["message_id"])
        return await self._sent(agent, reply, wait, status=200)

    async def _drop(self, request: web.Request) -> web.Response:
        (await json_fields(request)).done()
        return answer((await self._agent(request).drop_reply(request.match_info["message_id"])).as_dict())

    async def _update_widget(self, request: web.Request) -> web.Response:
        fields = await json_fields(request)
        spec = fields.object("spec")
        expires_at = fields.text("expires_at")
        key = fields.text("idempotency_key")
        wait = fields.seconds("wait_s", most=_MAX_WAIT)
        fields.done()
        agent = self._agent(request)
        reply = await agent.update_widget(
            self._session,
            message_id=request.match_info["message_id"],
            spec=spec,
            expires_at=expires_at,
            idempotency_key=key,
        )
        return await self._sent(agent, reply, wait)

    async def _sent(self, agent: AgentApi, reply: Reply, wait: float, *, status: int = 201) -> web.Response:
        status = 200 if reply.repeated else status
        if wait and reply.state in ("queued", "sending"):
            # When the daemon stops meanwhile, the reply as it was stored is a true answer too.
            reply = await self._unless_stopping(agent.wait_for_reply(reply.message_id, timeout=wait)) or reply
        return answer(reply.as_dict(), status=status)

    async def _attachment(self, request: web.Request) -> web.StreamResponse:
        query_fields(request).done()
        names = request.match_info
        async with self._agent(request).attachment(names["message_id"], names["attachment_id"]) as file:
            # Name and type are the sender's words: quoted, and nothing that a client would run.
            quoted = quote(file.name.encode("utf-8", "replace"), safe="")
            response = web.StreamResponse(
                headers={
                    "Content-Type": file.mime if _MIME.fullmatch(file.mime) else "application/octet-stream",
                    "Content-Length": str(file.size),
                    "Content-Disposition": f"attachment; filename*=UTF-8''{quoted}",
                    "X-Content-Type-Options": "nosniff",
                },
            )
            await response.prepare(request)
            async for piece in file.pieces:
                await response.write(piece)
            await response.write_eof()
            return response

    async def _replies(self, request: web.Request) -> web.Response:
        fields = query_fields(request)
        state = fields.choice("state", of=_REPLY_STATES)
        limit = fields.integer("limit", default=50, least=1, most=_MAX_ROWS)
        fields.done()
        found = await self._agent(request).replies(state=state, limit=limit)
        return answer({"replies": [each.as_dict() for each in found]})

    # What all calls share

    def _agent(self, request: web.Request) -> AgentApi:
        return self._hub.agent(request.match_info["id"])

    async def _unless_stopping[T](self, waiting: Coroutine[Any, Any, T]) -> T | None:
        """What `waiting` returns, or None when the server stops first."""
        tasks = asyncio.ensure_future(waiting), asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return tasks[0].result() if tasks[0].done() else None
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _end_waiting(self, app: web.Application) -> None:
        self._stopping.set()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Lets only the daemon's own user in, and is the one seam where errors become answers."""
        resource = request.match_info.route.resource  # without the ids that are in the path
        changing = request.method != "GET" or "attachment_id" in request.match_info
        self._changing += changing
        try:
            if not _from_own_user(request) or _from_browser(request):
                raise web.HTTPForbidden
            response = await handler(request)
        except Exception as error:
            response = answer_error(request, error)
        finally:
            self._changing -= changing
        log.debug("%s %s: %d", request.method, resource.canonical if resource else "unknown", response.status)
        return response


def _from_own_user(request: web.Request) -> bool:
    if request.transport is None:
        return False
    return peer_uid(request.transport.get_extra_info("socket")) == os.geteuid()


def _from_browser(request: web.Request) -> bool:
    return "Origin" in request.headers or any(name.startswith("Sec-Fetch-") for name in request.headers)


class _WithoutDetails(logging.Filter):
    """aiohttp logs malformed requests with their bytes; those can hold text and tokens."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.exc_info = record.exc_text = None
        return True


def _http_log() -> logging.Logger:
    logger = logging.getLogger(f"{__name__}.http")
    if not logger.filters:
        logger.addFilter(_WithoutDetails())
    return logger
