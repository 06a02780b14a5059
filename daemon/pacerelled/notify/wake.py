"""Wake: when a request waits and no session listens, a command of the user's is started. Off until somebody sets it.

One at a time for an agent, with a longest running time, a pause between runs and a number of runs a day.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pacerelled.agent.event_log import EventLog
from pacerelled.errors import InvalidArgument, NotPossible, StoreError, UnknownMessage, place_of
from pacerelled.files import private_directory
from pacerelled.store import events, wakes
from pacerelled.store.database import Store, Tx
from pacerelled.store.wakes import RunRow, WakeRow

from . import command, outside

log = logging.getLogger(__name__)

POLL = 2.0  # seconds between looks, while a request waits
RETRY = 2.0  # seconds, while the store cannot be used
MAX_COMMAND = 100  # words
DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Durations are seconds."""

    after_s: float = 30.0  # that a request waits while nobody listens
    max_s: float = 1800.0  # that a run may take
    cooldown_s: float = 60.0  # from the end of a run to the next
    per_day: int = 20


@dataclass(slots=True)
class _Watch:
    """One agent's task and what it knows."""

    changed: asyncio.Event = field(default_factory=asyncio.Event)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    busy: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_end: float | None = None  # monotonic
    limited_on: int | None = None  # the day on which it was said that there were enough
    task: asyncio.Task[None] | None = None


