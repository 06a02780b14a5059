"""A small hub in memory: enough of HubApi for control.sock, with the switches that tests need.

`python hub_double.py SOCKET LOCK` runs it behind a real ControlServer as a process of its own.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import socket
import sys
from collections.abc import AsyncIterable, AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import aiohttp

from pacerelled import errors
from pacerelled.agent.model import Attachment, Claim, FetchedFile, HistoryPage, Reply, Request, Session
from pacerelled.servers.control import ControlServer
from pacerelled.servers.sockets import bind_unix

NOW = "2031-05-06T07:08:09Z"


def request(seq: int, text: str, **more: Any) -> Request:
    values: dict[str, Any] = {
        "seq": seq,
        "message_id": f"msg-{seq}",
        "conversation_id": "conv-1",
        "sender": "user-1",
        "device_id": "device-1",
        "group": False,
        "kind": "text",
        "text": text,
        "received_at": NOW,
    }
    return Request(**values | more)


@dataclass
class QuarantineDouble:
    rows: list[dict[str, Any]]

    async def select(self, *, reason: str | None = None) -> list[dict[str, Any]]:
        return [row for row in self.rows if reason in (None, row["reason"])]


class AgentDouble:
    def __init__(self, agent_id: str, settings: dict[str, Any]) -> None:
        self.agent_id = agent_id
        self.settings = settings
        self.connection = "connected"
        self.requests: list[Request] = []
        self.sent: list[Reply] = []
        self.calls: list[dict[str, Any]] = []
        self.files: dict[tuple[str, str], tuple[str, str, bytes]] = {}
        self.refused: list[dict[str, Any]] = []
        self.leaves_as: str | None = "submitted"  # None: never leaves
        self.fails_with: Exception | None = None

    @property
    def login(self) -> str:
        return "ok" if self.settings["token"] else "needed"

    async def status(self) -> dict[str, Any]:
        count = {s: sum(r.state == s for r in self.sent) for s in ("queued", "uncertain")}
        waiting = [r for r in self.requests if r.processed_at is None]
        return {
            "agent_id": self.agent_id,
            "connection": self.connection,
            "login": self.login,
            "e2ee": self.settings["e2ee"],
            "base_url": self.settings["base_url"],
            "last_traffic_age_s": 4.2 if self.connection == "connected" else None,
            "pending": len(waiting),
            "claimed": sum(r.claim is not None for r in waiting),
            "quarantined": len(self.refused),
            "one_time_prekeys": 48,
            "safety_code": "0A1B 2C3D",
            **count,
        }

    async def send_message(self, session: Session, *, text: str, idempotency_key: str | None, **route: Any) -> Reply:
        return self._add("text", text, key=idempotency_key, **route)

    async def send_widget(self, session: Session, *, widget: Any, idempotency_key: str | None, **route: Any) -> Reply:
        return self._add("widget", "", key=idempotency_key, widget=widget, **route)

    async def send_file(
        self,
        session: Session,
        *,
        data: AsyncIterable[bytes],
        size: int | None,
        text: str,
        idempotency_key: str | None,
        **route: Any,
    ) -> Reply:
        whole = b"".join([piece async for piece in data])
        assert size in (None, len(whole))
        return self._add("file", text, key=idempotency_key, data=whole, **route)

    async def update_widget(
        self, session: Session, *, message_id: str, idempotency_key: str | None, **patch: Any
    ) -> Reply:
        self._at(message_id)
        return self._add("widget_update", "", key=idempotency_key, ref=message_id, **patch)

    async def retry_reply(self, message_id: str) -> Reply:
        index = self._at(message_id)
        again = self.sent[index].state == "uncertain"
        self.sent[index] = replace(self.sent[index], state="queued" if again else self.sent[index].state, reason=None)
        return replace(self.sent[index], repeated=not again)

    async def drop_reply(self, message_id: str) -> Reply:
        index = self._at(message_id)
        if self.sent[index].state == "submitted":
            raise errors.NotPossible(f"reply {message_id} is submitted", hint="See: pacerelle outbox list")
        self.sent[index] = replace(self.sent[index], state="dropped", reason="dropped before it was sent")
        return self.sent[index]

    def _at(self, message_id: str) -> int:
        for index, reply in enumerate(self.sent):
            if reply.message_id == message_id:
                return index
        raise errors.UnknownMessage(f"no reply {message_id}", hint="See: pacerelle history")

    def _add(self, kind: Any, text: str, *, key: str | None, **details: Any) -> Reply:
        if self.fails_with is not None:
            raise self.fails_with
        for index, call in enumerate(self.calls):
            if key is not None and call["key"] == key:
                return replace(self.sent[index], repeated=True)
        self.calls.append({"kind": kind, "text": text, "key": key, **details})
        reply = Reply(
            seq=len(self.sent) + 1,
            message_id=f"reply-{len(self.sent) + 1}",
            conversation_id=details.get("conversation_id") or "conv-1",
            to=details.get("to") or "user-1",
            device_id=None,
            kind=kind,
            text=text,
            state="queued",
            created_at=NOW,
            widget_id="widget-1" if kind == "widget" else None,
        )
        self.sent.append(reply)
        return reply

    async def wait_for_reply(self, message_id: str, *, timeout: float) -> Reply:
        index = self._at(message_id)
        if self.leaves_as is None:
            await asyncio.sleep(timeout)
            return self.sent[index]
        reason = "the link ended first" if self.leaves_as in ("failed", "uncertain") else None
        self.sent[index] = replace(self.sent[index], state=self.leaves_as, reason=reason)  # type: ignore[arg-type]
        return self.sent[index]

    async def mark_processed(self, session: Session, message_id: str, *, note: str | None = None) -> Request:
        for index, found in enumerate(self.requests):
            if found.message_id == message_id:
                self.requests[index] = replace(found, processed_at=NOW, note=note, claim=None)
                return self.requests[index]
        raise errors.UnknownMessage(f"no request {message_id}", hint="See: pacerelle inbox --all")

    async def inbox(self, *, state: str, limit: int, before: int | None) -> tuple[list[Request], bool]:
        found = [r for r in self.requests if state == "all" or r.processed_at is None]
        found = [r for r in found if before is None or r.seq < before]
        return found[-limit:], len(found) > limit

    async def release(self, message_id: str) -> Request:
        for index, found in enumerate(self.requests):
            if found.message_id == message_id:
                self.requests[index] = replace(found, claim=None)
                return self.requests[index]
        raise errors.UnknownMessage(f"no request {message_id}", hint="See: pacerelle inbox --all")

    async def history(self, *, conversation_id: str | None, limit: int, before: str | None) -> HistoryPage:
        mine = [r for r in self.requests if conversation_id in (None, r.conversation_id)]
        mine = [r for r in mine if before is None or r.seq < int(before)]
        shown = tuple(mine[-limit:])
        return HistoryPage(shown, tuple(self.sent[-limit:]), str(shown[0].seq) if len(mine) > limit else None)

    async def replies(self, *, state: str | None, limit: int) -> list[Reply]:
        wanted = ("queued", "sending", "uncertain", "failed") if state == "open" else (state,)
        return [r for r in self.sent if state is None or r.state in wanted][-limit:]

    @property
    def quarantine(self) -> QuarantineDouble:
        return QuarantineDouble(self.refused)

    @asynccontextmanager
    async def attachment(self, message_id: str, attachment_id: str) -> AsyncIterator[FetchedFile]:
        try:
            name, mime, data = self.files[message_id, attachment_id]
        except KeyError:
            raise errors.UnknownMessage("no such attachment") from None

        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(data), 100_000):
                yield data[start : start + 100_000]

        yield FetchedFile(name, mime, len(data), pieces())


class HubDouble:
    def __init__(self) -> None:
        self.all: dict[str, AgentDouble] = {}
        self.paseo: Any = None
        self.hosts: list[dict[str, Any]] = []
        self.problems: list[dict[str, Any]] = []
        self.happened: list[dict[str, Any]] = []
        self.changed = asyncio.Event()
        self.waiting = 0
        self.explode: Exception | None = None

    def agent(self, agent_id: str | None) -> AgentDouble:
        if agent_id in (None, "-"):
            if len(self.all) != 1:
                raise errors.NoAgent("no agent is set up", hint="Add one: pacerelle agent add AGENT_ID")
            return next(iter(self.all.values()))
        try:
            return self.all[agent_id or ""]
        except KeyError:
            raise errors.UnknownAgent(f"no agent {agent_id}", hint="See: pacerelle agent list") from None

    def agents(self) -> list[AgentDouble]:
        return list(self.all.values())

    def sessions(self) -> list[dict[str, Any]]:
        return self.hosts

    async def add_agent(
        self, agent_id: str, *, token: str | None, base_url: str | None, ws_url: str | None, e2ee: bool
    ) -> AgentDouble:
        settings = {"base_url": base_url or "https://relay.invalid", "ws_url": ws_url, "e2ee": e2ee}
        known = self.all.get(agent_id)
        if known is None:
            known = self.all[agent_id] = AgentDouble(agent_id, settings | {"token": token})
        elif any(known.settings[name] != value for name, value in settings.items()):
            raise errors.AgentExists(f"{agent_id} exists with other settings", hint="Remove it first.")
        known.settings["token"] = token or known.settings["token"]
        return known

    async def remove_agent(self, agent_id: str, *, purge: bool = False) -> None:
        self.purged = purge
        del self.all[agent_id]

    async def set_token(self, agent_id: str, token: str) -> None:
        if token == "refused":
            raise errors.TokenRefused("the relay refused this token", hint="Make a new one on the phone.")
        self.all[agent_id].settings["token"] = token

    async def status(self) -> dict[str, Any]:
        if self.explode is not None:
            raise self.explode
        problems = list(self.problems)
        if not self.all:
            problems.append({"code": "no_agent", "message": "There is no agent yet", "hint": "pacerelle agent add"})
        return {
            "version": 1,
            "daemon": {
                "version": "0.1.0",
                "pid": os.getpid(),
                "uptime_s": 3725.5,
                "state_dir": "/state",
                "started_at": NOW,
            },
            "health": {"ok": not problems, "problems": problems},
            "agents": [await agent.status() for agent in self.all.values()],
            "hosts": self.hosts,
        }

    @property
    def event_log(self) -> HubDouble:
        return self

    async def wait(
        self, cursor: str | None, wanted: Callable[[dict[str, Any]], bool], *, limit: int, timeout: float
    ) -> dict[str, Any]:
        after = len(self.happened) if cursor is None else int(cursor.rpartition(":")[2])
        self.waiting += 1
        try:
            async with asyncio.timeout(timeout):
                while not any(event["seq"] > after for event in self.happened):
                    await self.changed.wait()
                    self.changed.clear()
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1
        found = [event for event in self.happened if event["seq"] > after and wanted(event)][:limit]
        return {"events": found, "next_cursor": found[-1]["id"] if found else f"e:{after}", "gap": False}

    def happen(self, kind: str) -> None:
        seq = len(self.happened) + 1
        event = {"id": f"e:{seq}", "epoch": "e", "seq": seq, "at": NOW, "type": kind, "agent": "agent-1", "data": {}}
        self.happened.append(event)
        self.changed.set()


@dataclass
class Control:
    hub: HubDouble
    server: ControlServer
    path: Path
    http: aiohttp.ClientSession
    stops: list[str] = field(default_factory=list)

    async def agent(self, agent_id: str = "agent-1") -> AgentDouble:
        return await self.hub.add_agent(agent_id, token="secret-token", base_url=None, ws_url=None, e2ee=True)

    async def call(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        async with self.http.request(method, f"http://anything{path}", **more) as response:
            body = await response.read()
            return response.status, (await response.json()) if body else None


def claimed_by(label: str) -> Claim:
    return Claim(session="0" * 32, label=label, mine=False, since=NOW)


def picture() -> Attachment:
    return Attachment(id="att-1", name="photo.jpg", mime="image/jpeg", size=4096)


def listens(path: Path) -> bool:
    """A socket's file is there a moment before anybody listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


async def run(socket_path: Path, lock_path: Path) -> None:
    lock = lock_path.open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    server = ControlServer(HubDouble(), bind_unix(socket_path), paths={}, stop=ended.set)  # type: ignore[arg-type]
    await server.start()
    await ended.wait()
    await server.stop()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), Path(sys.argv[2])))
