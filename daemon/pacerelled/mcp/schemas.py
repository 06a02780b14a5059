"""The eight tools as hosts see them: names, arguments and results exactly as in docs/tools.md.

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


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool and the arguments of a right call, which errors show."""

    tool: Tool
    example: dict[str, Any]


def _string(description: str, **more: Any) -> Schema:
    return {"type": "string", "description": description, "minLength": 1, **more}


def _integer(description: str, minimum: int, maximum: int, default: int) -> Schema:
    return {
        "type": "integer",
        "description": description,
        "minimum": minimum,
        "maximum": maximum,
        "default": default,
    }


def _flag(description: str) -> Schema:
    return {"type": "boolean", "description": description, "default": False}


def _arguments(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return schema


def _object(required: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(required)}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


_TEXT: Schema = {"type": "string"}
_TEXT_OR_NULL: Schema = {"type": ["string", "null"]}
_NUMBER: Schema = {"type": "number"}
_NUMBER_OR_NULL: Schema = {"type": ["number", "null"]}
_COUNT: Schema = {"type": "integer"}
_BOOL: Schema = {"type": "boolean"}
_ANY_OBJECT: Schema = {"type": "object"}
_CONNECTION: Schema = {
    "type": "string",
    "enum": ["connecting", "connected", "reconnecting", "disconnected", "stopped"],
}
_REPLY_STATE: Schema = {"type": "string", "enum": ["queued", "sending", "submitted", "uncertain", "failed"]}

_REQUEST = _object(
    ("message_id", "cursor", "conversation_id", "from", "kind", "text", "delivery"),
    message_id=_TEXT,
    cursor=_TEXT,
    conversation_id=_TEXT,
    **{"from": _TEXT},
    from_device_id=_TEXT_OR_NULL,
    group=_BOOL,
    kind={"type": "string", "enum": ["text", "widget_response", "widget_update"]},
    text=_TEXT,
    text_is=_TEXT,
    attachments=_list(_object(("id",), id=_TEXT, name=_TEXT, mime=_TEXT, size=_COUNT)),
    reply_to_message_id=_TEXT_OR_NULL,
    widget_response=_ANY_OBJECT,
    widget_update=_ANY_OBJECT,
    received_at=_TEXT,
    delivery={"type": "string", "enum": ["new", "again"]},
    encrypted=_BOOL,
    claim={"type": ["object", "null"], "properties": {"session": _TEXT, "label": _TEXT, "mine": _BOOL, "since": _TEXT}},
    processed_at=_TEXT_OR_NULL,
    note=_TEXT_OR_NULL,
)
_REPLY = _object(
    ("message_id", "conversation_id", "state"),
    message_id=_TEXT,
    conversation_id=_TEXT,
    to=_TEXT,
    device_id=_TEXT_OR_NULL,
    kind=_TEXT,
    text=_TEXT,
    state=_REPLY_STATE,
    created_at=_TEXT,
    reason=_TEXT_OR_NULL,
    widget_id=_TEXT_OR_NULL,
    widget={"type": ["object", "null"]},
    source_message_id=_TEXT_OR_NULL,
    reply_to_message_id=_TEXT_OR_NULL,
    repeated=_BOOL,
)
_CHECKPOINT = _object(
    ("source_message_id", "summary", "next_action", "status"),
    source_message_id=_TEXT,
    conversation_id=_TEXT,
    summary=_TEXT,
    next_action=_TEXT,
    host_session_label=_TEXT_OR_NULL,
    status={"type": "string", "enum": ["active", "completed"]},
    updated_at=_TEXT,
)
_SENT = _object(
    ("message_id", "state"),
    message_id=_TEXT,
    state=_REPLY_STATE,
    reason=_TEXT_OR_NULL,
    conversation_id=_TEXT,
    to=_TEXT,
    device_id=_TEXT_OR_NULL,
    widget_id=_TEXT_OR_NULL,
    source_message_id=_TEXT_OR_NULL,
    created_at=_TEXT,
    repeated=_BOOL,
)
_STATUS = _object(
    ("connection", "pending_requests", "uncertain_sends", "problems"),
    connection=_CONNECTION,
    pending_requests=_COUNT,
    uncertain_sends=_list(_ANY_OBJECT),
    agent_id=_TEXT,
    login={"type": "string", "enum": ["ok", "needed", "refused"]},
    claimed=_COUNT,
    queued=_COUNT,
    uncertain=_COUNT,
    quarantined=_COUNT,
    last_traffic_age_s=_NUMBER_OR_NULL,
    problems=_list(_object(("code", "message"), code=_TEXT, message=_TEXT, hint=_TEXT)),
    hosts=_list(
        _object(
            ("session",),
            session=_TEXT,
            label=_TEXT,
            this_session=_BOOL,
            connected=_BOOL,
            waiting=_BOOL,
            idle_s=_NUMBER_OR_NULL,
            claims=_COUNT,
        )
    ),
)

_SOURCE = _string(
    "message_id of the request you answer. Set it: the reply then finds its conversation, device or group."
)
_CONVERSATION = _string("Only this conversation (conversation_id of a request).")
_TARGET = _string("Send into this conversation instead of answering a request. Rarely needed.")
_TO = _string("Send to this person instead. Rarely needed; leave it out when sourceMessageId is set.")
_ROWS = "How many at most"


def _spec(
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
    return ToolSpec(tool, example)


_ALL = (
    _spec(
        "get_status",
        "Status",
        "How things are: the connection to the relay, requests that wait, replies whose arrival is "
        "uncertain, problems with what to do about them, and the hosts that listen. Call it first.",
        _arguments(),
        _STATUS,
        {},
        read_only=True,
    ),
    _spec(
        "wait_for_messages",
        "Wait for messages",
        "Returns the requests that are not processed yet, at once if there are any, or waits for new "
        "ones. What it returns is claimed for this session. It never marks anything as processed: call "
        "mark_processed for that. Call it again after each round, without afterCursor.",
        _arguments(
            timeoutMs=_integer("How long to wait, in milliseconds; 0 only looks.", 0, MAX_WAIT_MS, 25_000),
            conversationId=_CONVERSATION,
            limit=_integer(_ROWS, 1, MAX_ROWS, 10),
            afterCursor=_string(
                "Only requests after this cursor, to page while has_more is true. Leave it out otherwise: "
                "it skips earlier requests, also unfinished ones."
            ),
            includeClaimed=_flag("Also show requests that another session works on; `claim` says which."),
        ),
        _object(
            ("messages", "cursor", "has_more", "connection"),
            messages=_list(_REQUEST),
            cursor=_TEXT_OR_NULL,
            has_more=_BOOL,
            connection=_CONNECTION,
            notice=_TEXT,
        ),
        {"timeoutMs": 25_000},
        idempotent=True,
    ),
    _spec(
        "send_message",
        "Send a reply",
        "Sends text to the person, encrypted. Give the request's message_id as sourceMessageId. A "
        "reply that is queued is delivered as soon as the relay can be reached: do not send it again.",
        _arguments(
            ("text",),
            text=_string("The text of the reply."),
            sourceMessageId=_SOURCE,
            conversationId=_TARGET,
            to=_TO,
            replyToMessageId=_string("Show the reply as an answer to this message."),
        ),
        _SENT,
        {"text": "Done: the report is in your folder.", "sourceMessageId": "<message_id of the request>"},
        open_world=True,
    ),
    _spec(
        "send_widget",
        "Send a widget",
        "Shows the person a widget (confirm, choice, permission, form, progress, file-picker or datetime) "
        "where the request came from. Their answer arrives through wait_for_messages as a request of kind "
        "widget_response.",
        _arguments(
            ("widgetJson",),
            widgetJson={
                "type": ["string", "object"],
                "description": "A widget.standard, version 1, as an object or as its JSON text: "
                '{"type":"widget.standard","v":1,"id":"confirm-1","kind":"confirm","spec":{"title":"Publish?"}}',
            },
            sourceMessageId=_SOURCE,
            conversationId=_TARGET,
            to=_TO,
        ),
        _SENT,
        {
            "widgetJson": {
                "type": "widget.standard",
                "v": 1,
                "id": "confirm-1",
                "kind": "confirm",
                "spec": {"title": "Publish?"},
            },
            "sourceMessageId": "<message_id of the request>",
        },
        open_world=True,
    ),
    _spec(
        "mark_processed",
        "Mark as processed",
        "Marks a request as done, so that it is not handed out again. Only this tool does that. Call it "
        "after the work and the reply.",
        _arguments(
            ("messageId",),
            messageId=_string("message_id of the request."),
            note=_string("What was done, for the record.", maxLength=MAX_NOTE),
        ),
        _object(
            ("message_id", "processed_at"),
            message_id=_TEXT,
            conversation_id=_TEXT,
            processed_at=_TEXT_OR_NULL,
            note=_TEXT_OR_NULL,
        ),
        {"messageId": "<message_id of the request>", "note": "Sent the report."},
        idempotent=True,
    ),
    _spec(
        "get_history",
        "History",
        "Recent requests and replies, up to 50 of each, oldest first. For context only: it claims and changes nothing.",
        _arguments(conversationId=_CONVERSATION, limit=_integer(f"{_ROWS} of each", 1, MAX_ROWS, MAX_ROWS)),
        _object(("requests", "replies"), requests=_list(_REQUEST), replies=_list(_REPLY), notice=_TEXT),
        {"limit": 20},
        read_only=True,
    ),
    _spec(
        "save_checkpoint",
        "Save a checkpoint",
        "Saves how far the work on a request is, for a later session to continue. One checkpoint a "
        "request: a newer one replaces it.",
        _arguments(
            ("sourceMessageId", "summary", "nextAction"),
            sourceMessageId=_string("message_id of the request that the work is for."),
            summary=_string("What has been done so far."),
            nextAction=_string("What comes next."),
            hostSessionLabel=_string("A name for this session, for people to read."),
            status={
                "type": "string",
                "enum": ["active", "completed"],
                "description": "completed once the work is done.",
                "default": "active",
            },
        ),
        _CHECKPOINT,
        {
            "sourceMessageId": "<message_id of the request>",
            "summary": "Collected the figures.",
            "nextAction": "Write the report.",
        },
        idempotent=True,
    ),
    _spec(
        "get_checkpoints",
        "Checkpoints",
        "The checkpoints of unfinished work. Read them when you start.",
        _arguments(conversationId=_CONVERSATION, includeCompleted=_flag("Also those that are completed.")),
        _object(("checkpoints",), checkpoints=_list(_CHECKPOINT), notice=_TEXT),
        {},
        read_only=True,
    ),
)

TOOLS: dict[str, ToolSpec] = {spec.tool.name: spec for spec in _ALL}
