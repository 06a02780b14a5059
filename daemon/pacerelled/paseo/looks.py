"""What only looks: agents, their timelines and events, models, accounts; and waiting for an agent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pacerelled.errors import InvalidArgument, PaseoError, PaseoRefused
from pacerelled.store import events
from pacerelled.store.database import Store

from . import happened
from .client import PaseoClient
from .guard import Scope
from .happened import Wanted
from .model import Agent
from .settings import PaseoSettings
from .timeline import Entry, entries, last_message, newest, rows_since
from .tracker import Known
from .watch import Watch

ROWS = 400  # of a timeline that are fetched for a page of it
MAX_MESSAGE = 2_500  # characters at the beginning and at the end of an agent's last message


@dataclass(frozen=True, slots=True)
class Page:
    """A piece of a transcript, oldest first. `older`: the cursor of the one before it, if there is one.

    `reset`: the cursor that was asked for is of an earlier life of the agent; this is the end of what there is now.
    """

    agent: Agent
    entries: list[Entry] = field(repr=False)
    older: str | None = None
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an agent is: `state` is how its last turn ended, or `permission`, `idle`, `closed`, `timeout`."""

    state: str
    agent: Agent
    message: str | None = field(default=None, repr=False)
    error: str | None = field(default=None, repr=False)
    cursor: str = ""
    runs_again: bool = False  # another turn has begun since the one that is told


