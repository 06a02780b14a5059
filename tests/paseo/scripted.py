"""A Paseo daemon that follows a script: what it says is shaped like recorded frames, and it misbehaves as it is told.

It is as version 0.1.65 unless `steers` and `takes_env` are set: unknown fields pass, follow-ups interrupt.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

FRAMES = Path(__file__).parent / "frames"
DEADLINE = 30.0  # seconds


def recorded(name: str) -> list[dict[str, Any]]:
    """The lines of a recording."""
    return [json.loads(line) for line in (FRAMES / f"{name}.jsonl").read_text().splitlines()]


def received(name: str, conn: int | None = None) -> list[str]:
    """The frames that the daemon sent, as text; with `conn`, on that socket only."""
    lines = [line for line in recorded(name) if line.get("dir") == "in" and conn in (None, line.get("conn"))]
    return [json.dumps(line["frame"]) for line in lines]


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Polls until `condition()` (which may be a coroutine function) is true; returns its value."""
    async with asyncio.timeout(DEADLINE):
        while True:
            value = condition()
            if asyncio.iscoroutine(value):
                value = await value
            if value:
                return value
            await asyncio.sleep(0.01)
    raise AssertionError(what)


@dataclass
class Client:
    """What the daemon keeps of one client id over its sockets."""

    id: str
    socket: ServerConnection | None = None
    subscribed: bool = False


@dataclass
class Misbehaviour:
    """Requests, by type: never answered, answered late, carried out but cut off before the answer."""

    silent: set[str] = field(default_factory=set)
    slow: dict[str, float] = field(default_factory=dict)  # seconds
    cut_off: set[str] = field(default_factory=set)


