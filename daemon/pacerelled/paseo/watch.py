"""Keeps up with the daemon's agents: takes its pushes in order, looks anew after each reconnection, writes the events.

What was told of an agent is stored in the same transaction as the event that tells it, so that a restart of ours, too,
neither loses a happening nor tells it twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pacerelled.errors import PaseoError, StoreError, place_of
from pacerelled.store import events
from pacerelled.store import paseo as rows
from pacerelled.store.database import Store, Tx

from .client import PAGE, PaseoClient, listed, next_page
from .connection import PaseoConnection
from .frames import Push, text
from .model import Agent, parse_agent
from .tracker import Happening, Known, Tracker, restore

log = logging.getLogger(__name__)

SETTLES_WITHIN = 5.0  # seconds
STARTS_WITHIN = 10.0  # seconds from a message that was accepted to the turn that it starts
_TURN = ("turn_started", "turn_completed", "turn_failed", "turn_canceled")
_WANTED = ("agent_update", "agent_stream", "agent_permission_request", "agent_permission_resolved", "agent_deleted")


class Watch:
    """`on_change(agent ids)` is called after what happened to them was stored."""

    def __init__(
        self, store: Store, client: PaseoClient, *, preview_chars: int, on_change: Callable[[set[str]], None]
    ) -> None:
        self._store = store
        self._client = client
        self._preview_chars = preview_chars
        self._on_change = on_change
        self._tracker = Tracker(preview_chars=preview_chars)
        self._server_id = ""
        self._stored: dict[str, dict[str, Any] | None] = {}  # what the store has of each agent
        self._pushes: deque[Push] = deque()
        self._arrived = asyncio.Event()
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._turn = asyncio.Lock()  # who uses the tracker: the pushes, or looking anew
        self._older: tuple[int, dict[str, str]] = 0, {}  # pushes that may be older than a snapshot, and those
        self._expected: dict[str, float] = {}  # until when a turn is expected to begin, monotonic seconds
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="paseo-watch")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    # -- what is known -----------------------------------------------------------------------------------------

    def known(self, agent_id: str) -> Known | None:
        return self._tracker.agents.get(agent_id)

    def active(self) -> dict[str, Known]:
        """The agents that are not archived, by id."""
        return {agent_id: known for agent_id, known in self._tracker.agents.items() if not known.archived}

    def is_busy(self, agent_id: str) -> bool:
        """Whether a turn runs, or is about to."""
        known = self.known(agent_id)
        return (known is not None and known.running) or self._expected.get(agent_id, 0.0) > time.monotonic()

    def resolution(self, agent_id: str, request_id: str) -> tuple[str | None] | None:
        """How a permission request was answered (None: not known how); None if it was not."""
        known = self.known(agent_id)
        if known is None or request_id not in known.answered:
            return None
        return (known.answered[request_id],)

    def turns(self, agent_id: str) -> int:
        """How many turns were seen to begin."""
        known = self.known(agent_id)
        return known.turns if known is not None else 0

    def expect_turn(self, agent_id: str, turns: int) -> None:
        """A message was accepted when so many turns had begun: until its own does, the agent is not done."""
        if self.turns(agent_id) == turns:
            self._expected[agent_id] = time.monotonic() + STARTS_WITHIN
            asyncio.get_running_loop().call_later(STARTS_WITHIN + 0.01, self._announce)

    def changes(self) -> asyncio.Event:
        """Set when something changes after this call."""
        return self._changed

    async def settled(self) -> None:
        """Returns when what has come so far is stored, or after a moment, if that cannot be."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._quiet.wait(), SETTLES_WITHIN)

    # -- pushes ------------------------------------------------------------------------------------------------

    def take(self, push: Push) -> None:
        if push.type not in _WANTED:
            return
        if push.type == "agent_stream" and not self._preview_chars and _event_type(push) == "timeline":
            return  # the most frequent, and nothing happens in it
        self._pushes.append(push)
        self._quiet.clear()
        self._arrived.set()

    async def _run(self) -> None:
        while True:
            await self._arrived.wait()
            async with self._turn:
                self._arrived.clear()
                if not self._server_id:
                    continue  # what is there is not known yet
                try:
                    await self._digest()
                except (PaseoError, StoreError) as error:
                    log.warning("Paseo: events were not stored (%s); looking anew", error.code)
                    self._client.connection.renew()
                except Exception as error:
                    log.error("Paseo: %s", place_of(error))
                    self._client.connection.renew()
                if not self._pushes:
                    self._quiet.set()

    async def _digest(self) -> None:
        happenings: list[Happening] = []
        touched: set[str] = set()
        left: set[str] = set()
        while self._pushes:
            push = self._pushes.popleft()
            agent_id = _agent_id(push)
            if agent_id is None or self._is_old(push, agent_id):
                continue
            touched.add(agent_id)
            if push.type == "agent_update" and push.payload.get("kind") == "remove":
                left.add(agent_id)
            happenings += self._apply(push, agent_id)
        for agent_id in left:
            happenings += await self._look_after(agent_id)
        await self._write(happenings, touched)

    def _apply(self, push: Push, agent_id: str) -> list[Happening]:
        payload = push.payload
        match push.type:
            case "agent_update":
                agent = parse_agent(payload.get("agent"))
                return self._tracker.upsert(agent) if agent is not None else []
            case "agent_stream":
                event = payload.get("event")
                if not isinstance(event, dict):
                    return []
                begun: list[Happening] = []
                if event.get("type") in _TURN and self._expected.pop(agent_id, 0.0) and not self.is_busy(agent_id):
                    begun = self._tracker.stream(agent_id, {"type": "turn_started"})  # also of one that fails at once
                return begun + self._tracker.stream(agent_id, event, text(payload.get("timestamp")))
            case "agent_permission_request":
                return self._tracker.permission_requested(agent_id, payload.get("request"))
            case "agent_permission_resolved" if request_id := text(payload.get("requestId")):
                return self._tracker.permission_resolved(agent_id, request_id, payload.get("resolution"))
            case "agent_deleted":
                return self._tracker.gone(agent_id)
        return []

    async def _look_after(self, agent_id: str) -> list[Happening]:
        """An agent left the list: archived, deleted, or only out of the filter."""
        known = self.known(agent_id)
        if known is None or known.archived:
            return []
        agent = await self._client.agent(agent_id, now=True)
        if agent is None:
            return self._tracker.gone(agent_id)
        return self._tracker.archived(agent_id) if agent.archived_at is not None else []

    def _is_old(self, push: Push, agent_id: str) -> bool:
        """Whether a push that came before the end of looking anew tells what the snapshot had already shown."""
        count, seen = self._older
        if count == 0:
            return False
        self._older = count - 1, seen
        at = seen.get(agent_id)
        if at is None:
            return False
        if push.type == "agent_update":
            agent = parse_agent(push.payload.get("agent"))
            return agent is not None and (agent.updated_at or "") < at
        if push.type == "agent_stream":
            return (text(push.payload.get("timestamp")) or "") <= at
        return push.type == "agent_permission_request"  # the stream tells it too, with its time

    # -- looking anew ------------------------------------------------------------------------------------------

    async def look_anew(self, connection: PaseoConnection) -> None:
        """After signing in: subscribes, and makes up for what was missed. Raises PaseoError and StoreError."""
        async with self._turn:
            server = connection.server
            self._server_id = server.server_id if server is not None else ""
            stored = await self._store.run(lambda tx: rows.known_agents(tx, self._server_id))
            self._tracker = Tracker(restore((stored or {}).items()), preview_chars=self._preview_chars)
            self._stored = {agent_id: known.as_dict() for agent_id, known in self._tracker.agents.items()}
            agents = await self._fetch(connection)
            happenings: list[Happening] = []
            for agent in list(agents.values()):
                runs = agent.status == "running" and await self._client.turn_runs(agent.id)
                if agent.status == "running" and not runs:
                    agent = agents[agent.id] = await self._client.agent(agent.id, now=True) or agent
                if stored is None:
                    self._tracker.learn(agent, runs=runs)
                else:
                    happenings += self._tracker.resync(agent, runs=runs)
            missing = [i for i, known in self._tracker.agents.items() if i not in agents and not known.archived]
            for agent_id in missing:
                happenings += await self._look_after(agent_id)
            self._older = len(self._pushes), {a.id: a.updated_at for a in agents.values() if a.updated_at is not None}
            if stored is None:
                await self._store.run(lambda tx: rows.looked_at(tx, self._server_id))
            await self._write(happenings, set(self._tracker.agents) | set(missing))
            self._arrived.set()

    async def _fetch(self, connection: PaseoConnection) -> dict[str, Agent]:
        found: dict[str, Agent] = {}
        cursor: str | None = None
        while True:
            answer = await connection.ask(
                "fetch_agents_request", subscribe=None if cursor else {}, page={"limit": PAGE, "cursor": cursor}
            )
            found |= {agent.id: agent for agent in listed(answer)}
            cursor = next_page(answer)
            if cursor is None:
                return found

    async def _write(self, happenings: list[Happening], agent_ids: set[str]) -> None:
        """Also of which agents nothing happened that is kept: then there is nothing to do for them."""
        known = {agent_id: self._tracker.agents.get(agent_id) for agent_id in agent_ids}
        states = {agent_id: each.as_dict() if each is not None else None for agent_id, each in known.items()}
        states = {agent_id: state for agent_id, state in states.items() if state != self._stored.get(agent_id)}
        if not states and not happenings:
            return

        def job(tx: Tx) -> None:
            for agent_id, state in states.items():
                rows.save_agent(tx, self._server_id, agent_id, state)
            for each in happenings:
                events.add(tx, None, each.type, **each.data)

        await self._store.run(job)
        self._stored |= states
        self._announce()
        if states:
            self._on_change(set(states))

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _agent_id(push: Push) -> str | None:
    agent = push.payload.get("agent")
    return text(push.payload.get("agentId")) or (text(agent.get("id")) if isinstance(agent, dict) else None)


def _event_type(push: Push) -> str | None:
    event = push.payload.get("event")
    return text(event.get("type")) if isinstance(event, dict) else None