class Looks:
    def __init__(self, settings: PaseoSettings, store: Store, client: PaseoClient, watch: Watch) -> None:
        self._settings = settings
        self._store = store
        self._client = client
        self._watch = watch

    async def agents(
        self,
        scope: Scope,
        *,
        statuses: Sequence[str] = (),
        labels: Mapping[str, str] | None = None,
        include_archived: bool = False,
        start: int = 0,
        limit: int,
    ) -> tuple[list[Agent], bool, str]:
        """Newest change first, without the first `start`; whether there are more; and the cursor of what follows.

        The cursor is from before the listing: what happens meanwhile is told again rather than missed.
        """
        cursor = await self.cursor()
        wanted = {**(labels or {}), **scope.labels}
        if labels and not labels.items() <= wanted.items():
            return [], False, cursor
        found: list[Agent] = []
        skip = start
        async for agent in self._client.agents(labels=wanted, statuses=statuses, include_archived=include_archived):
            if skip:
                skip -= 1
                continue
            if len(found) == limit:
                return found, True, cursor
            found.append(agent)
        return found, False, cursor

    async def agent(self, name: str, scope: Scope) -> Agent:
        return await self._client.find(name, labels=scope.labels)

    async def cursor(self) -> str:
        """Where the events stand now."""
        await self._watch.settled()
        return (await self._store.run(lambda tx: events.page(tx, None, lambda event: False, 1))).cursor

    async def timeline(
        self, name: str, scope: Scope, *, limit: int, max_bytes: int, before: str | None = None, thinking: bool = False
    ) -> Page:
        """At most `limit` entries and `max_bytes` bytes, the last ones or those before a cursor.

        Of an archived agent, reading makes Paseo load it.
        """
        agent = await self.agent(name, scope)
        answer = await self._client.timeline(agent.id, limit=ROWS, before=_row(before))
        epoch = str(answer.get("epoch") or "")
        found = entries(answer.get("entries"))
        more = answer.get("hasOlder") is True
        if more and len(found) > 1:
            found = found[1:]  # the daemon may have cut it in two
        start = found[0].first if found else 0
        shown = [entry for entry in found if thinking or entry.who != "thinking"]
        taken, cut = newest(shown[-limit:], max_bytes)
        if cut or len(shown) > limit:
            start = taken[0].first
        older = f"{epoch}:{start}" if (cut or more or len(shown) > limit) and start > 0 else None
        return Page(agent, taken, older, reset=answer.get("reset") is True)

    async def models(self, provider: str | None) -> tuple[list[dict[str, Any]], list[str]]:
        """Models as `provider/id`, and why providers could not be asked."""
        providers = [provider] if provider else [p for p, available in await self._client.providers() if available]
        found: list[dict[str, Any]] = []
        problems: list[str] = []
        for each in providers:
            try:
                rows = await self._client.models(each)
            except PaseoRefused as error:
                if provider:
                    raise InvalidArgument(
                        error.message, argument="provider", hint="Leave it out to see the models of all that are there."
                    ) from None
                problems.append(f"{each}: {error.message}")
                continue
            found += [_model(each, row) for row in rows]
        return found, problems

    def accounts(self) -> list[dict[str, Any]]:
        """Their names and notes; where their logins are is not an assistant's business."""
        default = self._settings.default_account
        return [{"name": a.name, "note": a.note, "default": a.name == default} for a in self._settings.accounts]

    # -- waiting -----------------------------------------------------------------------------------------------

    async def events(
        self, wanted: Wanted, cursor: str | None, *, limit: int, timeout: float
    ) -> tuple[list[happened.Event], str, bool]:
        """The wanted events after a cursor, at once if there are any, else the first within `timeout` seconds.

        Also the cursor to go on from; and whether some are lost: then there are none, and the caller looks anew.
        """
        deadline = time.monotonic() + timeout
        place = cursor
        while True:
            changes = self._watch.changes()
            page = await self._store.run(lambda tx, at=place: events.page(tx, at, wanted, limit))  # type: ignore[misc]
            left = deadline - time.monotonic()
            if page.events or page.gap:
                return [happened.shown(event) for event in page.events], page.cursor, page.gap
            place = page.cursor
            if page.more:
                continue
            if left <= 0:
                return [], page.cursor, False
            await _until(changes, left)

    async def wait(self, name: str, scope: Scope, *, timeout: float, cursor: str | None = None) -> Standing:
        """Returns once no turn of the agent runs, or it waits for a permission, or after `timeout` seconds.

        With a cursor, a turn that ended since then is told though another has begun. Raises InvalidArgument,
        PaseoError, StoreError.
        """
        agent = await self.agent(name, scope)
        deadline = time.monotonic() + timeout
        while True:
            changes = self._watch.changes()
            standing = await self._standing(agent, cursor)
            if standing is not None:
                return standing
            left = deadline - time.monotonic()
            if left <= 0:
                now = await self._now(agent)
                return Standing("timeout", now, cursor=cursor or await self.cursor())
            await _until(changes, left)

    async def _standing(self, agent: Agent, cursor: str | None) -> Standing | None:
        """None while a turn runs."""
        known = self._watch.known(agent.id)
        if known is not None and known.permissions:
            return await self._told("permission", agent, known)
        if self._watch.is_busy(agent.id):
            if cursor is None:
                return None
            event = await self._store.run(lambda tx: happened.finish(tx, cursor, agent.id))
            if event is None:
                return None
            state, error = event["data"]["outcome"], event["data"].get("error")
            return Standing(state, await self._now(agent), None, error, event["id"], runs_again=True)
        if known is None:
            return await self._told("closed" if agent.status == "closed" else "idle", agent, None)
        state = known.outcome or ("closed" if known.closed or known.archived else "idle")
        return await self._told(state, agent, known)

    async def _told(self, state: str, agent: Agent, known: Known | None) -> Standing:
        agent = await self._now(agent)
        message = None
        if agent.archived_at is None and agent.status != "closed":  # reading would load it
            try:
                answer = await self._client.timeline(agent.id, limit=ROWS, joined=False)
                began = known.turn_at if known is not None else None  # what is older is of another turn
                message = last_message(entries(rows_since(answer.get("entries"), began)))
            except PaseoError:
                pass  # how it stands is worth telling without its words
        error = known.error if known is not None else None
        return Standing(state, agent, _shortened(message) if message else None, error, await self.cursor())

    async def _now(self, agent: Agent) -> Agent:
        """The agent's newest snapshot, or the one that there was."""
        try:
            return await self._client.agent(agent.id) or agent
        except PaseoError:
            return agent


async def _until(changes: asyncio.Event, left: float) -> None:
    try:
        await asyncio.wait_for(changes.wait(), left)
    except TimeoutError:
        pass


def _shortened(message: str) -> str:
    if len(message) <= 2 * MAX_MESSAGE:
        return message
    missing = len(message) - 2 * MAX_MESSAGE
    return f"{message[:MAX_MESSAGE]}\n[… {missing} characters left out …]\n{message[-MAX_MESSAGE:]}"


def _row(cursor: str | None) -> tuple[str, int] | None:
    if cursor is None:
        return None
    epoch, _, number = cursor.rpartition(":")
    if not epoch or not (number.isascii() and number.isdecimal() and len(number) < 16):
        raise InvalidArgument(
            "cursor is not one that an earlier result gave", argument="cursor", hint="Leave it out for the newest."
        )
    return epoch, int(number)


def _model(provider: str, row: Mapping[str, Any]) -> dict[str, Any]:
    options = row.get("thinkingOptions")
    thinking = [each.get("id") for each in options if isinstance(each, Mapping)] if isinstance(options, list) else []
    return {
        "model": f"{provider}/{row['id']}",
        "label": row.get("label") if isinstance(row.get("label"), str) else None,
        "default": row.get("isDefault") is True,
        "thinking": [each for each in thinking if isinstance(each, str)],
    }
