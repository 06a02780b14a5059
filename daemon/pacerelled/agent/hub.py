"""Every agent of this daemon, its sessions and events (`api.HubApi`)."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pacerelled import __version__
from pacerelled.backup.making import Backup, make_backup
from pacerelled.config import Settings, checked_url
from pacerelled.errors import (
    AgentExists,
    ConfigError,
    InvalidArgument,
    NoAgent,
    NotPossible,
    StoreError,
    UnknownAgent,
    place_of,
)
from pacerelled.store import agents as agent_rows
from pacerelled.store import events, requests
from pacerelled.store.agents import AgentRow
from pacerelled.store.custody import TokenSource, token_entry, token_from_outside
from pacerelled.store.database import Store, Tx, now
from pacerelled.store.keyring import Keyring

from .access import AccessTokens
from .agent import Agent
from .asking import Asking
from .event_log import EventLog
from .folders import Folders
from .keys import Keys
from .logins import Logins
from .model import HttpState, Session
from .sent import fail_unsent
from .sessions import Sessions
from .work import in_thread

if TYPE_CHECKING:
    from pacerelled.paseo.bridge import Bridge

log = logging.getLogger(__name__)

MAX_AGENTS = 64
STATE = ("agent_id", "connection", "login", "pending", "claimed", "queued", "uncertain", "quarantined")
AGENT_ID = re.compile(r"[!-.0-9;-~]{1,200}")  # printable ASCII but `/` and `:`, which paths and Signal names join with


class Hub:
    """Implements `api.HubApi`."""

    def __init__(
        self, store: Store, settings: Settings, *, keyring: Keyring, env: Mapping[str, str], state: Path
    ) -> None:
        self._store = store
        self._settings = settings
        self._keyring = keyring
        self._env = env
        self._state = state
        self._folders = Folders(settings.files_in, settings.files_out, state)
        self._agents: dict[str, Agent] = {}
        self._subscribers: list[Callable[[str, str], None]] = []
        self.asking = Asking(store, self.agent)
        self.event_log = EventLog(store, state=self._state_now)
        self._changing = asyncio.Lock()  # adding and removing agents, one at a time
        self._started = time.monotonic()
        self._started_at = now()
        self._sessions = Sessions(
            store, lease=settings.claim_lease, grace=settings.claim_grace, on_released=self._released
        )
        self._logins = Logins(self.agents, self._find_token)
        self.keys = Keys(state, keyring, agent=self.agent, agents=self.agents, log_out=self._logins.log_out)
        self.access = AccessTokens(store, check_agent=self.agent)
        self.http: HttpState | None = None
        self.paseo: Bridge | None = None
        self.warned_by: list[Callable[[], Awaitable[list[dict[str, Any]]]]] = []
        """Who else has something for the warnings in the status: what is not well and stops nothing."""

    async def start(self) -> None:
        """Starts every agent the store knows. Raises StoreError."""
        self.event_log.start()
        await self._sessions.start()
        await self.access.start()
        await in_thread(self._folders.clean)
        for row in await self._store.run(agent_rows.list_agents):
            await self._start_agent(row, None)
        if (agent_id := self._env.get("PACERELLE_AGENT_ID")) and agent_id not in self._agents:
            await self.add_agent(agent_id)
        self._logins.start()

    async def stop(self) -> None:
        await self._logins.stop()
        for ended in await asyncio.gather(*(a.stop() for a in self._agents.values()), return_exceptions=True):
            if isinstance(ended, Exception):
                log.error("An agent did not stop as it should: %s", place_of(ended))
        await self._sessions.stop()
        await self.access.stop()
        await self.event_log.stop()

    # -- sessions ----------------------------------------------------------------------------------------------

    def open_session(self, session: Session) -> Session:
        self._notify("", "status")
        if session.transport != "control":
            self.event_log.note(session.agent_id, "host.attached", **_host(session))
        return self._sessions.open(session)

    def close_session(self, session: Session) -> None:
        self._sessions.close(session)
        if session.transport != "control":
            self.event_log.note(session.agent_id, "host.detached", **_host(session))
        self._notify("", "status")

    def sessions(self) -> list[dict[str, Any]]:
        return [self._sessions.describe(s, 0) for s in self._sessions.connected() if s.transport != "control"]

    def agent_for(self, session: Session) -> Agent:
        return self.agent(session.agent_id)

    # -- agents ------------------------------------------------------------------------------------------------

    def agents(self) -> list[Agent]:
        return list(self._agents.values())

    def agent(self, agent_id: str | None) -> Agent:
        if agent_id not in (None, "", "-"):
            found = self._agents.get(str(agent_id))
            if found is None:
                raise UnknownAgent(
                    f"There is no agent {agent_id} here",
                    hint="`pacerelle agent list` shows the agents; `pacerelle agent add` adds one.",
                )
            return found
        if not self._agents:
            raise NoAgent(
                "The daemon has no agent yet",
                hint="Run `pacerelle agent add AGENT_ID`, or set PACERELLE_AGENT_ID and PACERELLE_AGENT_TOKEN in the"
                " host's configuration.",
            )
        if len(self._agents) > 1:
            raise NoAgent(
                f"The daemon has several agents ({', '.join(self._agents)})",
                hint="Say which one: set PACERELLE_AGENT_ID in the host's configuration, or name it.",
            )
        return next(iter(self._agents.values()))

    async def add_agent(
        self,
        agent_id: str,
        *,
        token: str | None = None,
        base_url: str | None = None,
        ws_url: str | None = None,
        e2ee: bool = True,
    ) -> Agent:
        """Known with the same settings: takes the token. What is not given does not count as different."""
        if not AGENT_ID.fullmatch(agent_id):
            raise InvalidArgument(
                f"{agent_id[:40]!a} is no agent id", argument="agent_id", hint="Copy it from Pacerelle as it is."
            )
        try:
            base_url = checked_url(base_url, "`base_url`", ("http", "https")) if base_url else None
            ws_url = checked_url(ws_url, "`ws_url`", ("ws", "wss")) if ws_url else None
        except ConfigError as error:
            raise InvalidArgument(error.message, argument=error.message.split("`")[1], hint=error.hint) from error
        async with self._changing:
            known = self._agents.get(agent_id)
            if known is not None:
                row = known.row
                for name, wanted, has in (("base_url", base_url, row.base_url), ("ws_url", ws_url, row.ws_url)):
                    if wanted is not None and wanted != has:
                        raise AgentExists(
                            f"Agent {agent_id} exists here with another {name}: {has}",
                            hint="Use the same address everywhere, or `pacerelle agent remove` it first.",
                        )
                if e2ee != row.e2ee:
                    raise AgentExists(
                        f"Agent {agent_id} exists here {'with' if row.e2ee else 'without'} end-to-end encryption",
                        hint="Use --no-e2ee everywhere or nowhere, or `pacerelle agent remove` it first.",
                    )
                if token:
                    known.set_token(token, "host")
                return known
            if len(self._agents) >= MAX_AGENTS:
                raise NotPossible(f"There are {MAX_AGENTS} agents already", hint="Remove one you do not use.")
            row = AgentRow(
                agent_id,
                base_url or self._settings.base_url,
                ws_url or (self._settings.ws_url if base_url is None else None),
                e2ee,
            )

            def save(tx: Tx) -> None:
                agent_rows.save_agent(tx, row)
                events.add(tx, agent_id, "agent.added")

            await self._store.run(save)
            return await self._start_agent(row, token)

    async def remove_agent(self, agent_id: str, *, purge: bool = False) -> None:
        async with self._changing:
            agent = self.agent(agent_id)
            del self._agents[agent.agent_id]
            await agent.stop()

            def job(tx: Tx) -> None:
                fail_unsent(tx, agent.agent_id, "the agent was removed before this was sent")
                agent_rows.remove_agent(tx, agent.agent_id, purge=purge)
                events.add(tx, agent.agent_id, "agent.removed")

            try:
                await self._store.run(job)
            except StoreError:
                await self._start_agent(agent.row, agent.token)  # it is still there, and comes back with the next start
                raise
            await self._keyring.delete(token_entry(agent.agent_id))
        self._notify(agent.agent_id, "status")

    async def set_token(self, agent_id: str, token: str) -> None:
        await self.keys.keep(agent_id, token)

    def backup(self, passphrase: str) -> AbstractAsyncContextManager[Backup]:
        return make_backup(self._store, self._state / "config.toml", passphrase)

    async def _start_agent(self, row: AgentRow, token: str | None) -> Agent:
        agent_id = row.agent_id
        agent = Agent(
            row,
            store=self._store,
            sessions=self._sessions,
            settings=self._settings,
            folders=self._folders,
            notify=lambda topic: self._notify(agent_id, topic),
            note=lambda type_, **data: self.event_log.note(agent_id, type_, **data),
        )
        if token:
            agent.set_token(token, "host")
        elif found := await self._find_token(agent_id):
            agent.set_token(*found)
        try:
            await agent.start()
        except BaseException:
            await agent.stop()
            raise
        self._agents[agent_id] = agent
        return agent

    async def _find_token(self, agent_id: str) -> tuple[str, TokenSource] | None:
        return await token_from_outside(agent_id, keyring=self._keyring, env=self._env)

    # -- what happens ------------------------------------------------------------------------------------------

    def subscribe(self, callback: Callable[[str, str], None]) -> Callable[[], None]:
        self._subscribers.append(callback)

        def end() -> None:
            if callback in self._subscribers:
                self._subscribers.remove(callback)

        return end

    async def status(self) -> dict[str, Any]:
        agents = [await agent.status() for agent in self._agents.values()]
        problems = [problem for agent in agents for problem in agent.pop("problems")]
        if not agents:
            problems.append(
                {"code": "no_agent", "message": "There is no agent yet", "hint": "Run `pacerelle agent add AGENT_ID`."}
            )
        if self.http is not None and self.http.problem is not None:
            problems.append(
                {
                    "code": "http",
                    "message": self.http.problem,
                    "hint": "Choose another `http_port` in config.toml and restart the daemon, or end what is there;"
                    " it is tried again.",
                }
            )
        for agent in agents:
            agent.pop("uncertain_sends")
        return {
            "version": 1,
            "daemon": {
                "version": __version__,
                "pid": os.getpid(),
                "uptime_s": round(time.monotonic() - self._started, 1),
                "started_at": self._started_at,
                "state_dir": str(self._state),
            },
            "http": {"on": self.http is not None, **asdict(self.http or HttpState())},
            "health": {"ok": not problems, "problems": problems, "warnings": await self._warnings()},
            "agents": agents,
            "hosts": await self.hosts(),
        }

    async def _warnings(self) -> list[dict[str, Any]]:
        return self.keys.warnings() + [warning for ask in self.warned_by for warning in await ask()]

    async def hosts(self) -> list[dict[str, Any]]:
        """The connected hosts with their claims counted, and those that are away and hold some."""
        counts = await self._store.run(requests.claim_counts)
        shown = (s for s in self._sessions.all() if s.transport != "control" and (s.connected or s.id in counts))
        return [self._sessions.describe(session, counts.get(session.id, 0)) for session in shown]

    async def _state_now(self) -> dict[str, Any]:
        """What somebody who missed events needs to know instead."""
        status = await self.status()
        return {
            "agents": [{name: agent[name] for name in STATE} for agent in status["agents"]],
            "hosts": status["hosts"],
        }

    def _released(self, agent_ids: set[str]) -> None:
        for agent_id in agent_ids:
            if (agent := self._agents.get(agent_id)) is not None:
                agent.look_again()

    def coding_agents_changed(self, agent_ids: Collection[str]) -> None:
        """Something happened to coding agents; without ids, to the connection to them. Tells subscribers."""
        for agent_id in agent_ids or ("",):
            self._notify(agent_id, "coding")

    def _notify(self, agent_id: str, topic: str) -> None:
        for callback in list(self._subscribers):
            callback(agent_id, topic)


def _host(session: Session) -> dict[str, Any]:
    """What names a host in an event."""
    return {"session": session.id, "transport": session.transport, "host": session.host, "pid": session.pid}