class ScriptedPaseo:
    """Prompts decide what a turn does: `ask …` asks for a permission first, `run …` goes on until `finish` is called,
    `fail WORDS` fails, all others finish with `Done: PROMPT`.
    """

    def __init__(
        self,
        home: Path,
        *,
        password: str | None = None,
        steers: bool = False,
        takes_env: bool = False,
        takes_worktree: bool = False,
        cwd_of: Callable[[str], str] = lambda cwd: cwd,
    ) -> None:
        self.home = home
        self.password = password
        self.steers, self.takes_env, self.takes_worktree = steers, takes_env, takes_worktree
        self.cwd_of = cwd_of
        self.port = 0
        self.server_id = "srv_scripted"
        self.agents: dict[str, dict[str, Any]] = {}
        self.rows: dict[str, list[dict[str, Any]]] = {}
        self.epochs: dict[str, str] = {}
        self.clients: dict[str, Client] = {}
        self.requests: list[dict[str, Any]] = []
        self.hellos: list[dict[str, Any]] = []
        self.bad = Misbehaviour()
        self._server: Server | None = None
        self._clock = datetime(2030, 1, 1, tzinfo=UTC)
        self._jobs: set[asyncio.Task[None]] = set()
        self._waits: list[tuple[Client, str, str]] = []

    # -- life --------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/ws"

    async def start(self) -> None:
        self._server = await serve(
            self._serve,
            "127.0.0.1",
            self.port,
            select_subprotocol=lambda _, offered: Subprotocol(offered[0]) if offered else None,
            ping_interval=None,
            max_size=None,
        )
        self.port = next(iter(self._server.sockets)).getsockname()[1]
        self.home.mkdir(exist_ok=True)

    async def stop(self, *, kill: bool = False) -> None:
        """As after SIGTERM: waits are answered, every agent is told to be closed. With `kill`: none of that."""
        if self._server is None:
            return
        for job in self._jobs:
            job.cancel()
        if not kill:
            for client, request_id, agent_id in self._waits:
                self.agents[agent_id]["status"] = "closed"
                await self._answer_wait(client, request_id, agent_id, "idle")
            for agent in self.agents.values():
                if agent["archivedAt"] is None:
                    agent.update(status="closed", pendingPermissions=agent["pendingPermissions"])
                    await self.update(agent["id"])
        self._waits.clear()
        for client in self.clients.values():
            if client.socket is not None:
                client.socket.transport.abort() if kill else await client.socket.close()
        self._server.close()
        await self._server.wait_closed()
        self._server = None

    async def restart(self, *, kill: bool = False) -> None:
        """Agents are there again, closed (after a kill, as they were) and with another epoch; sessions are not."""
        await self.stop(kill=kill)
        self.clients.clear()
        for agent in self.agents.values():
            agent["pendingPermissions"] = []
            self.epochs[agent["id"]] = str(uuid.uuid4())
        await self.start()

    async def drop_sockets(self) -> None:
        """The connections break; sessions and turns live on."""
        for client in self.clients.values():
            if client.socket is not None:
                client.socket.transport.abort()

    # -- agents ------------------------------------------------------------------------------------------------

    def now(self) -> str:
        self._clock += timedelta(milliseconds=1)
        return self._clock.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def add(self, title: str = "An agent", *, cwd: str = "/home/user/project", **more: Any) -> str:
        """An agent that somebody else made, without telling anybody."""
        agent_id = more.pop("id", None) or str(uuid.uuid4())
        at = self.now()
        self.agents[agent_id] = {
            "id": agent_id,
            "provider": "mock",
            "cwd": cwd,
            "model": "ten-second-stream",
            "createdAt": at,
            "updatedAt": at,
            "lastUserMessageAt": None,
            "status": "idle",
            "capabilities": {"supportsStreaming": True},
            "currentModeId": "load-test",
            "availableModes": [],
            "features": [],
            "pendingPermissions": [],
            "persistence": None,
            "title": title,
            "labels": {},
            "requiresAttention": False,
            "attentionReason": None,
            "archivedAt": None,
            "someNewField": {"of": ["a", "later", "version"]},
            **more,
        }
        self.rows[agent_id] = []
        self.epochs[agent_id] = str(uuid.uuid4())
        return agent_id

    async def update(self, agent_id: str) -> None:
        """Tells subscribers how the agent is: a snapshot, or that it is no longer in their list."""
        agent = self.agents.get(agent_id)
        if agent is None or agent["archivedAt"] is not None:
            body: dict[str, Any] = {"kind": "remove", "agentId": agent_id}
        else:
            body = {"kind": "upsert", "agent": agent, "project": None}
        for client in list(self.clients.values()):
            if client.subscribed:
                await self.push("agent_update", body, client)

    async def push(self, kind: str, payload: dict[str, Any], client: Client | None = None) -> None:
        frame = json.dumps({"type": "session", "message": {"type": kind, "payload": payload}})
        for each in [client] if client is not None else list(self.clients.values()):
            if each.socket is not None:
                try:
                    await each.socket.send(frame)
                except ConnectionClosed:
                    pass

    async def stream(self, agent_id: str, kind: str, **more: Any) -> None:
        at = self.now()
        event = {"type": kind, "provider": "mock", **more}
        await self.push("agent_stream", {"agentId": agent_id, "event": event, "timestamp": at})

    async def item(self, agent_id: str, item: dict[str, Any]) -> None:
        """A new row of the timeline."""
        seq = len(self.rows[agent_id]) + 1
        at = self.now()
        self.rows[agent_id].append(
            {
                "provider": "mock",
                "item": item,
                "timestamp": at,
                "seqStart": seq,
                "seqEnd": seq,
                "sourceSeqRanges": [],
                "collapsed": [],
            }
        )
        event = {"type": "timeline", "provider": "mock", "item": item}
        payload = {"agentId": agent_id, "event": event, "timestamp": at, "seq": seq, "epoch": self.epochs[agent_id]}
        await self.push("agent_stream", payload)

    async def begin(self, agent_id: str, prompt: str, message_id: str | None = None, *, noted: bool = False) -> None:
        """A turn, as a message of a person in the app would start it too."""
        agent = self.agents[agent_id]
        at = self.now()
        message = {"type": "user_message", "text": prompt, **({"messageId": message_id} if message_id else {})}
        if not noted:
            await self.item(agent_id, message)
        agent.update(status="running", lastUserMessageAt=at, updatedAt=self.now(), archivedAt=None)
        agent.update(requiresAttention=False, attentionReason=None)
        await self.update(agent_id)
        await self.stream(agent_id, "turn_started")
        if prompt.startswith("ask"):
            await self.ask(agent_id)
        elif prompt.startswith("fail"):
            await self.end(agent_id, "turn_failed", error=prompt.removeprefix("fail "))
        elif not prompt.startswith("run"):
            await self.finish(agent_id, f"Done: {prompt}")

    async def finish(self, agent_id: str, words: str = "Done.") -> None:
        for piece in (words[: len(words) // 2], words[len(words) // 2 :]):
            await self.item(agent_id, {"type": "assistant_message", "text": piece})
        await self.end(agent_id, "turn_completed", usage={"inputTokens": 1})

    async def end(self, agent_id: str, kind: str, **more: Any) -> None:
        agent = self.agents[agent_id]
        failed = kind == "turn_failed"
        await self.stream(agent_id, kind, **more)
        agent.update(status="error" if failed else "idle", requiresAttention=True, pendingPermissions=[])
        agent.update(attentionReason="error" if failed else "finished", updatedAt=self.now())
        if failed:
            agent["lastError"] = more["error"]
        await self.update(agent_id)
        for wait in [wait for wait in self._waits if wait[2] == agent_id]:
            self._waits.remove(wait)
            await self._answer_wait(wait[0], wait[1], agent_id, "error" if failed else "idle")

    async def ask(self, agent_id: str, permission_id: str | None = None, **more: Any) -> str:
        """Asks for a permission, three times over, as the daemon does."""
        permission_id = permission_id or f"permission-{uuid.uuid4()}"
        request = {
            "id": permission_id,
            "provider": "mock",
            "name": "Bash",
            "kind": "tool",
            "title": "Run a command",
            "description": "Delete the build folder",
            "input": {"command": "rm -rf build"},
            "actions": [
                {"id": "once", "label": "Allow once", "behavior": "allow"},
                {"id": "no", "label": "Deny", "behavior": "deny"},
            ],
            **more,
        }
        agent = self.agents[agent_id]
        agent["pendingPermissions"] = [*agent["pendingPermissions"], request]
        agent["updatedAt"] = self.now()
        await self.stream(agent_id, "permission_requested", request=request)
        await self.push("agent_permission_request", {"agentId": agent_id, "request": request})
        await self.update(agent_id)
        return permission_id

    async def resolve(self, agent_id: str, permission_id: str, behavior: str) -> None:
        """Somebody answered. The turn ends before that is told, as the real one does it."""
        agent = self.agents[agent_id]
        left = [each for each in agent["pendingPermissions"] if each["id"] != permission_id]
        if len(left) == len(agent["pendingPermissions"]):
            await self.update(agent_id)
            return
        agent["pendingPermissions"] = left
        await self.item(agent_id, {"type": "assistant_message", "text": f"It was {behavior}."})
        await self.end(agent_id, "turn_completed")
        resolution = {"behavior": behavior}
        await self.stream(agent_id, "permission_resolved", requestId=permission_id, resolution=resolution)
        told = {"agentId": agent_id, "requestId": permission_id, "resolution": resolution}
        await self.push("agent_permission_resolved", told)
        await self.update(agent_id)

    async def archive(self, agent_id: str) -> None:
        agent = self.agents[agent_id]
        if agent["archivedAt"] is None:
            if agent["status"] == "running":
                await self.end(agent_id, "turn_canceled", reason="Interrupted")
            agent["archivedAt"] = self.now()
            agent["status"] = "closed"
        for _ in range(3):
            await self.update(agent_id)

    async def delete(self, agent_id: str) -> None:
        self.agents[agent_id]["status"] = "closed"
        await self.update(agent_id)
        del self.agents[agent_id]
        await self.push("agent_deleted", {"agentId": agent_id, "requestId": "another client's"})
        await self.update(agent_id)

    def asked(self, kind: str) -> list[dict[str, Any]]:
        """The requests of one type that came."""
        return [each for each in self.requests if each["type"] == kind]

    # -- the socket --------------------------------------------------------------------------------------------

    async def _serve(self, socket: ServerConnection) -> None:
        client: Client | None = None
        try:
            hello = json.loads(await socket.recv())
            self.hellos.append(hello)
            if hello.get("type") != "hello" or not hello.get("clientId"):
                await socket.close(4002, "Invalid hello")
                return
            if not self._lets_in(socket, hello):
                await socket.close(4401, "Incorrect password" if socket.subprotocol else "Password required")
                return
            client = self.clients.setdefault(hello["clientId"], Client(hello["clientId"]))
            client.socket = socket
            info = {
                "status": "server_info",
                "serverId": self.server_id,
                "hostname": "host",
                "version": "0.1.65-beta.5",
                "features": {"providersSnapshot": True},
            }
            await self.push("status", info, client)
            await self.push("something_new", {"requestId": 7, "what": ["is", "this"]}, client)
            async for raw in socket:
                message = json.loads(raw).get("message", {})
                self.requests.append(message)
                job = asyncio.create_task(self._handle(client, message))
                self._jobs.add(job)
                job.add_done_callback(self._jobs.discard)
        except ConnectionClosed:
            pass
        finally:
            if client is not None and client.socket is socket:
                client.socket = None

    def _lets_in(self, socket: ServerConnection, hello: dict[str, Any]) -> bool:
        if self.password is None:
            return True
        auth = hello.get("auth") or {}
        credential = self.home / "local-credential"
        if auth.get("kind") == "localCredential" and credential.exists():
            return bool(auth.get("token") == credential.read_text().strip())
        return socket.subprotocol == f"paseo.bearer.{self.password}"

    async def _handle(self, client: Client, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind in self.bad.silent:
            return
        await asyncio.sleep(self.bad.slow.get(kind, 0))
        handler = getattr(self, f"_{kind}", None)
        if handler is None:
            await self._refuse(client, message, "Unknown request schema", "unknown_schema")
            return
        await handler(client, message)

    async def answer(self, client: Client, message: dict[str, Any], kind: str, **payload: Any) -> None:
        if message["type"] in self.bad.cut_off:
            self.bad.cut_off.discard(message["type"])
            await self.drop_sockets()
            return
        await self.push(kind, {"requestId": message["requestId"], **payload}, client)

    async def _refuse(self, client: Client, message: dict[str, Any], error: str, code: str = "handler_error") -> None:
        body = {"requestType": message["type"], "error": error, "code": code}
        await self.answer(client, message, "rpc_error", **body)
        await self.push("activity_log", {"id": "x", "type": "error", "content": error}, client)

    # -- requests ----------------------------------------------------------------------------------------------

    async def _fetch_agents_request(self, client: Client, message: dict[str, Any]) -> None:
        page, chosen = message.get("page", {}), message.get("filter", {})
        if None in (page, chosen) or None in page.values() or None in chosen.values() or page.get("limit", 1) > 200:
            await self._refuse(client, message, "Unknown request schema", "unknown_schema")
            return
        if "subscribe" in message:
            client.subscribed = True
        found = sorted(self.agents.values(), key=lambda a: a["updatedAt"], reverse=True)
        found = [a for a in found if chosen.get("includeArchived") or a["archivedAt"] is None]
        found = [a for a in found if a["status"] in chosen.get("statuses", [a["status"]])]
        found = [a for a in found if chosen.get("labels", {}).items() <= a["labels"].items()]
        start, limit = int(page.get("cursor", 0)), page.get("limit", 200)
        more = start + limit < len(found)
        await self.answer(
            client,
            message,
            "fetch_agents_response",
            subscriptionId="s",
            entries=[{"agent": agent, "project": {}} for agent in found[start : start + limit]],
            pageInfo={"nextCursor": str(start + limit) if more else None, "prevCursor": None, "hasMore": more},
        )

    async def _fetch_agent_request(self, client: Client, message: dict[str, Any]) -> None:
        agent = self.agents.get(message["agentId"])
        error = None if agent else f"Agent not found: {message['agentId']}"
        await self.answer(client, message, "fetch_agent_response", agent=agent, project=None, error=error)

    async def _fetch_agent_timeline_request(self, client: Client, message: dict[str, Any]) -> None:
        agent_id = message["agentId"]
        if agent_id not in self.agents:
            error = f"Agent not found: {agent_id}"
            await self.answer(client, message, "fetch_agent_timeline_response", entries=[], error=error)
            return
        rows, epoch, cursor = self.rows[agent_id], self.epochs[agent_id], message.get("cursor")
        stale = cursor is not None and cursor["epoch"] != epoch
        if cursor is not None and not stale:
            rows = [row for row in rows if row["seqEnd"] < cursor["seq"]]
        limit = message.get("limit") or len(rows)
        body = {"epoch": epoch, "reset": stale, "hasOlder": len(rows) > limit, "error": None}
        shown = rows[-limit:] if rows else []
        await self.answer(client, message, "fetch_agent_timeline_response", entries=shown, **body)

    async def _list_available_providers_request(self, client: Client, message: dict[str, Any]) -> None:
        providers = [{"provider": "mock", "available": True}, {"provider": "codex", "available": False}]
        await self.answer(client, message, "list_available_providers_response", providers=providers, error=None)

    async def _list_provider_models_request(self, client: Client, message: dict[str, Any]) -> None:
        provider = message["provider"]
        if provider != "mock":
            error = f"Unknown provider: {provider}"
            await self.answer(client, message, "list_provider_models_response", provider=provider, error=error)
            return
        models = [{"provider": "mock", "id": "ten-second-stream", "label": "Ten", "isDefault": True}, {"odd": True}]
        models[0]["thinkingOptions"] = [{"id": "low", "label": "Low"}]
        await self.answer(client, message, "list_provider_models_response", provider="mock", models=models, error=None)

    async def _create_agent_request(self, client: Client, message: dict[str, Any]) -> None:
        config = message["config"]
        for name, known, kind in (("env", self.takes_env, dict), ("worktree", self.takes_worktree, dict)):
            if known and name in message and not isinstance(message[name], kind):
                await self._refuse(client, message, "Unknown request schema", "unknown_schema")
                return
        problem = None
        if not Path(config["cwd"]).is_dir():
            problem = f"Working directory does not exist: {config['cwd']}"
        elif config["provider"] != "mock":
            problem = f"Unknown provider '{config['provider']}'. Configured providers: mock."
        if problem is not None:
            body = {"status": "agent_create_failed", "error": problem, "errorCode": "unknown"}
            await self.push("activity_log", {"id": "x", "type": "error", "content": problem}, client)
            await self.answer(client, message, "status", **body)
            return
        agent_id = self.add(
            config["title"], cwd=self.cwd_of(config["cwd"]), labels=message.get("labels", {}), status="initializing"
        )
        agent = self.agents[agent_id]
        agent["env"] = message.get("env") if self.takes_env else None
        agent["title"] = None
        await self.update(agent_id)
        agent.update(title=config["title"], status="idle")
        await self.update(agent_id)
        await self.update(agent_id)
        await self.answer(client, message, "status", status="agent_created", agentId=agent_id, agent=agent)

    async def _send_agent_message_request(self, client: Client, message: dict[str, Any]) -> None:
        behavior = message.get("activeTurnBehavior", "interrupt")
        if self.steers and behavior not in ("interrupt", "steer"):
            await self._refuse(client, message, "Unknown request schema", "unknown_schema")
            return
        agent = self.agents.get(message["agentId"])
        if agent is None:
            error = f"Agent not found: {message['agentId']}"
            await self.answer(client, message, "send_agent_message_response", accepted=False, error=error)
            return
        agent_id = agent["id"]
        if agent["status"] == "running" and self.steers and behavior == "steer":
            user = {"type": "user_message", "text": message["text"], "messageId": message.get("messageId")}
            await self.item(agent_id, user)
            await self.answer(client, message, "send_agent_message_response", accepted=True, error=None)
            return
        for permission in agent["pendingPermissions"]:
            told = {"requestId": permission["id"], "resolution": {"behavior": "deny", "message": "Interrupted"}}
            await self.push("agent_permission_resolved", {"agentId": agent_id, **told})
        agent["pendingPermissions"] = []
        if agent["status"] == "running":
            user = {"type": "user_message", "text": message["text"], "messageId": message.get("messageId")}
            await self.item(agent_id, user)
            await self.item(agent_id, {"type": "assistant_message", "text": "the rest of the old turn"})
            await self.stream(agent_id, "turn_canceled", reason="Interrupted")
            await self.answer(client, message, "send_agent_message_response", accepted=True, error=None)
            await self.begin(agent_id, message["text"], noted=True)
            return
        await self.answer(client, message, "send_agent_message_response", accepted=True, error=None)
        await self.begin(agent_id, message["text"], message.get("messageId"))

    async def _wait_for_finish_request(self, client: Client, message: dict[str, Any]) -> None:
        agent_id = message["agentId"]
        agent = self.agents.get(agent_id)
        if agent is None:
            body = {"status": "error", "final": None, "error": f"Agent not found: {agent_id}", "lastMessage": None}
            await self.answer(client, message, "wait_for_finish_response", **body)
        elif agent["pendingPermissions"]:
            await self._answer_wait(client, message["requestId"], agent_id, "permission")
        elif agent["status"] != "running" or agent.get("noTurn"):
            await self._answer_wait(client, message["requestId"], agent_id, "idle")
        else:
            self._waits.append((client, message["requestId"], agent_id))
            await asyncio.sleep(message.get("timeoutMs", 3_600_000) / 1000)
            if (client, message["requestId"], agent_id) in self._waits:
                self._waits.remove((client, message["requestId"], agent_id))
                await self._answer_wait(client, message["requestId"], agent_id, "timeout")

    async def _answer_wait(self, client: Client, request_id: str, agent_id: str, status: str) -> None:
        body = {"status": status, "final": self.agents[agent_id], "error": None, "lastMessage": None}
        await self.push("wait_for_finish_response", {"requestId": request_id, **body}, client)

    async def _agent_permission_response(self, client: Client, message: dict[str, Any]) -> None:
        if message["agentId"] not in self.agents:
            await self._refuse(client, message, f"Request failed: Unknown agent '{message['agentId']}'")
            return
        await self.resolve(message["agentId"], message["requestId"], message["response"]["behavior"])

    async def _archive_agent_request(self, client: Client, message: dict[str, Any]) -> None:
        if message["agentId"] not in self.agents:
            await self._refuse(client, message, f"Request failed: Agent not found: {message['agentId']}")
            return
        await self.archive(message["agentId"])
        at = self.agents[message["agentId"]]["archivedAt"]
        await self.answer(client, message, "agent_archived", agentId=message["agentId"], archivedAt=at)
