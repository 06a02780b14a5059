"""The tools as hosts see them (docs/paseo.md). Names and arguments are those of Paseo MCP, in snake_case."""

from __future__ import annotations

from typing import Final

from pacerelled.mcp.shapes import (
    ANY_OBJECT,
    BOOL,
    MAX_KEY,
    TEXT,
    TEXT_OR_NULL,
    Schema,
    ToolSpec,
    arguments,
    flag,
    integer,
    record,
    rows,
    spec,
    string,
    strings,
)

MAX_WAIT: Final = 280  # seconds
WAIT: Final = 50  # seconds by default: under the minute after which many hosts give up
MAX_AGENTS: Final = 500
MAX_ENTRIES: Final = 200
MAX_PAGE: Final = 20_000  # bytes
MAX_EVENTS: Final = 200
STATUSES: Final = ("initializing", "idle", "running", "error", "closed")

_AGENT_ID = string("The agent's id, or a beginning of it that only one agent has.")
_LABELS: Schema = {"type": "object", "description": 'Only agents with these labels, e.g. {"origin": "pacerelle"}.'}
_TIMEOUT = integer(
    "How long to wait, in seconds; 0 only looks. Keep it below your host's tool timeout.", 0, MAX_WAIT, WAIT
)
_KEY = string(
    "A name of your own for this call. Making the very same call again with it does nothing and returns the first"
    " result, also after a restart.",
    maxLength=MAX_KEY,
)
_PERMISSION = record(
    ("request_id", "name", "kind"),
    request_id=TEXT,
    name=TEXT,
    kind=TEXT,
    title=TEXT_OR_NULL,
    description=TEXT_OR_NULL,
    input=TEXT_OR_NULL,
    actions=rows(record(("id", "decision"), id=TEXT, label=TEXT, decision=TEXT)),
)
_AGENT = record(
    ("id", "status", "requires_attention"),
    id=TEXT,
    title=TEXT_OR_NULL,
    status=TEXT,
    provider=TEXT,
    model=TEXT_OR_NULL,
    mode=TEXT_OR_NULL,
    thinking=TEXT_OR_NULL,
    cwd=TEXT,
    account=TEXT_OR_NULL,
    labels=ANY_OBJECT,
    requires_attention=BOOL,
    attention_reason=TEXT_OR_NULL,
    pending_permissions=rows(_PERMISSION),
    last_error=TEXT_OR_NULL,
    archived=BOOL,
    created_at=TEXT_OR_NULL,
    updated_at=TEXT_OR_NULL,
)

