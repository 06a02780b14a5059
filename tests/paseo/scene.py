"""A bridge in this process, with a real store, and a host that calls its tools through an MCP server's session."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pacerelled.agent.model import Session
from pacerelled.errors import PacerelledError
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
        self.store: Store
        self.bridge: Bridge

    async def start(self, *, connected: bool = True) -> None:
        path = self.folder / "store.db"
        self.store = await Store.open(path, KEY, new=not path.exists())
        self.bridge = Bridge(self.store, self.settings, {}, on_change=self.changed.append)
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
        result = await RUN[name](Call(self.bridge, scope, self.session, context), check(spec, arguments))
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
