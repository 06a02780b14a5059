"""What the tools do: arguments that were checked become a call of the bridge, its result a host's."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mcp.server import ServerRequestContext
from mcp_types import ResourceTemplate

from pacerelled.agent.model import Session
from pacerelled.errors import InvalidArgument
from pacerelled.mcp.progress import PROGRESS_EVERY, progress
from pacerelled.mcp.sizes import MAX_RESULT, some
from pacerelled.paseo.bridge import Bridge
from pacerelled.paseo.guard import Scope
from pacerelled.paseo.happened import Wanted
from pacerelled.paseo.once import Key, key_of
from pacerelled.paseo.orders import NewAgent
from pacerelled.paseo.tracker import TYPES

from .resources import TEMPLATE, CodingResources
from .schemas import LOOKING, STATUSES, TOOLS
from .texts import INSTRUCTIONS, NOTICE

Arguments = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call: who asks, and which agents it sees."""

    bridge: Bridge
    scope: Scope
    session: Session
    home: Callable[[], str]  # the id of the session's agent at the relay; raises NoAgent, UnknownAgent
    context: ServerRequestContext[Any]

    def key(self, arguments: Arguments) -> Key:
        """What a repetition of this call is known by."""
        over_http = self.session.transport == "http"  # where nobody repeats calls, and ids are not one client's own
        call_id = None if over_http else json.dumps(self.context.request_id)
        return key_of(self.session.id, call_id, arguments["idempotency_key"])


async def paseo_list_agents(call: Call, arguments: Arguments) -> dict[str, Any]:
    agents, more, cursor = await call.bridge.looks.agents(
        call.scope,
        statuses=_among("statuses", arguments["statuses"], STATUSES),
        labels=_labels(arguments["labels"]),
        include_archived=arguments["include_archived"],
        start=arguments["start"],
        limit=arguments["limit"],
    )
    shown = some([agent.as_row() for agent in agents], _ROOM)
    more = more or len(shown) < len(agents)
    return {"agents": shown, "has_more": more, "events_cursor": cursor, "notice": NOTICE}


async def paseo_get_agent(call: Call, arguments: Arguments) -> dict[str, Any]:
    cursor = await call.bridge.looks.cursor()
    agent = await call.bridge.looks.agent(arguments["agent_id"], call.scope)
    return {"agent": agent.as_dict(), "events_cursor": cursor, "notice": NOTICE}


async def paseo_read_timeline(call: Call, arguments: Arguments) -> dict[str, Any]:
    page = await call.bridge.looks.timeline(
        arguments["agent_id"],
        call.scope,
        limit=arguments["limit"],
        max_bytes=arguments["max_bytes"],
        before=arguments["cursor"],
        thinking=arguments["include_thinking"],
    )
    return {
        "agent_id": page.agent.id,
        "status": page.agent.status,
        "entries": [entry.as_dict() for entry in page.entries],
        "older_cursor": page.older,
        "reset": page.reset,
        "notice": NOTICE,
    }


async def paseo_list_accounts(call: Call, _: Arguments) -> dict[str, Any]:
    return {"accounts": call.bridge.looks.accounts()}


async def paseo_list_models(call: Call, arguments: Arguments) -> dict[str, Any]:
    models, problems = await call.bridge.looks.models(arguments["provider"])
    return {"models": models, "problems": problems, "default": call.bridge.settings.default_provider}


async def paseo_wait_for_events(call: Call, arguments: Arguments) -> dict[str, Any]:
    wanted = Wanted(
        call.scope,
        agent_ids=tuple(each.strip().lower() for each in arguments["agent_ids"] or ()),
        labels=tuple(_labels(arguments["labels"]).items()),
        types=_among("types", arguments["types"], TYPES),
        only_needs_attention=arguments["only_needs_attention"],
    )
    with _waiting(call, arguments["timeout_sec"], "Waiting for agents' events"):
        events, cursor, gap = await call.bridge.looks.events(
            wanted, arguments["cursor"], limit=arguments["limit"], timeout=arguments["timeout_sec"]
        )
    shown = some(events, _ROOM)
    if len(shown) < len(events):
        cursor = shown[-1]["id"]
    result: dict[str, Any] = {"events": shown, "next_cursor": cursor, "gap": gap}
    if gap:
        labels = _labels(arguments["labels"])
        agents, _, cursor = await call.bridge.looks.agents(call.scope, labels=labels, limit=_MOST)
        result |= {"next_cursor": cursor, "agents": some([agent.as_row() for agent in agents], _ROOM)}
    return {**result, "notice": NOTICE} if events or gap else result


