"""Permission requests of coding agents on the phone: shown as a widget, answered there, the answer carried to Paseo.

Only in conversations that the user chose. What is asked, where, and by whom is shown whole or not at all. The answer
must come from the person and the device that were asked, encrypted, in time, and counts once. Nothing is answered by
itself.

`_reconcile` compares what agents wait for with what was asked, and does what is missing; so it does not matter when it
is interrupted.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from pacerelled.errors import NotPossible, PacerelledError, PaseoError, place_of
from pacerelled.store import approvals as rows
from pacerelled.store import events
from pacerelled.store.approvals import Ask, Conversation, Origin
from pacerelled.store.database import Store, Tx

from .client import PaseoClient
from .guard import Scope
from .model import Agent, Permission
from .orders import Orders
from .watch import Watch

log = logging.getLogger(__name__)

VALID = timedelta(hours=1)
MAX_SHOWN = 8_000  # characters of what is asked: what is longer is not asked on the phone
KINDS = ("tool", "plan", "mode", "other")  # yes or no answers them; a question wants words
LOOK = 30.0  # seconds at most until what has expired is noticed
_MAX_TITLE = 200  # characters


class Response(Protocol):
    """A person's answer to a widget, as the inbox has it."""

    @property
    def message_id(self) -> str: ...
    @property
    def sender(self) -> str: ...
    @property
    def device_id(self) -> str | None: ...
    @property
    def group(self) -> bool: ...
    @property
    def encrypted(self) -> bool: ...
    @property
    def authorized(self) -> bool: ...
    @property
    def widget(self) -> dict[str, Any] | None: ...
    @property
    def widget_response(self) -> dict[str, Any] | None: ...


class Shown(Protocol):
    """The reply that shows a widget."""

    @property
    def message_id(self) -> str: ...
    @property
    def conversation_id(self) -> str: ...
    @property
    def to(self) -> str: ...
    @property
    def device_id(self) -> str | None: ...


class Phone(Protocol):
    """How a person is reached (`agent.asking.Asking`)."""

    async def private_conversation(self, agent_id: str | None, conversation_id: str) -> str: ...
    async def conversation_of(self, agent_id: str, message_id: str) -> str: ...
    async def ask(
        self, agent_id: str, widget: dict[str, Any], *, conversation_id: str, source_message_id: str | None, key: str
    ) -> Shown: ...
    async def change(
        self, agent_id: str, message_id: str, *, spec: dict[str, Any], expires_at: str | None, key: str
    ) -> None: ...
    async def answers(self, agent_id: str, conversation_id: str, message_id: str) -> Sequence[Response]: ...


