"""The calls of the Paseo daemon that we use, as values. Nothing here decides what may be done: `guard` and `bridge` do.

All raise PaseoUnavailable and PaseoRefused; those that look for an agent also InvalidArgument.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from pacerelled.errors import InvalidArgument, PaseoRefused

from .connection import PaseoConnection
from .frames import text
from .model import Agent, parse_agent

PAGE = 200  # agents, the most that the daemon gives at once
_CREATE_TIMEOUT = 120.0  # seconds: a worktree is made, a provider started
_LIST_HINT = "`paseo_list_agents` shows the ids; with include_archived also those of archived agents."


class PaseoClient:
    def __init__(self, connection: PaseoConnection) -> None:
        self.connection = connection
        self._understood: dict[str, tuple[int, bool]] = {}  # field → (connects, whether the daemon knows it)

    # -- looking -----------------------------------------------------------------------------------------------

    async def agents(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        statuses: Sequence[str] = (),
        include_archived: bool = False,
    ) -> AsyncIterator[Agent]:
        """Newest change first."""
        filter_: dict[str, Any] = {"labels": dict(labels) if labels else None, "statuses": list(statuses) or None}
        filter_["includeArchived"] = include_archived or None
        cursor: str | None = None
        while True:
            answer = await self.connection.look(
                "fetch_agents_request", filter=filter_, page={"limit": PAGE, "cursor": cursor}
            )
            for agent in listed(answer):
                yield agent
            cursor = next_page(answer)
            if cursor is None:
                return

    async def agent(self, agent_id: str, *, now: bool = False) -> Agent | None:
        """By its full id; None if there is none. `now`: on this connection, though it is only being set up."""
        make = self.connection.ask if now else self.connection.look
        try:
            answer = await make("fetch_agent_request", agentId=agent_id)
        except PaseoRefused:
            return None
        found = parse_agent(answer.get("agent"))
        return found if found is not None and found.id == agent_id else None

    async def find(self, name: str, *, labels: Mapping[str, str]) -> Agent:
        """By its full id or a beginning of it that only one agent with these labels has, archived ones included.

        Raises InvalidArgument. The daemon itself would also take a title, which agents choose themselves.
        """
        wanted = name.strip().lower()
        exact = await self.agent(wanted) if len(wanted) >= 32 else None
        if exact is not None and labels.items() <= exact.labels.items():
            return exact
        everybody = self.agents(labels=labels, include_archived=True)
        found = [agent async for agent in everybody if agent.id.startswith(wanted)]
        active = [agent for agent in found if agent.archived_at is None]
        if len(found) > 1 and len(active) == 1:
            found = active
        if len(found) == 1 and wanted:
            return found[0]
        if not found or not wanted:
            raise InvalidArgument(
                f"There is no Paseo agent whose id is or begins with {name[:64]!a}",
                argument="agent_id",
                hint=_LIST_HINT,
            )
        several = ", ".join(agent.id[:13] for agent in found[:5])
        raise InvalidArgument(
            f"{len(found)} agents have ids that begin with {name[:64]!a}: {several}…",
            argument="agent_id",
            hint="Give more of the id.",
        )

    async def timeline(
        self, agent_id: str, *, limit: int, before: tuple[str, int] | None = None, joined: bool = True
    ) -> dict[str, Any]:
        """The daemon's answer: its last rows, or those before a row of an epoch. `limit` is in rows, 0: all.

        `joined`: the pieces of a message are put together there, which also glues the rest of a turn that was broken
        off to the answer of the next.
        """
        cursor = {"epoch": before[0], "seq": before[1]} if before else None
        return await self.connection.look(
            "fetch_agent_timeline_request",
            agentId=agent_id,
            direction="before" if before else "tail",
            cursor=cursor,
            limit=limit,
            projection="projected" if joined else "canonical",
        )

    async def providers(self) -> list[tuple[str, bool]]:
        answer = await self.connection.look("list_available_providers_request")
        rows = answer.get("providers")
        return [
            (row["provider"], row.get("available") is True)
            for row in (rows if isinstance(rows, list) else ())
            if isinstance(row, Mapping) and text(row.get("provider"))
        ]

    async def models(self, provider: str) -> list[dict[str, Any]]:
        answer = await self.connection.look("list_provider_models_request", provider=provider)
        rows = answer.get("models")
        rows = rows if isinstance(rows, list) else []
        return [row for row in rows if isinstance(row, dict) and text(row.get("id"))]

    # -- what this daemon can ----------------------------------------------------------------------------------

    async def can_steer(self) -> bool:
        """Whether a message can be put into a running turn. Where it cannot, the daemon would interrupt the turn."""
        return await self._understands(
            "activeTurnBehavior",
            "send_agent_message_request",
            agentId=f"pacerelle-{secrets.token_hex(16)}",
            text="-",
            activeTurnBehavior="pacerelle-asks",
        )

    async def can_set_environment(self) -> bool:
        """Whether a new agent gets the environment that is asked for. Where not, it would run on another account."""
        return await self._understands(
            "env",
            "create_agent_request",
            config={"provider": "pacerelle-asks", "cwd": f"/nonexistent/pacerelle-{secrets.token_hex(16)}"},
            env="pacerelle-asks",
        )

    async def _understands(self, field: str, kind: str, **fields: Any) -> bool:
        """Asks with a value that no daemon takes, for something that does not exist.

        A daemon that knows the field refuses the request for its form, before it looks for the thing; an older one
        passes the field over and does not find the thing. There is no feature flag for either field.
        """
        known = self._understood.get(field)
        if known is None or known[0] != self.connection.connects:
            try:
                await self.connection.ask(kind, **fields)
            except PaseoRefused as refusal:
                known = (self.connection.connects, refusal.reason == "unknown_schema")
            else:
                known = (self.connection.connects, False)
            self._understood[field] = known
        return known[1]

    # -- changing ----------------------------------------------------------------------------------------------

    async def create(
        self,
        config: Mapping[str, Any],
        *,
        labels: Mapping[str, str],
        env: Mapping[str, str] | None,
        key: str,
        branch: str | None = None,
    ) -> Agent:
        """A new agent without a prompt. `branch`: of a new worktree that is made for it."""
        where = await self._worktree(branch) if branch else {}
        answer = await self.connection.ask(
            "create_agent_request",
            timeout=_CREATE_TIMEOUT,
            config=config,
            labels=labels,
            env=env or None,
            idempotencyKey=key,
            **where,
        )
        agent = parse_agent(answer.get("agent"))
        if agent is None:
            raise PaseoRefused("Paseo's answer to the new agent cannot be read", hint="See the Paseo app for it.")
        return agent

    async def _worktree(self, branch: str) -> dict[str, Any]:
        question = {"provider": "pacerelle-asks", "cwd": f"/nonexistent/pacerelle-{secrets.token_hex(16)}"}
        if await self._understands("worktree", "create_agent_request", config=question, worktree="pacerelle-asks"):
            return {"worktree": {"mode": "branch-off", "newBranch": branch}}
        git = {"createWorktree": True, "worktreeSlug": branch, "createNewBranch": True, "newBranchName": branch}
        return {"git": git}

    async def send(self, agent_id: str, message: str, *, message_id: str, behavior: str | None) -> None:
        await self.connection.ask(
            "send_agent_message_request",
            agentId=agent_id,
            text=message,
            messageId=message_id,
            activeTurnBehavior=behavior,
        )

    async def turn_runs(self, agent_id: str) -> bool:
        """Whether a turn really runs: after the daemon was killed, `status` may say so of a turn that is gone."""
        try:
            answer = await self.connection.ask("wait_for_finish_request", agentId=agent_id, timeoutMs=1)
        except PaseoRefused:
            return False
        return answer.get("status") in ("timeout", "permission")

    async def archive(self, agent_id: str) -> None:
        await self.connection.ask("archive_agent_request", agentId=agent_id)


def listed(answer: Mapping[str, Any]) -> list[Agent]:
    """The agents in one page."""
    rows = answer.get("entries")
    found = (parse_agent(row.get("agent")) for row in (rows if isinstance(rows, list) else ()) if isinstance(row, dict))
    return [agent for agent in found if agent is not None]


def next_page(answer: Mapping[str, Any]) -> str | None:
    about = answer.get("pageInfo")
    if not isinstance(about, Mapping) or about.get("hasMore") is not True:
        return None
    return text(about.get("nextCursor"))