async def paseo_create_agent(call: Call, arguments: Arguments) -> dict[str, Any]:
    new = NewAgent(
        cwd=arguments["cwd"],
        prompt=arguments["prompt"],
        title=arguments["title"],
        model=arguments["model"],
        thinking=arguments["thinking"],
        mode=arguments["mode"],
        account=arguments["account"],
        branch=arguments["branch"],
        labels=_labels(arguments["labels"]),
    )
    source = arguments["source_message_id"]
    origin = await call.bridge.approvals.origin(call.home(), source) if source is not None else None
    cursor = await call.bridge.looks.cursor()
    with _waiting(call, _CREATING, "Starting the agent"):
        agent, repeated = await call.bridge.orders.create(new, call.key(arguments), call.scope, origin)
    return {"agent": agent.as_dict(), "events_cursor": cursor, "repeated": repeated, "notice": NOTICE}


async def paseo_send_message(call: Call, arguments: Arguments) -> dict[str, Any]:
    agent, delivered, repeated = await call.bridge.orders.send(
        arguments["agent_id"],
        arguments["message"],
        call.key(arguments),
        call.scope,
        when_running=arguments["when_running"],
    )
    cursor = await call.bridge.looks.cursor()
    return {"agent_id": agent.id, "delivered": delivered, "events_cursor": cursor, "repeated": repeated}


async def paseo_wait_for_agent(call: Call, arguments: Arguments) -> dict[str, Any]:
    with _waiting(call, arguments["timeout_sec"], "Waiting for the agent"):
        standing = await call.bridge.looks.wait(
            arguments["agent_id"], call.scope, timeout=arguments["timeout_sec"], cursor=arguments["cursor"]
        )
    return {
        "agent_id": standing.agent.id,
        "state": standing.state,
        "error": standing.error,
        "message": standing.message,
        "runs_again": standing.runs_again,
        "agent": standing.agent.as_dict(),
        "cursor": standing.cursor,
        "notice": NOTICE,
    }


async def paseo_respond_permission(call: Call, arguments: Arguments) -> dict[str, Any]:
    agent, permission, resolution = await call.bridge.orders.respond(
        arguments["agent_id"],
        arguments["request_id"],
        call.scope,
        allow=arguments["decision"] == "allow",
        message=arguments["message"],
        action=arguments["action"],
    )
    return {"agent_id": agent.id, "request_id": permission.id, "resolution": resolution}


async def paseo_archive_agent(call: Call, arguments: Arguments) -> dict[str, Any]:
    agent = await call.bridge.orders.archive(arguments["agent_id"], call.scope)
    return {"agent_id": agent.id, "archived": True}


RUN: dict[str, Callable[[Call, Arguments], Awaitable[dict[str, Any]]]] = {
    tool.__name__: tool
    for tool in (
        paseo_list_agents,
        paseo_get_agent,
        paseo_read_timeline,
        paseo_list_accounts,
        paseo_list_models,
        paseo_wait_for_events,
        paseo_create_agent,
        paseo_send_message,
        paseo_wait_for_agent,
        paseo_respond_permission,
        paseo_archive_agent,
    )
}


class CodingTools:
    """The tools and resources of one session. `withheld` are the tools that its token may not call."""

    def __init__(self, bridge: Bridge, session: Session, home: Callable[[], str], scope: Scope) -> None:
        """`home` gives the id of the session's agent at the relay, or raises NoAgent or UnknownAgent."""
        self._bridge = bridge
        self._home = home
        self._session = session
        self._scope = scope
        all_ = LOOKING if bridge.settings.read_only else tuple(TOOLS)
        self.specs = {name: TOOLS[name] for name in all_ if name in LOOKING or not scope.read_only}
        self.resources = CodingResources(bridge, self._scope)
        self.withheld = frozenset(all_) - frozenset(self.specs)

    @property
    def instructions(self) -> str:
        return "" if self._bridge.settings.read_only else INSTRUCTIONS

    @property
    def template(self) -> ResourceTemplate:
        return TEMPLATE

    async def run(self, name: str, arguments: Arguments, context: ServerRequestContext[Any]) -> dict[str, Any]:
        """Raises PacerelledError."""
        return await RUN[name](Call(self._bridge, self._scope, self._session, self._home, context), arguments)


_ROOM = MAX_RESULT - 1_500  # bytes of a list
_MOST = 200  # agents that are shown where events are lost
_CREATING = 120  # seconds that a new agent may take


def _waiting(call: Call, timeout: float, words: str) -> Any:
    started = time.monotonic()
    return progress(call.context, PROGRESS_EVERY, lambda: (time.monotonic() - started, timeout, words))


def _labels(given: Mapping[str, Any] | None) -> dict[str, str]:
    if given is None:
        return {}
    if not all(isinstance(value, str) for value in given.values()):
        raise InvalidArgument("`labels` must have texts as values", argument="labels", hint='{"origin": "pacerelle"}')
    return dict(given)


def _among(argument: str, given: list[str] | None, known: tuple[str, ...]) -> tuple[str, ...]:
    for each in given or ():
        if each not in known:
            raise InvalidArgument(
                f"{each[:64]!a} is none of the {argument}", argument=argument, hint=f"There are {', '.join(known)}."
            )
    return tuple(given or ())