class Approvals:
    def __init__(self, store: Store, client: PaseoClient, watch: Watch, orders: Orders, phone: Phone) -> None:
        self._store = store
        self._client = client
        self._watch = watch
        self._orders = orders
        self._phone = phone
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="paseo-approvals")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def look(self) -> None:
        """Something changed: an agent, or what people answered."""
        self._wake.set()

    # -- which conversations -----------------------------------------------------------------------------------

    async def choose(self, agent_id: str | None, conversation_id: str, *, every_agent: bool) -> Conversation:
        """From now on this conversation is asked. Raises AgentError, StoreError."""
        agent = await self._phone.private_conversation(agent_id, conversation_id)
        chosen = Conversation(agent, conversation_id, every_agent)
        await self._store.run(lambda tx: rows.choose(tx, chosen))
        self.look()
        return chosen

    async def leave(self, agent_id: str | None, conversation_id: str) -> bool:
        """Whether it had been chosen. What was asked already can still be answered."""
        agent = await self._phone.private_conversation(agent_id, conversation_id)
        return await self._store.run(lambda tx: rows.leave(tx, agent, conversation_id))

    async def chosen(self) -> list[Conversation]:
        return await self._store.run(rows.chosen)

    async def origin(self, agent_id: str, message_id: str) -> Origin:
        """Of a coding agent that is started for a request. Raises UnknownMessage."""
        return Origin(agent_id, await self._phone.conversation_of(agent_id, message_id), message_id)

    # -- asking and answering ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        waits = False
        while True:
            try:
                async with asyncio.timeout(LOOK if waits else None):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            waits = True
            try:
                waits = await self._reconcile()
            except PacerelledError as error:
                log.warning("Approvals: %s", error.code)
            except Exception as error:
                log.error("Approvals: %s", place_of(error))

    async def _reconcile(self) -> bool:
        """Whether somebody was asked and the end is still to come."""
        if not self._client.connection.is_ready:
            return False
        chosen = await self.chosen()
        for coding_agent_id, known in self._watch.active().items():
            for request_id, about in list(known.permissions.items()):
                if chosen and about["kind"] in KINDS:
                    await self._each(self._ask(coding_agent_id, request_id, chosen))
        unfinished = await self._store.run(rows.unfinished)
        for ask in unfinished:
            await self._each(self._follow(ask))
        return bool(unfinished)

    async def _each(self, work: Awaitable[None]) -> None:
        """One that fails (nobody to write to, say) does not keep the others waiting, and is tried again."""
        try:
            await work
        except PacerelledError as error:
            log.warning("Approvals: %s", error.code)

    async def _ask(self, coding_agent_id: str, request_id: str, chosen: list[Conversation]) -> None:
        def look(tx: Tx) -> tuple[Ask | None, Origin | None]:
            return rows.find(tx, coding_agent_id, request_id), rows.origin(tx, coding_agent_id)

        asked, origin = await self._store.run(look)
        where = _where(origin, chosen)
        if asked is not None or where is None:
            return
        agent = await self._client.agent(coding_agent_id)
        permission = next((p for p in agent.permissions if p.id == request_id), None) if agent else None
        if agent is None or permission is None:
            return
        expires_at = _iso(datetime.now(UTC) + VALID)
        key = _key(coding_agent_id, request_id)
        widget = _widget(agent, permission, key, expires_at)
        if widget is None:
            log.warning("Approvals: a request is too long to be shown whole; it can be answered in Paseo")
            return
        source = origin.source_message_id if origin and origin.conversation_id == where.conversation_id else None
        shown = await self._phone.ask(
            where.agent_id, widget, conversation_id=where.conversation_id, source_message_id=source, key=key
        )
        ask = Ask(
            coding_agent_id,
            request_id,
            where.agent_id,
            shown.message_id,
            shown.conversation_id,
            shown.to,
            shown.device_id,
            widget["spec"]["authorization"],
            expires_at,
        )

        def write(tx: Tx) -> None:
            rows.insert(tx, ask)
            _note(tx, "approval.asked", ask)

        await self._store.run(write)

    async def _follow(self, ask: Ask) -> None:
        known = self._watch.known(ask.coding_agent_id)
        if known is None or ask.request_id not in known.permissions:
            resolution = known.answered.get(ask.request_id) if known is not None else None
            await self._close(ask, {"allow": "granted", "deny": "denied"}.get(resolution or "", "revoked"))
            return
        decision = ask.decision if ask.state == "answered" else await self._take_answer(ask)
        if datetime.now(UTC) >= datetime.fromisoformat(ask.expires_at):
            await self._close(ask, "expired")
        elif decision is not None:
            try:
                await self._orders.respond(ask.coding_agent_id, ask.request_id, Scope(), allow=decision == "allow")
            except NotPossible:
                pass  # somebody else was first: what Paseo tells of it decides
            except PaseoError as error:
                log.warning("Approvals: an answer did not get through yet (%s)", error.code)
                return
            self.look()

    async def _take_answer(self, ask: Ask) -> str | None:
        """The decision of the first answer that counts, noted so that no other will."""
        for response in await self._phone.answers(ask.agent_id, ask.conversation_id, ask.message_id):
            decision = _decision(ask, response)
            if decision is None:
                continue

            def write(tx: Tx, decision: str = decision) -> bool:
                if not rows.answer(tx, ask, decision):
                    return False
                _note(tx, "approval.answered", ask, decision=decision)
                return True

            return decision if await self._store.run(write) else None
        return None

    async def _close(self, ask: Ask, status: str) -> None:
        """Tells the phone how it ended, and asks no more."""
        spec = {"authorization": {**ask.authorization, "status": status}}
        over = None if status == "expired" else _iso(datetime.now(UTC))
        key = f"{_key(ask.coding_agent_id, ask.request_id)}-end"
        try:
            await self._phone.change(ask.agent_id, ask.message_id, spec=spec, expires_at=over, key=key)
        except PacerelledError as error:
            log.warning("Approvals: the end of a request was not told (%s)", error.code)
        await self._store.run(lambda tx: rows.close(tx, ask))


