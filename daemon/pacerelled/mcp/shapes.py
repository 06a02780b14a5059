"""The words that tool schemas are made of, and the shapes of results that several tools share.

The input schemas are also what `arguments` checks against, so they use only the words it knows. Hosts differ in
what JSON Schema they take: no anyOf, and a type or an enum for every property.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mcp_types import Tool, ToolAnnotations

Schema = dict[str, Any]

MAX_WAIT_MS = 30_000
MAX_NOTE = 2_000  # characters
MAX_ROWS = 50
MAX_FILE_NAME = 512  # characters
MAX_KEY = 200  # characters
MAX_SUMMARY, MAX_NEXT, MAX_LABEL = 4_000, 1_000, 100  # characters of a checkpoint, which is always shown whole
MAX_START = 2**31 - 1  # characters


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool and the arguments of a right call, which errors show.

    `instead` names two arguments: with the first nothing else may be given, without it the second must be. The schema
    itself cannot say that.
    """

    tool: Tool
    example: dict[str, Any]
    instead: tuple[str, str] | None = None

    @property
    def only_looks(self) -> bool:
        """Whether it changes and claims nothing."""
        return self.tool.annotations is not None and bool(self.tool.annotations.read_only_hint)


def string(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, "minLength": 1, **more}


def integer(description: str, minimum: int, maximum: int, default: int) -> Schema:
    return {
        "type": "integer",
        "description": description,
        "minimum": minimum,
        "maximum": maximum,
        "default": default,
    }


