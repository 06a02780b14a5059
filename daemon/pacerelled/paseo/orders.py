"""What changes something: starting an agent, writing to it, answering for it, archiving it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pacerelled.errors import InvalidArgument, NotPossible, PaseoRefused, PaseoUnavailable
from pacerelled.store.approvals import Origin, save_origin
from pacerelled.store.database import Store

from . import guard
from .client import PaseoClient
from .guard import Scope
from .model import ACCOUNT_LABEL, KEY_LABEL, ORIGIN_LABEL, Agent, Permission
from .once import Attempt, Key, Once, Unsettled
from .settings import PaseoSettings
from .timeline import entries
from .watch import Watch

SETTLED_AFTER = 150.0  # seconds after which a creation that left no agent was not carried out
RESOLVED_WITHIN = 10.0  # seconds
MAX_TITLE = 80  # characters, of the 200 that Paseo takes
MAX_LABELS = 20
_RECENT = 200  # rows of a timeline in which a message is looked for

Steering = Literal["steer", "interrupt"]


@dataclass(frozen=True, slots=True)
class NewAgent:
    """What is asked for; None: the default of the settings, else of Paseo."""

    cwd: str
    prompt: str = field(repr=False)
    title: str | None = field(default=None, repr=False)
    model: str | None = None  # "provider/model" or "provider"
    thinking: str | None = None
    mode: str | None = None
    account: str | None = None
    branch: str | None = None  # of a new Git worktree
    labels: Mapping[str, str] = field(default_factory=dict)


class Orders:
    """`worktrees`: where Paseo makes them."""

    def __init__(
        self, settings: PaseoSettings, store: Store, client: PaseoClient, watch: Watch, *, worktrees: Path
    ) -> None:
        self._settings = settings
        self._store = store
        self._client = client
        self._watch = watch
        self._once = Once(store)
        self._worktrees = worktrees

    # -- a new agent -------------------------------------------------------------------------------------------

    async def create(self, new: NewAgent, key: Key, scope: Scope, origin: Origin | None = None) -> tuple[Agent, bool]:
        """The agent, with its prompt under way; and whether this very call had been made before.

        `origin`: the request that it is started for.

        It is made without the prompt, which it gets only once it is seen to be where it may be. Raises AgentError,
        PaseoError, StoreError.
        """
        guard.check_writable(self._settings, scope)
        if not new.prompt.strip():
            raise InvalidArgument("`prompt` is empty", argument="prompt", hint="Say what the agent is to do.")
        cwd = await asyncio.to_thread(guard.folder, new.cwd, self._settings.allowed_roots)
        account = guard.account(self._settings, new.account)
        labels = self._labels(new, scope, account.name if account else None)
        config = self._config(new, cwd)
        variable = self._settings.account_env_var
        env = {variable: str(account.config_dir)} if account else None
        what = [config, labels, env, new.branch, new.prompt]
        async with self._once.attempt(key, "create", what) as attempt:
            if attempt.result is not None:
                made = await self._client.agent(attempt.result["agent_id"])
                if made is None:
                    raise NotPossible(
                        "This call was made before, and the agent that it started is gone",
                        hint="Use a new idempotency_key to start another.",
                    )
                return made, True
            repeated = attempt.age is not None
            found = await self._made_before(attempt) if repeated else None
            if found is None:
                if env is not None:
                    await self._check_environment(variable)
                tagged = {**labels, KEY_LABEL: attempt.tag}
                found = await self._client.create(config, labels=tagged, env=env, key=attempt.tag, branch=new.branch)
            attempt.half_done = True
            if origin is not None:
                await self._store.run(lambda tx: save_origin(tx, found.id, origin))
            await self._check_place(found, cwd, new)
            if not (repeated and await self._has_message(found.id, attempt.tag)):
                await self._give_prompt(found, new.prompt, attempt.tag)
            attempt.result = {"agent_id": found.id}
            return found, repeated

    def _labels(self, new: NewAgent, scope: Scope, account: str | None) -> dict[str, str]:
        if len(new.labels) > MAX_LABELS or not all(
            isinstance(value, str) and 0 < len(name) <= 64 and len(value) <= 200 for name, value in new.labels.items()
        ):
            raise InvalidArgument(
                f"`labels` must be at most {MAX_LABELS} short texts", argument="labels", hint='{"ticket": "123"}'
            )
        ours = {ORIGIN_LABEL: self._settings.origin_label, **scope.labels}
        ours |= {ACCOUNT_LABEL: account} if account else {}
        for name in (*ours, ORIGIN_LABEL, ACCOUNT_LABEL, KEY_LABEL):
            if new.labels.get(name, ours.get(name)) != ours.get(name):
                raise InvalidArgument(
                    f"The label {name!a} is not yours to choose", argument="labels", hint="Leave it out."
                )
        return {**new.labels, **ours}

    def _config(self, new: NewAgent, cwd: Path) -> dict[str, Any]:
        chosen = new.model or self._settings.default_provider
        if chosen is None:
            raise InvalidArgument(
                "`model` is missing, and the settings name no default_provider",
                argument="model",
                hint="`paseo_list_models` shows what there is, e.g. claude/claude-sonnet-5-5.",
            )
        provider, _, model = chosen.partition("/")
        default_provider = (self._settings.default_provider or "").partition("/")[0]
        same = provider == default_provider  # thinking and mode mean something else with another provider
        first_line = next(line.strip() for line in new.prompt.splitlines() if line.strip())
        title = (new.title or "").strip() or first_line
        return {
            "provider": provider,
            "cwd": str(cwd),
            "model": model or None,
            "thinkingOptionId": new.thinking or (self._settings.default_thinking if same else None),
            "modeId": new.mode or (self._settings.default_mode if same else None),
            "title": title if len(title) <= MAX_TITLE else title[: MAX_TITLE - 1] + "…",
        }

    async def _made_before(self, attempt: Attempt) -> Agent | None:
        """The agent of an attempt that was cut off. Raises Unsettled while it may still come into being."""
        async for agent in self._client.agents(labels={KEY_LABEL: attempt.tag}, include_archived=True):
            return agent
        assert attempt.age is not None
        if attempt.age < SETTLED_AFTER:
            raise Unsettled(
                "It is not known yet whether the first attempt started an agent: Paseo may still be at it",
                hint=f"Make the same call with the same idempotency_key again in {SETTLED_AFTER - attempt.age:.0f} s.",
            )
        return None

    async def _check_environment(self, variable: str) -> None:
        if not await self._client.can_set_environment():
            raise NotPossible(
                f"This Paseo cannot set {variable} for an agent, so it would run on another account",
                hint="Update Paseo, or leave `account` out (and default_account in the settings).",
            )

    async def _check_place(self, agent: Agent, asked: Path, new: NewAgent) -> None:
        """An agent in the wrong place is archived before it got anything to do."""
        roots, worktrees = self._settings.allowed_roots, self._worktrees if new.branch else None
        problem = await asyncio.to_thread(guard.where_it_runs, agent, asked, roots, worktrees)
        if problem is not None:
            await self._client.archive(agent.id)
            raise NotPossible(
                f"The agent was not started: {problem}",
                hint="Give the folder that the Git repository begins in, or have the user allow that one.",
            )

    async def _give_prompt(self, agent: Agent, prompt: str, message_id: str) -> None:
        turns = self._watch.turns(agent.id)
        try:
            await self._client.send(agent.id, prompt, message_id=message_id, behavior=None)
        except PaseoRefused:
            await self._client.archive(agent.id)
            raise
        await self._watch.settled()
        self._watch.expect_turn(agent.id, turns)

    # -- a message ---------------------------------------------------------------------------------------------

    async def send(
        self, name: str, message: str, key: Key, scope: Scope, *, when_running: Steering
    ) -> tuple[Agent, str, bool]:
        """To whom it went, how it was delivered, and whether this very call had been made before.

        Delivered: `started` a turn, `steered` the one that runs, or `interrupted` it. Raises as `create`.
        """
        guard.check_writable(self._settings, scope)
        if not message.strip():
            raise InvalidArgument("`message` is empty", argument="message", hint="Say what the agent is to do.")
        agent = await find(self._client, name, scope)
        async with self._once.attempt(key, "send", agent.id, message, when_running) as attempt:
            if attempt.result is not None:
                return agent, attempt.result["delivered"], True
            if attempt.age is not None and await self._has_message(agent.id, attempt.tag):
                attempt.result = {"delivered": "started"}
                return agent, "started", True
            running = self._watch.is_busy(agent.id) or (
                agent.status == "running" and await self._client.turn_runs(agent.id)
            )
            if running:
                await self._check_running(agent, when_running)
            turns = self._watch.turns(agent.id)
            behavior = when_running if running else None
            await self._client.send(agent.id, message, message_id=attempt.tag, behavior=behavior)
            await self._watch.settled()
            delivered = ("steered" if when_running == "steer" else "interrupted") if running else "started"
            known = self._watch.known(agent.id)
            if delivered == "steered" and known is not None and known.outcome == "canceled" and not known.running:
                delivered = "interrupted"  # a provider that cannot be steered
            if delivered != "steered":
                self._watch.expect_turn(agent.id, turns)
            attempt.result = {"delivered": delivered}
            return agent, delivered, False

    async def _check_running(self, agent: Agent, when_running: Steering) -> None:
        if when_running == "interrupt":
            return
        if agent.permissions:
            raise NotPossible(
                "The agent waits for a permission, which a message now would deny",
                hint="Answer it with paseo_respond_permission first, or send with when_running interrupt.",
            )
        if not await self._client.can_steer():
            raise NotPossible(
                "This Paseo cannot put a message into a running turn: it would break the turn off",
                hint="Wait with paseo_wait_for_agent and send it then, or send it with when_running interrupt.",
                code="cannot_steer",
            )

    async def _has_message(self, agent_id: str, message_id: str) -> bool:
        rows = await self._client.timeline(agent_id, limit=_RECENT)
        return any(entry.message_id == message_id for entry in entries(rows.get("entries")))

    # -- an answer, an end -------------------------------------------------------------------------------------

    async def respond(
        self,
        name: str,
        request: str,
        scope: Scope,
        *,
        allow: bool,
        message: str | None = None,
        action: str | None = None,
    ) -> tuple[Agent, Permission, str]:
        """Answers what an agent waits for. Returns which answer counted: `allow` or `deny`.

        Raises InvalidArgument, NotPossible if somebody else answered it before, and PaseoError.
        """
        guard.check_writable(self._settings, scope)
        agent = await find(self._client, name, scope)
        permission = _pending(agent, request)
        _check_action(permission, action, allow=allow)
        response: dict[str, Any] = {"behavior": "allow" if allow else "deny", "selectedActionId": action}
        response["message"] = message if not allow else None
        changes = self._watch.changes()
        # Its answer, if it is one at all, is a refusal under the permission's own id.
        asking = asyncio.create_task(
            self._client.connection.ask(
                "agent_permission_response",
                request_id=permission.id,
                timeout=RESOLVED_WITHIN,
                agentId=agent.id,
                response=response,
            )
        )
        try:
            resolution = await self._resolution(agent.id, permission.id, asking, changes)
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        wanted = "allow" if allow else "deny"
        if resolution != wanted:
            raise NotPossible(
                f"Somebody else answered before: {resolution or 'it is not known how'}", hint="Nothing more is to do."
            )
        return agent, permission, resolution

    async def _resolution(
        self, agent_id: str, request_id: str, asking: asyncio.Task[dict[str, Any]], changes: asyncio.Event
    ) -> str | None:
        """How the request was resolved, as the daemon tells everybody; our answer alone proves nothing."""
        deadline = time.monotonic() + RESOLVED_WITHIN
        while (found := self._watch.resolution(agent_id, request_id)) is None:
            if asking.done() and isinstance(error := asking.exception(), PaseoRefused):
                raise error
            left = deadline - time.monotonic()
            if left <= 0:
                raise PaseoUnavailable(
                    "Paseo did not confirm the answer",
                    hint="`paseo_get_agent` shows whether the request still waits.",
                    sent=True,
                )
            woken = asyncio.ensure_future(changes.wait())
            waited = {woken} if asking.done() else {woken, asking}
            try:
                await asyncio.wait(waited, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            finally:
                woken.cancel()
            changes = self._watch.changes()
        return found[0]

    async def archive(self, name: str, scope: Scope) -> Agent:
        """Raises InvalidArgument and PaseoError."""
        guard.check_writable(self._settings, scope)
        agent = await find(self._client, name, scope)
        if agent.archived_at is None:
            await self._client.archive(agent.id)
        return agent


async def find(client: PaseoClient, name: str, scope: Scope) -> Agent:
    """As `PaseoClient.find`, among the agents that the caller sees."""
    return await client.find(name, labels=scope.labels)


def _pending(agent: Agent, request: str) -> Permission:
    found = [each for each in agent.permissions if each.id == request]
    found = found or [each for each in agent.permissions if request and each.id.startswith(request)]
    if len(found) == 1:
        return found[0]
    ids = ", ".join(each.id for each in agent.permissions)
    raise InvalidArgument(
        f"The agent does not wait for a permission {request[:80]!a}",
        argument="request_id",
        hint=f"It waits for {ids}." if ids else "It waits for none: it was answered, or the turn is over.",
    )


def _check_action(permission: Permission, action: str | None, *, allow: bool) -> None:
    if action is None or any(each.id == action and each.allows == allow for each in permission.actions):
        return
    fitting = ", ".join(each.id for each in permission.actions if each.allows == allow)
    raise InvalidArgument(
        f"{action[:80]!a} is no answer that {'allows' if allow else 'denies'} this request",
        argument="action",
        hint=f"There are {fitting}." if fitting else "Leave `action` out.",
    )
