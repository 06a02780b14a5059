"""A hub in memory, for tests of transports: requests are put in, claims are kept, nothing is sent anywhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any

from pacerelled.agent.model import (
    Checkpoint,
    CheckpointPage,
    Fits,
    HistoryPage,
    OnProgress,
    Reply,
    Request,
    SavedFile,
    Session,
    WaitResult,
)
from pacerelled.errors import AgentExists, NoAgent, NotPossible, UnknownAgent, UnknownMessage

AT = "2030-01-01T00:00:00Z"


class AgentDouble:
    def __init__(self, hub: HubDouble, agent_id: str) -> None:
        self.hub = hub
        self.agent_id = agent_id
        self.settings: dict[str, Any] = {}
        self.requests: list[Request] = []
        self.replies_: list[Reply] = []
        self.checkpoints_: list[Checkpoint] = []
        self.claims: dict[str, Session] = {}
        self.processed: set[str] = set()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.cancelled = 0
        self.slow_transfers = False
        self.fail: Exception | None = None
        self._first: dict[tuple[str, str], Reply] = {}
        self._changed = asyncio.Condition()

    async def put(self, text: str = "hello", **more: Any) -> Request:
        seq = len(self.requests) + 1
        fields: dict[str, Any] = {
            "message_id": f"m{seq}",
            "conversation_id": "c1",
            "sender": "u1",
            "device_id": "d1",
            "group": False,
            "kind": "text",
        }
        request = Request(seq=seq, text=text, received_at=AT, **{**fields, **more})
        self.requests.append(request)
        async with self._changed:
            self._changed.notify_all()
        for topic in ("inbox", "conversation", *(["widget"] if request.kind == "widget_response" else [])):
            self.hub.tell(self.agent_id, topic)
        return request

    def _check(self, name: str, /, **arguments: Any) -> None:
        self.calls.append((name, arguments))
        if self.fail is not None:
            raise self.fail

    def _claim(self, session: Session) -> list[Request]:
        free = [r for r in self.requests if r.message_id not in self.processed]
        return [r for r in free if self.claims.get(r.message_id, session).id == session.id]

    async def status(self) -> dict[str, Any]:
        self._check("status")
        return {
            "agent_id": self.agent_id,
            "connection": "connected",
            "login": "ok",
            "pending": len(self.requests) - len(self.processed),
            "claimed": len(self.claims),
            "queued": 0,
            "uncertain": 0,
            "quarantined": 0,
            "last_traffic_age_s": 1.5,
            "uncertain_sends": [],
        }

    async def wait_for_messages(
        self,
        session: Session,
        *,
        timeout: float,
        conversation_id: str | None = None,
        limit: int = 10,
        after: int | None = None,
        include_claimed: bool = False,
        release: Sequence[str] = (),
        fits: Fits,
        call_id: str | None = None,
    ) -> WaitResult:
        self._check(
            "wait_for_messages",
            timeout=timeout,
            conversation_id=conversation_id,
            limit=limit,
            after=after,
            include_claimed=include_claimed,
            release=release,
            call_id=call_id,
        )
        session.waiting += 1
        try:
            async with self._changed:
                try:
                    await asyncio.wait_for(self._changed.wait_for(lambda: self._claim(session)), timeout)
                except TimeoutError:
                    pass
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            session.waiting -= 1
        found = self._claim(session)
        shown = list(takewhile(fits, found[:limit]))
        for request in shown:
            self.claims[request.message_id] = session
        cursor = shown[-1].cursor if shown else None
        return WaitResult(tuple(shown), cursor, len(found) > len(shown), "connected")

    async def send_message(self, session: Session, *, call_id: str | None = None, **arguments: Any) -> Reply:
        self._check("send_message", call_id=call_id, **arguments)
        return self._reply(session, call_id, kind="text", text=arguments["text"])

    async def send_widget(self, session: Session, *, call_id: str | None = None, **arguments: Any) -> Reply:
        self._check("send_widget", call_id=call_id, **arguments)
        return self._reply(session, call_id, kind="widget", text="", widget_id="w1")

    async def send_path(
        self, session: Session, *, call_id: str | None = None, on_progress: OnProgress, **arguments: Any
    ) -> Reply:
        self._check("send_path", call_id=call_id, **arguments)
        await self._transfer(on_progress)
        return self._reply(session, call_id, kind="file", text=arguments["text"])

    async def save_attachment(
        self, *, session: Session, call_id: str, on_progress: OnProgress, **arguments: Any
    ) -> SavedFile:
        self._check("save_attachment", **arguments)
        await self._transfer(on_progress)
        return SavedFile("/home/ada/Downloads/Pacerelle/a (2).pdf", "a.pdf", "application/pdf", 100)

    async def _transfer(self, on_progress: OnProgress) -> None:
        """A hundred bytes, one after the other, while `slow_transfers`."""
        for done in range(1, 101):
            on_progress(done, 100)
            if self.slow_transfers:
                await asyncio.sleep(0.005)

    async def update_widget(self, session: Session, *, call_id: str | None = None, **arguments: Any) -> Reply:
        self._check("update_widget", call_id=call_id, **arguments)
        return self._reply(session, call_id, kind="widget_update", text="", widget_id="w1")

    async def retry_reply(self, message_id: str, *, session: Session, call_id: str) -> Reply:
        self._check("retry_reply", message_id=message_id)
        for reply in self.replies_:
            if reply.message_id == message_id:
                return reply
        raise UnknownMessage(f"there is no reply {message_id}", hint="Take a message_id of uncertain_sends.")

    def _reply(self, session: Session, call_id: str | None, **fields: Any) -> Reply:
        key = (session.id, call_id or "")
        if key not in self._first:
            seq = len(self.replies_) + 1
            reply = Reply(
                seq=seq,
                message_id=f"r{seq}",
                conversation_id="c1",
                to="u1",
                device_id="d1",
                state="queued",
                created_at=AT,
                **fields,
            )
            self.replies_.append(reply)
            self._first[key] = reply
        return self._first[key]

    async def mark_processed(
        self, session: Session, message_id: str, *, note: str | None = None, take_over: bool = False
    ) -> Request:
        self._check("mark_processed", message_id=message_id, note=note)
        for request in self.requests:
            if request.message_id == message_id:
                if self.claims.get(message_id, session).id != session.id and not take_over:
                    raise NotPossible("another session works on this request", hint="Leave it to that one.")
                self.processed.add(message_id)
                self.claims.pop(message_id, None)
                fields = {name: getattr(request, name) for name in Request.__slots__}
                return Request(**{**fields, "processed_at": AT, "note": note})
        raise UnknownMessage(f"there is no request {message_id}", hint="Take the message_id of a request.")

    async def history(
        self, *, session: Session, conversation_id: str | None, limit: int, before: str | None, fits: Fits
    ) -> HistoryPage:
        self._check("history", conversation_id=conversation_id, limit=limit, before=before)
        found = [tuple(takewhile(fits, rows[::-1][:limit]))[::-1] for rows in (self.requests, self.replies_)]
        return HistoryPage(found[0], found[1], "1.1" if len(found[0]) < len(self.requests) else None)

    async def pending(self, *, session: Session, fits: Fits) -> tuple[list[Request], bool]:
        found = [r for r in self.requests if r.message_id not in self.processed]
        shown = list(takewhile(fits, found))
        return shown, len(shown) < len(found)

    async def message(self, message_id: str) -> Request | Reply:
        for each in (*self.requests, *self.replies_):
            if each.message_id == message_id:
                return each
        raise UnknownMessage(f"there is no message {message_id}", hint="Take a message_id of get_history.")

    async def save_checkpoint(self, session: Session, *, call_id: str, **arguments: Any) -> Checkpoint:
        self._check("save_checkpoint", **arguments)
        del arguments["take_over"]
        seq = len(self.checkpoints_) + 1
        self.checkpoints_.append(Checkpoint(seq=seq, conversation_id="c1", updated_at=AT, **arguments))
        return self.checkpoints_[-1]

    async def checkpoints(
        self, *, conversation_id: str | None, include_completed: bool, limit: int, after: int | None, fits: Fits
    ) -> CheckpointPage:
        self._check("checkpoints", conversation_id=conversation_id, include_completed=include_completed)
        found = [c for c in self.checkpoints_ if (include_completed or c.status == "active") and c.seq > (after or 0)]
        shown = list(takewhile(fits, found[:limit]))
        return CheckpointPage(tuple(shown), str(shown[-1].seq) if shown else None, len(shown) < len(found))

    async def current_conversation(self) -> dict[str, Any] | None:
        self._check("current_conversation")
        return {"conversation_id": self.requests[-1].conversation_id} if self.requests else None

    async def pending_widget(self) -> Request | None:
        found = [r for r in self.requests if r.kind == "widget_response" and r.message_id not in self.processed]
        return found[-1] if found else None


class HubDouble:
    def __init__(self, *agent_ids: str) -> None:
        self.known = {agent_id: AgentDouble(self, agent_id) for agent_id in agent_ids}
        self.open: list[Session] = []
        self.paseo = None
        self.closed: list[Session] = []
        self.problems: list[dict[str, Any]] = []
        self._callbacks: list[Callable[[str, str], None]] = []

    def open_session(self, session: Session) -> Session:
        self.open.append(session)
        return session

    def close_session(self, session: Session) -> None:
        self.open.remove(session)
        self.closed.append(session)

    def sessions(self) -> list[dict[str, Any]]:
        return [
            {"session": s.id, "label": s.label, "agent_id": s.agent_id, "connected": True, "claims": 0}
            for s in self.open
        ]

    def agent_for(self, session: Session) -> AgentDouble:
        return self.agent(session.agent_id)

    def agent(self, agent_id: str | None) -> AgentDouble:
        if agent_id is None:
            if len(self.known) != 1:
                raise NoAgent("this session names no agent", hint="Set PACERELLE_AGENT_ID in the host's configuration.")
            return next(iter(self.known.values()))
        if agent_id not in self.known:
            raise UnknownAgent(f"there is no agent {agent_id}", hint="Add it with pacerelle agent add.")
        return self.known[agent_id]

    async def add_agent(self, agent_id: str, **settings: Any) -> AgentDouble:
        agent = self.known.setdefault(agent_id, AgentDouble(self, agent_id))
        if agent.settings and settings["base_url"] != agent.settings["base_url"]:
            raise AgentExists(f"{agent_id} exists with another relay", hint="Remove it first.")
        agent.settings = settings
        return agent

    async def status(self) -> dict[str, Any]:
        return {"health": {"ok": not self.problems, "problems": self.problems}, "hosts": self.sessions()}

    def subscribe(self, callback: Callable[[str, str], None]) -> Callable[[], None]:
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    @property
    def subscribers(self) -> int:
        return len(self._callbacks)

    def tell(self, agent_id: str, topic: str) -> None:
        for callback in list(self._callbacks):
            callback(agent_id, topic)