def strings(description: str, most: int) -> Schema:
    return {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": most, "description": description}


def flag(description: str) -> Schema:
    return {"type": "boolean", "description": description, "default": False}


def arguments(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema


def record(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def rows(items: Schema) -> Schema:
    return {"type": "array", "items": items}


TEXT: Schema = {"type": "string"}
TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
NUMBER: Schema = {"type": "number"}
NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
COUNT: Schema = {"type": "integer"}
BOOL: Schema = {"type": "boolean"}
ANY_OBJECT: Schema = {"type": "object"}
CONNECTION: Schema = {
    "type": "string",
    "enum": ["connecting", "connected", "reconnecting", "disconnected", "stopped"],
}
REPLY_STATE: Schema = {"type": "string", "enum": ["queued", "sending", "submitted", "uncertain", "failed", "dropped"]}

SHORTENED = record(
    ("characters", "shown", "rest"), characters=COUNT, shown=COUNT, left_out=rows(TEXT), rest=TEXT, how=TEXT
)
REQUEST = record(
    ("message_id", "cursor", "conversation_id", "from", "kind", "text", "delivery"),
    message_id=TEXT,
    cursor=TEXT,
    conversation_id=TEXT,
    **{"from": TEXT},
    from_device_id=TEXT_OR_NULL,
    group=BOOL,
    sender=record(
        ("person", "verified", "group", "authorized"),
        person=TEXT,
        device=TEXT_OR_NULL,
        verified=BOOL,
        group=BOOL,
        authorized=BOOL,
    ),
    kind={"type": "string", "enum": ["text", "widget_response", "widget_update"]},
    text=TEXT,
    text_is=TEXT,
    attachments=rows(record(("id",), id=TEXT, name=TEXT, mime=TEXT, size=COUNT)),
    reply_to_message_id=TEXT_OR_NULL,
    widget_response=ANY_OBJECT,
    widget_update=ANY_OBJECT,
    widget={
        "type": ["object", "null"],
        "properties": {
            "widget_id": TEXT,
            "message_id": TEXT,
            "kind": TEXT,
            "title": TEXT,
            "source_message_id": TEXT_OR_NULL,
            "expires_at": TEXT_OR_NULL,
            "late": BOOL,
        },
    },
    received_at=TEXT,
    delivery={"type": "string", "enum": ["new", "again"]},
    encrypted=BOOL,
    claim={"type": ["object", "null"], "properties": {"session": TEXT, "label": TEXT, "mine": BOOL, "since": TEXT}},
    processed_at=TEXT_OR_NULL,
    note=TEXT_OR_NULL,
    shortened=SHORTENED,
)
REPLY = record(
    ("message_id", "conversation_id", "state"),
    message_id=TEXT,
    conversation_id=TEXT,
    to=TEXT,
    device_id=TEXT_OR_NULL,
    kind=TEXT,
    text=TEXT,
    state=REPLY_STATE,
    created_at=TEXT,
    reason=TEXT_OR_NULL,
    widget_id=TEXT_OR_NULL,
    widget={"type": ["object", "null"]},
    source_message_id=TEXT_OR_NULL,
    reply_to_message_id=TEXT_OR_NULL,
    attempts=COUNT,
    repeated=BOOL,
    shortened=SHORTENED,
)
EVENT = record(
    ("id", "seq", "at", "type", "data"),
    id=TEXT,
    epoch=TEXT,
    seq=COUNT,
    at=TEXT,
    type=TEXT,
    agent=TEXT_OR_NULL,
    data=ANY_OBJECT,
)
CHECKPOINT = record(
    ("source_message_id", "summary", "next_action", "status"),
    source_message_id=TEXT,
    conversation_id=TEXT,
    summary=TEXT,
    next_action=TEXT,
    host_session_label=TEXT_OR_NULL,
    status={"type": "string", "enum": ["active", "completed"]},
    updated_at=TEXT,
)
SENT = record(
    ("message_id", "state"),
    message_id=TEXT,
    state=REPLY_STATE,
    reason=TEXT_OR_NULL,
    conversation_id=TEXT,
    to=TEXT,
    device_id=TEXT_OR_NULL,
    widget_id=TEXT_OR_NULL,
    source_message_id=TEXT_OR_NULL,
    created_at=TEXT,
    repeated=BOOL,
)
STATUS = record(
    ("connection", "pending_requests", "uncertain_sends", "problems"),
    connection=CONNECTION,
    pending_requests=COUNT,
    uncertain_sends=rows(ANY_OBJECT),
    agent_id=TEXT,
    login={"type": "string", "enum": ["ok", "needed", "refused"]},
    quarantine_reasons=ANY_OBJECT,
    claimed=COUNT,
    queued=COUNT,
    uncertain=COUNT,
    quarantined=COUNT,
    last_traffic_age_s=NUMBER_OR_NULL,
    files=record(("save_to", "send_from"), save_to=rows(TEXT), send_from=rows(TEXT), max_bytes=COUNT),
    problems=rows(record(("code", "message"), code=TEXT, message=TEXT, hint=TEXT)),
    hosts=rows(
        record(
            ("session",),
            session=TEXT,
            label=TEXT,
            this_session=BOOL,
            connected=BOOL,
            waiting=BOOL,
            idle_s=NUMBER_OR_NULL,
            claims=COUNT,
        )
    ),
    not_shown=ANY_OBJECT,
)

SOURCE = string("message_id of the request you answer. Set it: the reply then finds its conversation, device or group.")
CONVERSATION = string("Only this conversation (conversation_id of a request).")
TARGET = string("Send into this conversation instead of answering a request. Rarely needed.")
TO = string("Send to this person instead. Rarely needed; leave it out when sourceMessageId is set.")
KEY = string(
    "A name of your own for this reply. Making the very same call again with it, also in a later session, sends "
    "nothing and returns the first result.",
    maxLength=MAX_KEY,
)
TAKE_OVER = flag(
    "Take the request over from the session that works on it. Only if the user wants that, or that session is gone."
)
ROWS = "How many at most"


def spec(
    name: str,
    title: str,
    description: str,
    arguments: Schema,
    result: Schema,
    example: dict[str, Any],
    *,
    read_only: bool = False,
    idempotent: bool = False,
    open_world: bool = False,
    instead: tuple[str, str] | None = None,
) -> ToolSpec:
    annotations = ToolAnnotations(
        title=title,
        read_only_hint=read_only,
        destructive_hint=False,
        idempotent_hint=idempotent or read_only,
        open_world_hint=open_world,
    )
    tool = Tool(
        name=name,
        title=title,
        description=description,
        input_schema=arguments,
        output_schema=result,
        annotations=annotations,
    )
    return ToolSpec(tool, example, instead)