class Wake:
    """`hosts()` are the attached hosts as status shows them; `knows(agent id)` whether there is such an agent."""

    def __init__(
        self,
        store: Store,
        event_log: EventLog,
        *,
        hosts: Callable[[], list[dict[str, Any]]],
        knows: Callable[[str], object],
        env: Mapping[str, str],
        state: Path,
        ids: Mapping[str, str],
    ) -> None:
        """`ids`: what a command needs to find this daemon. `knows` raises UnknownAgent."""
        self._store = store
        self._log = event_log
        self._hosts = hosts
        self._knows = knows
        self._env = env
        self._folder = state / "wake"
        self._ids = ids
        self._watches: dict[str, _Watch] = {}
        self._tests: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Ends what a daemon that was killed left running. Raises StoreError."""
        for run in await self._store.run(wakes.unended):
            await asyncio.to_thread(command.sweep, run.id)
            await self._store.run(lambda tx, run=run: _ended(tx, run.id, run.agent_id, command.Ended("lost")))  # type: ignore[misc]
        for row in await self._store.run(wakes.select):
            self._watch(row.agent_id)

    async def stop(self) -> None:
        """Ends what runs."""
        for watch in self._watches.values():
            watch.stop.set()
        tasks = [watch.task for watch in self._watches.values() if watch.task] + list(self._tests)
        for watch in self._watches.values():
            if watch.task is not None and not watch.busy.locked():
                watch.task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- what a person does ------------------------------------------------------------------------------------

    async def set(
        self, agent_id: str, argv: list[str], limits: Limits, *, cwd: str | None, path: str | None
    ) -> dict[str, Any]:
        """Sets an agent's command, and turns it on. Raises InvalidArgument, UnknownAgent."""
        self._knows(agent_id)
        if not 0 < len(argv) <= MAX_COMMAND or not argv[0] or any("\0" in word for word in argv):
            raise InvalidArgument(
                f"A command has 1 to {MAX_COMMAND} words", argument="command", hint="PROGRAM ARGUMENT…"
            )
        if not os.path.isabs(argv[0]):
            raise InvalidArgument(
                "The program must be a whole path", argument="command", hint="`command -v PROGRAM` shows it."
            )
        if cwd is not None and not os.path.isdir(cwd):
            raise InvalidArgument("`cwd` is no folder", argument="cwd", hint="Give the whole path of a folder.")
        row = WakeRow(
            agent_id, json.dumps(argv), cwd, path, 1, limits.after_s, limits.max_s, limits.cooldown_s, limits.per_day
        )
        await self._store.run(lambda tx: wakes.save(tx, row))
        self._watch(agent_id).changed.set()
        return _shown(row)

    async def show(self, agent_id: str) -> dict[str, Any] | None:
        self._knows(agent_id)
        row = await self._store.run(lambda tx: wakes.find(tx, agent_id))
        return _shown(row) if row else None

    async def turn(self, agent_id: str, *, on: bool) -> dict[str, Any]:
        """Off: what runs is not ended, and nothing is started. Raises NotPossible if nothing is set."""

        def job(tx: Tx) -> WakeRow:
            _set_one(tx, agent_id)
            wakes.set_enabled(tx, agent_id, on)
            return _set_one(tx, agent_id)

        row = await self._store.run(job)
        self._watch(agent_id).changed.set()
        return _shown(row)

    async def remove(self, agent_id: str) -> None:
        await self._store.run(lambda tx: wakes.delete(tx, agent_id))
        if (watch := self._watches.get(agent_id)) is not None:
            watch.changed.set()

    async def test(self, agent_id: str, *, wait: float) -> dict[str, Any]:
        """Starts the command now, whatever waits; returns the run as it stands after `wait` seconds.

        It counts neither for the day nor for the pause. Raises NotPossible while one runs.
        """
        row = await self._store.run(lambda tx: _set_one(tx, agent_id))
        watch = self._watch(agent_id)
        if watch.busy.locked():
            raise NotPossible("The command is running already", hint="`pacerelle wake log` shows it.")
        run_id = _new_id()
        task = asyncio.create_task(self._run(watch, row, run_id, "test", None), name="wake-test")
        self._tests.add(task)
        task.add_done_callback(self._tests.discard)
        await asyncio.wait([task], timeout=wait)
        return await self.run(agent_id, run_id)

    async def runs(self, agent_id: str, limit: int) -> list[dict[str, Any]]:
        self._knows(agent_id)
        return [_run_shown(row) for row in await self._store.run(lambda tx: wakes.runs(tx, agent_id, limit))]

    async def run(self, agent_id: str, run_id: str) -> dict[str, Any]:
        """A run with the beginning of its output. Raises UnknownMessage."""
        row = await self._store.run(lambda tx: wakes.run(tx, run_id))
        if row is None or row.agent_id != agent_id:
            raise UnknownMessage(f"There is no run {run_id}", hint="`pacerelle wake log` lists them.")
        return {**_run_shown(row), "output": await asyncio.to_thread(self._output, run_id)}

    # -- watching ----------------------------------------------------------------------------------------------

    def _watch(self, agent_id: str) -> _Watch:
        watch = self._watches.setdefault(agent_id, _Watch())
        if watch.task is None or watch.task.done():
            watch.task = asyncio.create_task(self._keep_watching(agent_id, watch), name="wake")
        return watch

    async def _keep_watching(self, agent_id: str, watch: _Watch) -> None:
        waits_since: float | None = None
        while not watch.stop.is_set():
            try:
                news = self._log.news
                watch.changed.clear()
                row, waiting = await self._store.run(lambda tx: (wakes.find(tx, agent_id), wakes.waiting(tx, agent_id)))
                if row is None:
                    return
                pause: float | None = None
                if not row.enabled or waiting is None or not self._known(agent_id):
                    waits_since = None
                else:
                    waits_since = time.monotonic() if waits_since is None else waits_since
                    pause = self._time_left(row, watch, waits_since)
                    if pause <= 0 and await self._may_run(row, watch):
                        await self._run(watch, row, _new_id(), "request", waiting)
                        waits_since = None
                    pause = min(max(pause, 0.05), POLL) if pause > 0 else POLL
                await _any(news.wait(), watch.changed.wait(), watch.stop.wait(), timeout=pause)
            except StoreError as error:
                log.error("Waking waits: %s", error.message)
                await asyncio.sleep(RETRY)
            except Exception as error:
                log.error("Waking failed: %s", place_of(error))
                await asyncio.sleep(RETRY)

    def _time_left(self, row: WakeRow, watch: _Watch, waits_since: float) -> float:
        """Seconds until the command may start, as things are: a host that does something makes it wait anew."""
        now = time.monotonic()
        idle = min(
            (self._idle(host) for host in self._hosts() if host["agent_id"] in (None, row.agent_id)), default=DAY
        )
        ready = [row.after_s - (now - waits_since), row.after_s - idle]
        if watch.last_end is not None:
            ready.append(row.cooldown_s - (now - watch.last_end))
        return max(ready)

    @staticmethod
    def _idle(host: dict[str, Any]) -> float:
        """Seconds since a host did something; 0 while it listens."""
        if not host["connected"]:
            return DAY
        return 0.0 if host["waiting"] or host["channel"] else float(host["idle_s"] or 0.0)

    def _known(self, agent_id: str) -> bool:
        try:
            self._knows(agent_id)
        except Exception:
            return False
        return True

    async def _may_run(self, row: WakeRow, watch: _Watch) -> bool:
        """Whether today's number is not reached. It is said once a day when it is."""

        def job(tx: Tx) -> bool:
            if wakes.runs_today(tx, row.agent_id) < row.per_day:
                return True
            if watch.limited_on != tx.day:
                events.add(tx, row.agent_id, "wake.limited", per_day=row.per_day)
                watch.limited_on = tx.day
            return False

        return not watch.busy.locked() and await self._store.run(job)

    async def _run(
        self, watch: _Watch, row: WakeRow, run_id: str, reason: str, waiting: tuple[str, str] | None
    ) -> None:
        message_id, conversation_id = waiting or (None, None)

        def begin(tx: Tx) -> list[str]:
            wakes.begin(tx, run_id, row.agent_id, reason, message_id)
            about = {} if waiting is None else {"message_id": message_id, "conversation_id": conversation_id}
            events.add(tx, row.agent_id, "wake.started", run_id=run_id, reason=reason, **about)
            return wakes.forget_old(tx, row.agent_id)

        async with watch.busy:
            for old in await self._store.run(begin):
                self._file(old).unlink(missing_ok=True)
            private_directory(self._folder)
            ids = {
                **self._ids,
                command.MARK: run_id,
                "PACERELLE_AGENT_ID": row.agent_id,
                "PACERELLE_WAKE_REASON": reason,
                **({} if waiting is None else dict(zip(_IDS, waiting, strict=True))),
            }
            log.info("A wake command starts")
            ended = await command.run(
                json.loads(row.command),
                env=command.environment(self._env, row.path, ids),
                cwd=row.cwd or self._env.get("HOME") or "/",
                output=self._file(run_id),
                limit=row.max_s,
                stop=watch.stop,
                unit=outside.unit(self._env, f"pacerelle-{run_id}"),
            )
            log.info("A wake command ended: %s", ended.how)
            if reason == "request":
                watch.last_end = time.monotonic()
            await self._store.run(lambda tx: _ended(tx, run_id, row.agent_id, ended))

    def _file(self, run_id: str) -> Path:
        return self._folder / f"{run_id}.log"

    def _output(self, run_id: str) -> str:
        try:
            return self._file(run_id).read_bytes().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""