def _where(origin: Origin | None, chosen: list[Conversation]) -> Conversation | None:
    """Who is asked about an agent: the conversation that it was started from, else one that wants to hear of all."""
    for each in chosen:
        if origin is not None and (each.agent_id, each.conversation_id) == (origin.agent_id, origin.conversation_id):
            return each
    return next((each for each in chosen if each.every_agent), None)


def _decision(ask: Ask, response: Response) -> str | None:
    """None for an answer that does not count."""
    ours = response.widget or {}
    trusted = (
        response.encrypted
        and response.authorized
        and not response.group
        and response.sender == ask.person
        and response.device_id == ask.device_id
        and ours.get("message_id") == ask.message_id
        and ours.get("late") is False
    )
    if not trusted:
        log.warning("Approvals: an answer does not count (not from who was asked, or not in time)")
        return None
    said = response.widget_response or {}
    if said.get("cancelled") is True:
        return "deny"
    value = said.get("value")
    if not isinstance(value, dict):
        return None
    if value.get("granted") is False:
        return "deny"
    return "allow" if value.get("granted") is True and value.get("scope", "once") == "once" else None


def _widget(agent: Agent, permission: Permission, key: str, expires_at: str) -> dict[str, Any] | None:
    """None if what is asked is too long to be shown whole."""
    name = agent.title or agent.id[:8]
    asked = [each for each in (permission.title, permission.description, permission.full_input) if each]
    body = "\n\n".join([f"“{name}” ({agent.provider}) asks this, in {agent.cwd}.", *asked])
    if len(body) > MAX_SHOWN:
        return None
    title = f"Allow {permission.name or permission.kind}?"
    authorization = {
        "action": permission.name or permission.kind,
        "resource": agent.cwd or agent.id,
        "parameters": {
            "agent": agent.id,
            "request": permission.id,
            "input": permission.full_input,
        },
        "expires_at": expires_at,
        "session": {"id": agent.id, "label": name[:_MAX_TITLE], "expires_at": expires_at},
        "revocable": True,
        "status": "requested",
    }
    return {
        "type": "widget.standard",
        "v": 1,
        "id": key,
        "kind": "permission",
        "expires_at": expires_at,
        "spec": {
            "title": title[:_MAX_TITLE],
            "body": body,
            "scopes": ["once"],
            "authorization": authorization,
        },
    }


def _note(tx: Tx, kind: str, ask: Ask, **more: str) -> None:
    events.add(
        tx,
        ask.agent_id,
        kind,
        coding_agent_id=ask.coding_agent_id,
        request_id=ask.request_id,
        message_id=ask.message_id,
        conversation_id=ask.conversation_id,
        **more,
    )


def _key(coding_agent_id: str, request_id: str) -> str:
    return "approval-" + hashlib.sha256(f"{coding_agent_id}\0{request_id}".encode()).hexdigest()[:32]


def _iso(moment: datetime) -> str:
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