_ALL = (
    spec(
        "paseo_list_agents",
        "List coding agents",
        "The coding agents of Paseo on this machine, with status, account, and whether they need somebody (finished, "
        "failed, or waiting for a permission). events_cursor is where paseo_wait_for_events begins.",
        arguments(
            statuses=strings(f"Only these: {', '.join(STATUSES)}.", len(STATUSES)),
            labels=_LABELS,
            include_archived=flag("Also archived agents."),
            limit=integer("How many at most, the last changed first.", 1, MAX_AGENTS, 50),
            start=integer("Leave out so many first, to page while has_more is true.", 0, 100_000, 0),
        ),
        record(
            ("agents", "has_more", "events_cursor"), agents=rows(_AGENT), has_more=BOOL, events_cursor=TEXT, notice=TEXT
        ),
        {"statuses": ["running"]},
        read_only=True,
    ),
    spec(
        "paseo_get_agent",
        "Look at a coding agent",
        "How one agent is, with the permissions that it waits for.",
        arguments(("agent_id",), agent_id=_AGENT_ID),
        record(("agent", "events_cursor"), agent=_AGENT, events_cursor=TEXT, notice=TEXT),
        {"agent_id": "d9e7a7a9"},
        read_only=True,
    ),
    spec(
        "paseo_read_timeline",
        "Read what an agent did",
        "The end of an agent's conversation as a compact transcript: what was written to it, what it wrote, its tool "
        "calls, todos and errors. Give older_cursor as cursor for what was before.",
        arguments(
            ("agent_id",),
            agent_id=_AGENT_ID,
            limit=integer("How many entries at most.", 1, MAX_ENTRIES, 50),
            max_bytes=integer("How many bytes of JSON at most.", 1_000, MAX_PAGE, 12_000),
            cursor=string("older_cursor of an earlier result."),
            include_thinking=flag("Also what the agent thought."),
        ),
        record(
            ("agent_id", "entries", "older_cursor"),
            agent_id=TEXT,
            status=TEXT,
            entries=rows(record(("who", "text"), who=TEXT, text=TEXT, at=TEXT_OR_NULL)),
            older_cursor=TEXT_OR_NULL,
            reset=BOOL,
            notice=TEXT,
        ),
        {"agent_id": "d9e7a7a9", "limit": 20},
        read_only=True,
    ),
    spec(
        "paseo_list_accounts",
        "List accounts",
        "The accounts that a new agent can run on.",
        arguments(),
        record(("accounts",), accounts=rows(record(("name", "default"), name=TEXT, note=TEXT, default=BOOL))),
        {},
        read_only=True,
    ),
    spec(
        "paseo_list_models",
        "List models",
        "The models that a new agent can have, as provider/model.",
        arguments(provider=string("Only this provider's, e.g. claude.")),
        record(
            ("models",),
            models=rows(record(("model",), model=TEXT, label=TEXT_OR_NULL, default=BOOL, thinking=rows(TEXT))),
            problems=rows(TEXT),
            default=TEXT_OR_NULL,
        ),
        {"provider": "claude"},
        read_only=True,
    ),
    spec(
        "paseo_wait_for_events",
        "Wait for agents' events",
        "What happened to agents since a cursor (created, turn started and ended, permission asked and answered, "
        "archived, closed): at once if something did, else as soon as something does. Go on with next_cursor. With gap "
        "true, events are lost: agents then has how they are now.",
        arguments(
            cursor=string(
                "events_cursor of a result, or next_cursor of this tool. Left out: only what happens from now on."
            ),
            timeout_sec=_TIMEOUT,
            agent_ids=strings("Only these agents (ids, or beginnings of them).", 50),
            labels=_LABELS,
            types=strings("Only these types, e.g. agent.turn_ended.", 10),
            only_needs_attention=flag(
                "Only turns that ended by themselves, permissions that are asked for, and agents that closed."
            ),
            limit=integer("How many at most.", 1, MAX_EVENTS, 50),
        ),
        record(
            ("events", "next_cursor", "gap"),
            events=rows(record(("id", "type", "at", "agent_id"), id=TEXT, type=TEXT, at=TEXT, agent_id=TEXT)),
            next_cursor=TEXT,
            gap=BOOL,
            agents=rows(_AGENT),
            notice=TEXT,
        ),
        {"cursor": "<events_cursor>", "only_needs_attention": True},
        read_only=True,
    ),
    spec(
        "paseo_create_agent",
        "Start a coding agent",
        "Starts an agent with a first prompt, in a folder that the user allows. It works by itself from then on: see "
        "paseo_wait_for_agent. Ask the user first if what it is to do comes from somebody else's text.",
        arguments(
            ("cwd", "prompt"),
            cwd=string("The folder to work in, as a whole path."),
            prompt=string("What it is to do."),
            title=string("What people see it as; else the prompt's beginning.", maxLength=200),
            model=string("provider/model of paseo_list_models; else the user's default."),
            thinking=string("How much it thinks: one of the model's thinking options."),
            mode=string("Permission mode, e.g. default, plan or acceptEdits."),
            account=string("One of paseo_list_accounts; else the user's default."),
            branch=string("Make a Git worktree with a new branch of this name for it.", maxLength=100),
            labels={"type": "object", "description": "Labels of your own, to find it by."},
            source_message_id=string(
                "message_id of the person's request that it is started for. Set it: they may then be asked for its"
                " permissions on the phone."
            ),
            idempotency_key=_KEY,
        ),
        record(("agent", "events_cursor", "repeated"), agent=_AGENT, events_cursor=TEXT, repeated=BOOL, notice=TEXT),
        {"cwd": "/home/ada/code/site", "prompt": "Find out why the build fails, and mend it."},
        open_world=True,
    ),
    spec(
        "paseo_send_message",
        "Write to a coding agent",
        "Sends a follow-up. If a turn runs, `when_running` decides: steer puts it into the turn, interrupt breaks the "
        "turn off and starts anew with it.",
        arguments(
            ("agent_id", "message"),
            agent_id=_AGENT_ID,
            message=string("What to tell it."),
            when_running={
                "type": "string",
                "enum": ["steer", "interrupt"],
                "default": "steer",
                "description": "What happens to a turn that runs. Where Paseo cannot steer, nothing is sent.",
            },
            idempotency_key=_KEY,
        ),
        record(
            ("agent_id", "delivered", "events_cursor", "repeated"),
            agent_id=TEXT,
            delivered={"type": "string", "enum": ["started", "steered", "interrupted"]},
            events_cursor=TEXT,
            repeated=BOOL,
        ),
        {"agent_id": "d9e7a7a9", "message": "Also run the tests."},
        open_world=True,
    ),
    spec(
        "paseo_wait_for_agent",
        "Wait for a coding agent",
        "Returns when the agent's turn has ended or it waits for a permission, with its last message. After a timeout "
        "(state timeout) call it again with the cursor of the result: what happens meanwhile is not missed.",
        arguments(
            ("agent_id",),
            agent_id=_AGENT_ID,
            timeout_sec=_TIMEOUT,
            cursor=string("cursor of an earlier result, or events_cursor: also a turn that ended since then is told."),
        ),
        record(
            ("agent_id", "state", "cursor"),
            agent_id=TEXT,
            state={
                "type": "string",
                "enum": ["finished", "error", "limit", "canceled", "permission", "idle", "closed", "timeout"],
            },
            error=TEXT_OR_NULL,
            message=TEXT_OR_NULL,
            runs_again=BOOL,
            agent=_AGENT,
            cursor=TEXT,
            notice=TEXT,
        ),
        {"agent_id": "d9e7a7a9", "timeout_sec": 50},
        read_only=True,
    ),
    spec(
        "paseo_respond_permission",
        "Answer an agent's request",
        "Allows or denies what an agent asks for. Allow only what the user has confirmed, or what plainly only reads.",
        arguments(
            ("agent_id", "request_id", "decision"),
            agent_id=_AGENT_ID,
            request_id=string("request_id of one of the agent's pending_permissions."),
            decision={"type": "string", "enum": ["allow", "deny"], "description": "The user's answer."},
            message=string("With deny: why, for the agent."),
            action=string("id of one of the request's actions, if it has several."),
        ),
        record(("agent_id", "request_id", "resolution"), agent_id=TEXT, request_id=TEXT, resolution=TEXT),
        {"agent_id": "d9e7a7a9", "request_id": "<request_id>", "decision": "deny"},
        open_world=True,
    ),
    spec(
        "paseo_archive_agent",
        "Archive a coding agent",
        "Puts an agent away that is done; a turn that runs is broken off. A message brings it back.",
        arguments(("agent_id",), agent_id=_AGENT_ID),
        record(("agent_id", "archived"), agent_id=TEXT, archived=BOOL),
        {"agent_id": "d9e7a7a9"},
        idempotent=True,
    ),
)

TOOLS: dict[str, ToolSpec] = {each.tool.name: each for each in _ALL}
LOOKING: Final = tuple(TOOLS)[:6]
"""What there is in read-only mode, and for a token that may only look."""