_IDS = ("PACERELLE_MESSAGE_ID", "PACERELLE_CONVERSATION_ID")


def _new_id() -> str:
    return f"run_{secrets.token_hex(8)}"


async def _any(*waits: Any, timeout: float | None) -> None:
    tasks = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def _set_one(tx: Tx, agent_id: str) -> WakeRow:
    row = wakes.find(tx, agent_id)
    if row is None:
        raise NotPossible(f"No command is set for agent {agent_id}", hint="Set one with `pacerelle wake set`.")
    return row


def _ended(tx: Tx, run_id: str, agent_id: str, ended: command.Ended) -> None:
    facts: dict[str, Any] = {"how": ended.how, "exit_code": ended.exit_code, "signal": ended.signal}
    wakes.end(tx, run_id, **facts, duration_s=ended.duration_s, output_bytes=ended.output_bytes)
    failed = ended.how in ("timeout", "could_not_start") or bool(ended.exit_code or ended.signal)
    more = {"error": ended.error} if ended.error else {}
    events.add(
        tx,
        agent_id,
        "wake.ended",
        run_id=run_id,
        **facts,
        duration_s=ended.duration_s,
        **more,
        **({"needs_attention": True} if failed and ended.how != "stopped" else {}),
    )


def _shown(row: WakeRow) -> dict[str, Any]:
    return {
        "agent_id": row.agent_id,
        "command": json.loads(row.command),
        "cwd": row.cwd,
        "on": bool(row.enabled),
        "after_s": row.after_s,
        "max_s": row.max_s,
        "cooldown_s": row.cooldown_s,
        "per_day": row.per_day,
    }


def _run_shown(row: RunRow) -> dict[str, Any]:
    return {
        "id": row.id,
        "reason": row.reason,
        "message_id": row.message_id,
        "state": "running" if row.how is None else row.how,
        "exit_code": row.exit_code,
        "signal": row.signal,
        "duration_s": row.duration_s,
        "output_bytes": row.output_bytes,
        "started_at": row.started_at,
        "ended_at": row.ended_at,
    }
