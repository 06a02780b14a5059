"""A bridge in this process, with a real store, and a host that calls its tools through an MCP server's session."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pacerelled.agent import widgets
from pacerelled.agent.model import Reply, Request, Session
from pacerelled.errors import NotPossible, PacerelledError, UnknownMessage
from pacerelled.mcp.arguments import check
from pacerelled.mcp.paseo.schemas import TOOLS
from pacerelled.mcp.paseo.tools import RUN, Call
from pacerelled.paseo.bridge import Bridge
from pacerelled.paseo.guard import Scope
from pacerelled.paseo.settings import Account, PaseoSettings
from pacerelled.store import events
from pacerelled.store.database import Store
from tests.paseo.scripted import ScriptedPaseo, until

KEY = bytes(range(32))
ALL = Scope()
AT = "2030-01-01T00:00:00Z"


class PhoneDouble:
    """A person's phone, reached through nobody: what was shown there, and what was answered."""

    def __init__(self) -> None:
        self.shown: dict[str, Reply] = {}
        self.changes: list[tuple[str, dict[str, Any], str | None]] = []
        self.responses: list[Request] = []
        self.unreachable = False

    async def private_conversation(self, agent_id: str | None, conversation_id: str) -> str:
        if conversation_id.startswith("group"):
            raise NotPossible("This is a group", hint="Choose another.")
        return "a1"

    async def conversation_of(self, agent_id: str, message_id: str) -> str:
        if not message_id.startswith("m"):
            raise UnknownMessage("There is no such request", hint="Use a message_id.")
        return "c1"

    async def ask(
        self, agent_id: str, widget: dict[str, Any], *, conversation_id: str, source_message_id: str | None, key: str
    ) -> Reply:
        if self.unreachable:
            raise NotPossible("There is no session", hint="They have to write first.")
        widgets.parsed(widget)
        if key not in self.shown:
            number = len(self.shown) + 1
            self.shown[key] = Reply(
                number, f"r{number}", conversation_id, "ada", "phone", "widget", "", "queued", AT, widget=widget
            )
        return self.shown[key]

    async def change(
        self, agent_id: str, message_id: str, *, spec: dict[str, Any], expires_at: str | None, key: str
    ) -> None:
        self.changes.append((message_id, spec, expires_at))

    async def answers(self, agent_id: str, conversation_id: str, message_id: str) -> list[Request]:
        return [each for each in self.responses if each.widget and each.widget["message_id"] == message_id]

    def answer(self, reply: Reply, value: Any, **more: Any) -> None:
        number = len(self.responses) + 1
        fields: dict[str, Any] = {
            "sender": "ada",
            "device_id": "phone",
            "group": False,
            "widget_response": {"value": value, "cancelled": False},
            "widget": {"message_id": reply.message_id, "late": False},
        }
        self.responses.append(
            Request(
                seq=number,
                message_id=f"a{number}",
                conversation_id=reply.conversation_id,
                kind="widget_response",
                text="",
                received_at=AT,
                **fields | more,
            )
        )


class Scene:
    def __init__(self, folder: Path, paseo: ScriptedPaseo, **settings: Any) -> None:
        self.folder = folder
        self.paseo = paseo
        self.code = folder / "code"
        self.code.mkdir(exist_ok=True)
        defaults: dict[str, Any] = {
            "daemon_url": paseo.url,
            "home": paseo.home,
            "allowed_roots": (self.code,),
            "default_provider": "mock/ten-second-stream",
            "accounts": (Account("work", folder / "claude-work", "The office's"), Account("home", folder / "home")),
        }
        self.settings = PaseoSettings(**defaults | settings)
        self.calls = 0
        self.session = Session(id="session-1", transport="stdio")
        self.changed: list[set[str]] = []
        self.phone = PhoneDouble()
        self.store: Store
        self.bridge: Bridge

    async def start(self, *, connected: bool = True) -> None:
        path = self.folder / "store.db"
        self.store = await Store.open(path, KEY, new=not path.exists())
        self.bridge = Bridge(self.store, self.settings, {}, self.phone, on_change=self.changed.append)
        self.bridge.start()
        if connected:
            await self.connected()

    async def stop(self) -> None:
        await self.bridge.stop()
        await self.store.close()

    async def connected(self) -> None:
        await until(lambda: self.bridge.status()["connection"] == "connected", "the connection")

    async def tool(self, name: str, /, *, scope: Scope = ALL, call_id: int | None = None, **arguments: Any) -> Any:
        """What the tool returns to a host. Raises PacerelledError."""
        self.calls += 1
        context: Any = SimpleNamespace(request_id=call_id if call_id is not None else self.calls)
        spec = TOOLS[name]
        result = await RUN[name](Call(self.bridge, scope, self.session, lambda: "a1", context), check(spec, arguments))
        for field in (spec.tool.output_schema or {}).get("required", ()):
            assert field in result
        return result

    async def refused(self, name: str, /, **arguments: Any) -> PacerelledError:
        """The error in which a call ends."""
        with pytest.raises(PacerelledError) as caught:
            await self.tool(name, **arguments)
        assert caught.value.hint or caught.value.code == "paseo_refused"
        return caught.value

    async def log(self) -> list[dict[str, Any]]:
        """Every event that was written."""
        page = await self.store.run(lambda tx: events.page(tx, events.START, lambda event: True, 10_000))
        return page.events

    async def told(self, agent_id: str) -> list[str]:
        """What was told of an agent, in short."""
        found = []
        for event in await self.log():
            if event["data"]["agent_id"] == agent_id:
                kind = event["type"].removeprefix("agent.")
                extra = event["data"].get("outcome") or event["data"].get("resolution")
                found.append(f"{kind} {extra}" if extra else kind)
        return found

    async def until_told(self, agent_id: str, *wanted: str) -> list[str]:
        async def check() -> list[str]:
            told = await self.told(agent_id)
            return told if told[-len(wanted) :] == list(wanted) else []

        found: list[str] = await until(check, f"{wanted}")
        return found
