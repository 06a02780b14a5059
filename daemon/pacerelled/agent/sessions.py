"""Sessions and the life of their claims.

A session is known by the id in its hello and survives reconnections. Its claims end when the request is processed,
when its process is gone (at once), when its connection stays away longer than the grace time, or when it has been
silent for the lease time.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import psutil

from pacerelled.errors import StoreError, StoreUnavailable
from pacerelled.store import events, requests
from pacerelled.store.database import Store, Tx

from .model import Session

log = logging.getLogger(__name__)

RELEASE_RETRY = 2.0  # seconds, while the store cannot be written
LEASE_CHECK = 30.0  # seconds between looks at silent sessions, at most; each wakes an idle daemon
LOOKS = (0.05, 0.2, 0.5, 1.0)  # seconds: whether the process of a lost connection is gone


class Sessions:
    """`on_released(agent ids)`: claims ended, requests of these agents can be handed out again."""

    def __init__(self, store: Store, *, lease: float, grace: float, on_released: Callable[[set[str]], None]) -> None:
        self._store = store
        self._lease = lease
        self._grace = grace
        self._on_released = on_released
        self._sessions: dict[str, Session] = {}
        self._started: dict[str, float | None] = {}  # start time of a session's process: pids are used again
        self._lapses: dict[str, asyncio.Task[None]] = {}
        self._saved: set[str] = set()
        self._watch: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Claims from before a restart: their sessions have the grace time to come back."""
        for session_id, label, pid, started in await self._store.run(requests.claiming_sessions):
            transport: Literal["stdio", "http"] = "http" if pid is None else "stdio"  # only shims tell a pid
            session = Session(session_id, transport, pid=pid, host=label, connected=False)
            session.last_active = time.monotonic()
            self._sessions[session_id] = session
            self._started[session_id] = started
            self._lapse(session)
        self._watch = asyncio.create_task(self._watch_leases(), name="leases")

    async def stop(self) -> None:
        tasks = [*self._lapses.values(), *([self._watch] if self._watch else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def open(self, session: Session) -> Session:
        """Registers a connection; a known id is taken up again, with its claims."""
        now = time.monotonic()
        if (task := self._lapses.pop(session.id, None)) is not None:
            task.cancel()
        session.since = session.last_active = now
        session.connected = True
        self._sessions[session.id] = session
        self._started[session.id] = _start_time(session.pid)
        self._saved.discard(session.id)
        return session

    def close(self, session: Session) -> None:
        """The connection ended."""
        if self._sessions.get(session.id) is not session:
            return  # taken over by a newer connection of the same session
        session.connected = False
        self._lapse(session)

    def get(self, session_id: str) -> Session | None:
        return self._sessions.get(session_id)

    def all(self) -> list[Session]:
        """Also those whose connection is lost and may come back."""
        return list(self._sessions.values())

    def connected(self) -> list[Session]:
        return [s for s in self._sessions.values() if s.connected]

    def remember(self, tx: Tx, session: Session) -> None:
        """Writes who a session is, once, before it claims something: its label is shown with the claim."""
        if session.id not in self._saved:
            requests.save_session(tx, session.id, session.label, session.pid, self._started.get(session.id))
            tx.after_commit(lambda: self._saved.add(session.id))

    def whereabouts(self, session_id: str) -> str:
        """Whether a session is there, for whoever wants what it holds."""
        session = self._sessions.get(session_id)
        if session is None or not session.connected:
            return "not connected now"
        idle = 0.0 if session.waiting else time.monotonic() - session.last_active
        return f"last active {idle / 60:.0f} min ago" if idle >= 60 else "active in the last minute"

    def describe(self, session: Session, claims: int) -> dict[str, Any]:
        """The JSON shape of a host."""
        now = time.monotonic()
        return {
            "session": session.id,
            "label": session.label,
            "client": session.client,
            "client_version": session.client_version,
            "host": session.host,
            "pid": session.pid,
            "shim": session.shim,
            "cwd": session.cwd,
            "agent_id": session.agent_id,
            "transport": session.transport,
            "connected": session.connected,
            "connected_s": round(now - session.since, 1) if session.connected else None,
            "idle_s": 0.0 if session.waiting else round(now - session.last_active, 1),
            "waiting": bool(session.waiting),
            "channel": session.channel,
            "claims": claims,
        }

    def _lapse(self, session: Session) -> None:
        self._lapses[session.id] = asyncio.create_task(self._let_go(session), name="claims-grace")

    async def _let_go(self, session: Session) -> None:
        deadline = time.monotonic() + self._grace
        looks = iter(LOOKS)
        while (left := deadline - time.monotonic()) > 0 and not self._gone(session):  # noqa: ASYNC110 - no event tells of another process's end
            await asyncio.sleep(min(left, next(looks, 2.0)))
        del self._lapses[session.id]  # from here on it happens, also if the session comes back in this moment
        while True:
            try:
                await self._release(session)
                break
            except StoreUnavailable as error:
                log.error("Claims of %s could not be released: %s", session.label, error.message)
                await asyncio.sleep(RELEASE_RETRY)
        if self._sessions.get(session.id) is session:
            del self._sessions[session.id], self._started[session.id]

    async def _release(self, session: Session) -> None:
        """Ends a session's claims. Raises StoreError."""

        def job(tx: Tx) -> set[str]:
            released = requests.release_session(tx, session.id)
            for agent_id, seq in released:
                events.add(tx, agent_id, "claim.released", **requests.ids(tx, seq))
            return {agent_id for agent_id, _ in released}

        agents = await self._store.run(job)
        self._saved.discard(session.id)
        if agents:
            log.info("Requests of %s can be handed out again", session.label)
            self._on_released(agents)

    def _gone(self, session: Session) -> bool:
        """Whether the session's process has ended: then it cannot come back."""
        if session.pid is None:
            return session.transport == "stdio"
        started = self._started.get(session.id)
        found = _start_time(session.pid)
        return found is None or (started is not None and abs(found - started) > 1.0)

    async def _watch_leases(self) -> None:
        while True:
            await asyncio.sleep(min(LEASE_CHECK, self._lease / 4))
            limit = time.monotonic() - self._lease
            for session in self.connected():
                if not session.waiting and session.last_active < limit:
                    try:
                        await self._release(session)
                    except StoreError:
                        break
                    session.last_active = time.monotonic()  # silent since its claims ended: look again in a lease


def host_name(shim: int) -> str | None:
    """The name of the process that started this one, for a shim that cannot find it out itself (on macOS)."""
    try:
        parent = psutil.Process(shim).parent()
        return parent.name() if parent is not None else None
    except psutil.Error:
        return None


def _start_time(pid: int | None) -> float | None:
    """When a process started, in seconds that no setting of the clock moves; None if there is none or it is a zombie.

    Linux counts from the boot and psutil adds that moment, which moves with the clock; macOS notes the time once.
    """
    if pid is None:
        return None
    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:
            return None
        return float(process.create_time() - (psutil.boot_time() if sys.platform == "linux" else 0.0))
    except psutil.Error:
        return None
