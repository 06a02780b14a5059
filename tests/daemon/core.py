"""The daemon's core in this process: a real store and hub, without sockets for hosts."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pacerelled.agent.agent import Agent
from pacerelled.agent.hub import Hub
from pacerelled.agent.model import Session
from pacerelled.config import Settings
from pacerelled.store.database import Store, Tx
from pacerelled.store.keyring import Keyring

from .polling import until

KEY = bytes(range(32))
FAST: dict[str, Any] = {"reconnect_max": 0.1, "claim_grace": 30.0}


class Core:
    """`async with Core(folder) as core`; `await core.restart()` is another daemon on the same store."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder = folder
        self._settings = Settings(**FAST | settings)
        self.store: Store
        self.hub: Hub

    async def start(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        path = self._folder / "store.db"
        self.store = await Store.open(path, KEY, new=not path.exists())
        self.hub = Hub(self.store, self._settings, keyring=Keyring(False, {}), env={}, state=self._folder)
        await self.hub.start()

    async def stop(self) -> None:
        await self.hub.stop()
        await self.store.close()

    async def restart(self, before: Callable[[Tx], Any] | None = None) -> None:
        """`before` runs on the store between the two lives: what a crash would have left."""
        await self.stop()
        if before is not None:
            store = await Store.open(self._folder / "store.db", KEY, new=False)
            await store.run(before)
            await store.close()
        await self.start()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def agent(self, relay_url: str, agent_id: str = "a1", *, token: str = "token", e2ee: bool = True) -> Agent:
        return await self.hub.add_agent(agent_id, token=token, base_url=relay_url, e2ee=e2ee)

    def session(self, name: str = "host", *, pid: int | None = None, session_id: str | None = None) -> Session:
        """A host's session that is registered."""
        session = Session(session_id or uuid.uuid4().hex, "stdio", pid=pid, client=name)
        return self.hub.open_session(session)


async def pieces(*data: bytes) -> AsyncIterator[bytes]:
    """A file on its way."""
    for piece in data:
        yield piece


async def quarantined(agent: Agent, count: int) -> list[dict[str, Any]]:
    async def look() -> list[dict[str, Any]]:
        found = await agent.quarantine.select()
        return found if len(found) >= count else []

    found: list[dict[str, Any]] = await until(look, f"{count} quarantined messages")
    assert len(found) == count
    return found


async def full_disk(store: Store, *, full: bool = True) -> None:
    """No page more than there are (or as many as one likes again), as on a disk without space."""

    def limit(tx: Tx) -> None:
        pages = tx.one("PRAGMA page_count")[0]
        tx.execute(f"PRAGMA max_page_count = {pages if full else 1 << 30}")

    await store.run(limit)
