"""Agents whose token is missing or refused: a new one may turn up where tokens are kept, without anybody telling us."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

from pacerelled.errors import PacerelledError, place_of
from pacerelled.store.custody import TokenSource

from .agent import Agent

log = logging.getLogger(__name__)

LOOK = 15.0  # seconds


class Logins:
    """`find(agent_id)` looks for a token in the systemd credentials, the environment and the keyring."""

    def __init__(
        self,
        agents: Callable[[], Iterable[Agent]],
        find: Callable[[str], Awaitable[tuple[str, TokenSource] | None]],
    ) -> None:
        self._agents = agents
        self._find = find
        self._seen: dict[str, str] = {}  # agent -> what was found there last; it is given once
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="logins")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def log_out(self, agent_id: str) -> TokenSource | None:
        """Takes no notice of a token that is there now; returns where that is."""
        found = await self._find(agent_id)
        if found is None:
            return None
        self._seen[agent_id], source = found
        return source

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            for agent in list(self._agents()):
                if agent.login != "ok":
                    try:
                        await self._look(agent)
                    except PacerelledError as error:
                        log.warning("Looking for a token failed: %s", error.message)
                    except Exception as error:
                        log.error("Looking for a token failed: %s", place_of(error))

    async def _look(self, agent: Agent) -> None:
        found = await self._find(agent.agent_id)
        if found is not None and found[0] not in (agent.token, self._seen.get(agent.agent_id)):
            self._seen[agent.agent_id] = found[0]
            agent.set_token(*found)
