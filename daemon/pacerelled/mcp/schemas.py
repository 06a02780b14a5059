"""The tools as hosts see them: names, arguments and results exactly as in docs/tools.md."""

from __future__ import annotations

from .shapes import (
    ANY_OBJECT,
    BOOL,
    CHECKPOINT,
    CONNECTION,
    CONVERSATION,
    COUNT,
    EVENT,
    KEY,
    MAX_FILE_NAME,
    MAX_LABEL,
    MAX_NEXT,
    MAX_NOTE,
    MAX_ROWS,
    MAX_START,
    MAX_SUMMARY,
    MAX_WAIT_MS,
    REPLY,
    REQUEST,
    ROWS,
    SENT,
    SOURCE,
    STATUS,
    TAKE_OVER,
    TARGET,
    TEXT,
    TEXT_OR_NULL,
    TO,
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

_ALL = (
    spec(
        "get_status",
        "Status",
        "How things are: the connection to the relay, requests that wait, replies whose arrival is "
        "uncertain, problems with what to do about them, and the hosts that listen. Call it first.",
        arguments(),
        STATUS,
        {},
        read_only=True,
    ),
    spec(
        "wait_for_messages",
        "Wait for messages",
        "Returns the requests that are not processed yet, at once if there are any, or waits for new "
        "ones. What it returns is claimed for this session. It never marks anything as processed: call "
        "mark_processed for that. Call it again after each round, without afterCursor.",
        arguments(
            timeoutMs=integer("How long to wait, in milliseconds; 0 only looks.", 0, MAX_WAIT_MS, 25_000),
            conversationId=CONVERSATION,
            limit=integer(ROWS, 1, MAX_ROWS, 10),
            afterCursor=string(
                "Only requests after this cursor, to page while has_more is true. Leave it out otherwise: "
                "it skips earlier requests, also unfinished ones."
            ),
            includeClaimed=flag("Also show requests that another session works on; `claim` says which."),
            release=strings(
                "message_ids of requests to give back first, unfinished: other sessions get them, this one does not "
                "again.",
                MAX_ROWS,
            ),
        ),
        record(
            ("messages", "cursor", "has_more", "connection"),
            messages=rows(REQUEST),
            cursor=TEXT_OR_NULL,
            has_more=BOOL,
            connection=CONNECTION,
            notice=TEXT,
        ),
        {"timeoutMs": 25_000},
        idempotent=True,
    ),
    spec(
        "wait_for_events",
        "Wait for events",
        "Tells what happened around the work: requests received or done, replies submitted or failed, devices and "
        "connections that changed, coding agents that finished. It claims nothing: use wait_for_messages to "
        "work on requests. Pass on next_cursor to miss nothing.",
        arguments(
            cursor=string("next_cursor of an earlier result, or the id of an event. Without one: from now on."),
            timeoutMs=integer(
                "How long to wait for the first event, in milliseconds; 0 only looks.", 0, MAX_WAIT_MS, 25_000
            ),
            types=strings('Only events of these types; "reply.*" stands for all that begin so.', MAX_ROWS),
            agentIds=strings("Only events of these agents.", MAX_ROWS),
            conversationIds=strings("Only events of these conversations.", MAX_ROWS),
            onlyNeedsAttention=flag("Only events after which somebody has to do something."),
            limit=integer(ROWS, 1, MAX_ROWS, 20),
        ),
        record(("events", "next_cursor", "gap"), events=rows(EVENT), next_cursor=TEXT, gap=BOOL, state=ANY_OBJECT),
        {"timeoutMs": 25_000, "onlyNeedsAttention": True},
        read_only=True,
    ),
    spec(
        "send_message",
        "Send a reply",
        "Sends text to the person, encrypted. Give the request's message_id as sourceMessageId. A "
        "reply that is queued is delivered as soon as the relay can be reached: do not send it again. One that is "
        "uncertain can be sent again unchanged: give its message_id as retryMessageId, and nothing else.",
        arguments(
            text=string("The text of the reply. Required, except with retryMessageId."),
            sourceMessageId=SOURCE,
            conversationId=TARGET,
            to=TO,
            replyToMessageId=string("Show the reply as an answer to this message."),
            takeOver=TAKE_OVER,
            idempotencyKey=KEY,
            retryMessageId=string(
                "message_id of an uncertain reply, to send its identical envelope again; the person sees it once, also "
                "if it had arrived. Goes alone, without text."
            ),
        ),
        SENT,
        {"text": "Done: the report is in your folder.", "sourceMessageId": "<message_id of the request>"},
        open_world=True,
        instead=("retryMessageId", "text"),
    ),
    spec(
        "send_widget",
        "Send a widget",
        "Shows the person a widget (confirm, choice, permission, form, progress, file-picker or datetime) "
        "where the request came from. Their answer arrives through wait_for_messages as a request of kind "
        "widget_response.",
        arguments(
            ("widgetJson",),
            widgetJson={
                "type": ["string", "object"],
                "description": "A widget.standard, version 1, as an object or as its JSON text: "
                '{"type":"widget.standard","v":1,"id":"confirm-1","kind":"confirm","spec":{"title":"Publish?"}}',
            },
            sourceMessageId=SOURCE,
            conversationId=TARGET,
            to=TO,
            takeOver=TAKE_OVER,
            idempotencyKey=KEY,
        ),
        SENT,
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
    spec(
        "update_widget",
        "Update a widget",
        "Changes a widget that send_widget has shown: the progress, a question's words, or until when it can be "
        "answered. Give only what changes.",
        arguments(
            ("messageId",),
            messageId=string("message_id that send_widget returned."),
            spec={
                "type": ["string", "object"],
                "description": "The fields of the widget's spec that change, as an object or as its JSON text: "
                '{"value":60}',
            },
            expiresAt=string(
                "Until when it can be answered, as 2030-05-21T09:00:00Z. A time that has passed closes the widget."
            ),
            idempotencyKey=KEY,
        ),
        SENT,
        {"messageId": "<message_id that send_widget returned>", "spec": {"value": 60}},
        idempotent=True,
        open_world=True,
    ),
    spec(
        "mark_processed",
        "Mark as processed",
        "Marks a request as done, so that it is not handed out again. Only this tool does that. Call it "
        "after the work and the reply.",
        arguments(
            ("messageId",),
            messageId=string("message_id of the request."),
            note=string("What was done, for the record.", maxLength=MAX_NOTE),
            takeOver=TAKE_OVER,
        ),
        record(
            ("message_id", "processed_at"),
            message_id=TEXT,
            conversation_id=TEXT,
            processed_at=TEXT_OR_NULL,
            note=TEXT_OR_NULL,
        ),
        {"messageId": "<message_id of the request>", "note": "Sent the report."},
        idempotent=True,
    ),
    spec(
        "get_history",
        "History",
        "Recent requests and replies, up to 50 of each, oldest first. For context only: it claims and changes nothing.",
        arguments(
            conversationId=CONVERSATION,
            limit=integer(f"{ROWS} of each", 1, MAX_ROWS, MAX_ROWS),
            before=string("`cursor` of an earlier result, to see what came before it, while has_more is true."),
        ),
        record(
            ("requests", "replies", "cursor", "has_more"),
            requests=rows(REQUEST),
            replies=rows(REPLY),
            cursor=TEXT_OR_NULL,
            has_more=BOOL,
            notice=TEXT,
        ),
        {"limit": 20},
        read_only=True,
    ),
    spec(
        "read_message",
        "Read a long message",
        "The whole of a request or reply that a result shows `shortened`, in pages: go on with start = `next` until "
        "that is null. It claims and changes nothing.",
        arguments(
            ("messageId",),
            messageId=string("message_id of the request or reply."),
            start=integer("The character to start with.", 0, MAX_START, 0),
        ),
        record(
            ("message_id", "content", "start", "end", "characters", "next"),
            message_id=TEXT,
            kind=TEXT,
            mime=TEXT,
            content=TEXT,
            content_is=TEXT,
            start=COUNT,
            end=COUNT,
            characters=COUNT,
            next={"type": ["integer", "null"]},
            notice=TEXT,
        ),
        {"messageId": "<message_id of the request>", "start": 12000},
        read_only=True,
    ),
    spec(
        "save_checkpoint",
        "Save a checkpoint",
        "Saves how far the work on a request is, for a later session to continue. One checkpoint a "
        "request: a newer one replaces it.",
        arguments(
            ("sourceMessageId", "summary", "nextAction"),
            sourceMessageId=string("message_id of the request that the work is for."),
            summary=string("What has been done so far.", maxLength=MAX_SUMMARY),
            nextAction=string("What comes next.", maxLength=MAX_NEXT),
            hostSessionLabel=string("A name for this session, for people to read.", maxLength=MAX_LABEL),
            status={
                "type": "string",
                "enum": ["active", "completed"],
                "description": "completed once the work is done.",
                "default": "active",
            },
            takeOver=TAKE_OVER,
        ),
        CHECKPOINT,
        {
            "sourceMessageId": "<message_id of the request>",
            "summary": "Collected the figures.",
            "nextAction": "Write the report.",
        },
        idempotent=True,
    ),
    spec(
        "get_checkpoints",
        "Checkpoints",
        "The checkpoints of unfinished work. Read them when you start.",
        arguments(
            conversationId=CONVERSATION,
            includeCompleted=flag("Also those that are completed."),
            limit=integer(ROWS, 1, MAX_ROWS, MAX_ROWS),
            afterCursor=string("`cursor` of an earlier result, to go on after it while has_more is true."),
        ),
        record(
            ("checkpoints", "cursor", "has_more"),
            checkpoints=rows(CHECKPOINT),
            cursor=TEXT_OR_NULL,
            has_more=BOOL,
            notice=TEXT,
        ),
        {},
        read_only=True,
    ),
    spec(
        "send_file",
        "Send a file",
        "Sends a file of this computer to the person, encrypted, from a folder that the user has allowed (get_status "
        "shows them in files.send_from). It is uploaded at once, so the relay must be reachable.",
        arguments(
            ("path",),
            path=string("The file, as a whole path (~ is the user's home)."),
            sourceMessageId=SOURCE,
            text=string("A text beside it."),
            name=string("The name that the person sees, if not the file's own.", maxLength=MAX_FILE_NAME),
            mime=string("The MIME type, if not the one that the name or a picture's first bytes tell."),
            conversationId=TARGET,
            to=TO,
            takeOver=TAKE_OVER,
            idempotencyKey=KEY,
        ),
        SENT,
        {"path": "~/Documents/report.pdf", "sourceMessageId": "<message_id of the request>"},
        open_world=True,
    ),
    spec(
        "save_attachment",
        "Save an attachment",
        "Fetches a file that came with a request, decrypts and checks it, and saves it as a new file in an allowed "
        "folder (get_status shows them in files.save_to). Nothing is overwritten. Read it from the path in the result.",
        arguments(
            ("messageId", "attachmentId"),
            messageId=string("message_id of the request."),
            attachmentId=string("id of one of its attachments."),
            directory=string("Another folder inside the allowed ones, as a whole path; it must exist."),
        ),
        record(("path", "size", "mime"), path=TEXT, name=TEXT, mime=TEXT, size=COUNT, notice=TEXT),
        {"messageId": "<message_id of the request>", "attachmentId": "<id of its attachment>"},
    ),
)

TOOLS: dict[str, ToolSpec] = {each.tool.name: each for each in _ALL}
