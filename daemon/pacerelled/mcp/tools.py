"""What the tools do: arguments that were checked become a call of the domain, its result a host's."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp.server import ServerRequestContext

from pacerelled.agent.api import AgentApi, HubApi
from pacerelled.agent.model import Reply, Session
from pacerelled.agent.wanted import Wanted
from pacerelled.errors import InvalidArgument

from .progress import PROGRESS_EVERY, progress
from .results import FILE_NOTICE, NOTICE
from .sizes import Room, page, shown, some

Arguments = dict[str, Any]

TRANSFER_EVERY = 3.0  # seconds, while a file is on its way

_MAX_CURSOR = 2**63 - 1
_STATUS_ROWS = {"uncertain_sends": 7_000, "problems": 6_000, "hosts": 7_000}  # bytes of each list in the status
_EVENT_BYTES = 20_000  # of one result
_SENT = (
    "message_id",
    "state",
    "reason",
    "conversation_id",
    "to",
    "device_id",
    "widget_id",
    "source_message_id",
    "created_at",
    "repeated",
)


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call: who asks, for which agent."""

    hub: HubApi
    agent: AgentApi
    session: Session
    context: ServerRequestContext[Any]
    labels: Mapping[str, str] = field(default_factory=dict)  # of the coding agents that it sees

    @property
    def id(self) -> str | None:
        """The same for a repeated call. Request ids 1 and "1" are two calls.

        None over HTTP: nobody repeats calls there, and clients that share a token count from 1 each.
        """
        if self.session.transport == "http":
            return None
        return json.dumps(self.context.request_id)


async def get_status(call: Call, _: Arguments) -> dict[str, Any]:
    agent_id = call.agent.agent_id
    status = await call.agent.status()
    daemon = await call.hub.status()
    ours = (None, agent_id)  # what names no agent concerns all
    result = {
        "connection": status.pop("connection"),
        "pending_requests": status.pop("pending"),
        "uncertain_sends": status.pop("uncertain_sends"),
        **status,
        "problems": [p for p in daemon["health"]["problems"] if p.get("agent_id") in ours],
        "hosts": [
            {"this_session": host["session"] == call.session.id, **host}
            for host in sorted(daemon["hosts"], key=lambda host: (host["session"] != call.session.id, -host["claims"]))
            if host["agent_id"] in ours
        ],
    }
    not_shown = {}
    for name, most in _STATUS_ROWS.items():
        rows, result[name] = result[name], some(result[name], most)
        if len(result[name]) < len(rows):
            not_shown[name] = len(rows) - len(result[name])
    return result | ({"not_shown": not_shown} if not_shown else {})


async def wait_for_messages(call: Call, arguments: Arguments) -> dict[str, Any]:
    timeout = arguments["timeoutMs"] / 1000
    waited = call.session.age(call.id)  # a repeated call goes on waiting: its host's patience has not begun anew
    started = time.monotonic() - waited
    with progress(call.context, PROGRESS_EVERY, lambda: (time.monotonic() - started, timeout, "Waiting for messages")):
        found = await call.agent.wait_for_messages(
            call.session,
            timeout=max(0.0, timeout - waited),
            conversation_id=arguments["conversationId"],
            limit=arguments["limit"],
            after=_cursor(arguments["afterCursor"]),
            include_claimed=arguments["includeClaimed"],
            release=arguments["release"] or (),
            fits=Room().fits,
            call_id=call.id,
        )
    result = {
        "messages": [shown(request) for request in found.messages],
        "cursor": found.cursor,
        "has_more": found.has_more,
        "connection": found.connection,
    }
    return result | ({"notice": NOTICE} if found.messages else {})


async def wait_for_events(call: Call, arguments: Arguments) -> dict[str, Any]:
    timeout = arguments["timeoutMs"] / 1000
    waited = call.session.age(call.id)
    started = time.monotonic() - waited
    wanted = Wanted(
        types=tuple(arguments["types"] or ()),
        agents=tuple(arguments["agentIds"] or ()),
        conversations=tuple(arguments["conversationIds"] or ()),
        needs_attention=arguments["onlyNeedsAttention"],
        only_of=call.agent.agent_id,
        only_coding=call.labels,
    )
    with progress(call.context, PROGRESS_EVERY, lambda: (time.monotonic() - started, timeout, "Waiting for events")):
        found = await call.hub.event_log.wait(
            arguments["cursor"], wanted, limit=arguments["limit"], timeout=max(0.0, timeout - waited)
        )
    if found["gap"]:
        ours = [agent for agent in found["state"]["agents"] if agent["agent_id"] == call.agent.agent_id]
        return {**found, "state": {"agents": ours}}
    events = some(found["events"], _EVENT_BYTES)
    cut = len(events) < len(found["events"])
    return {**found, "events": events, "next_cursor": events[-1]["id"] if cut else found["next_cursor"]}


async def send_message(call: Call, arguments: Arguments) -> dict[str, Any]:
    if arguments["retryMessageId"] is not None:
        return _sent(await call.agent.retry_reply(arguments["retryMessageId"], session=call.session, call_id=call.id))
    reply = await call.agent.send_message(
        call.session,
        text=arguments["text"],
        source_message_id=arguments["sourceMessageId"],
        conversation_id=arguments["conversationId"],
        to=arguments["to"],
        reply_to_message_id=arguments["replyToMessageId"],
        take_over=arguments["takeOver"],
        call_id=call.id,
        idempotency_key=arguments["idempotencyKey"],
    )
    return _sent(reply)


async def send_widget(call: Call, arguments: Arguments) -> dict[str, Any]:
    reply = await call.agent.send_widget(
        call.session,
        widget=arguments["widgetJson"],
        source_message_id=arguments["sourceMessageId"],
        conversation_id=arguments["conversationId"],
        to=arguments["to"],
        take_over=arguments["takeOver"],
        call_id=call.id,
        idempotency_key=arguments["idempotencyKey"],
    )
    return _sent(reply)


async def update_widget(call: Call, arguments: Arguments) -> dict[str, Any]:
    reply = await call.agent.update_widget(
        call.session,
        message_id=arguments["messageId"],
        spec=_object(arguments["spec"], "spec"),
        expires_at=arguments["expiresAt"],
        call_id=call.id,
        idempotency_key=arguments["idempotencyKey"],
    )
    return _sent(reply)


async def mark_processed(call: Call, arguments: Arguments) -> dict[str, Any]:
    request = await call.agent.mark_processed(
        call.session, arguments["messageId"], note=arguments["note"], take_over=arguments["takeOver"]
    )
    return {
        "message_id": request.message_id,
        "conversation_id": request.conversation_id,
        "processed_at": request.processed_at,
        "note": request.note,
    }


async def get_history(call: Call, arguments: Arguments) -> dict[str, Any]:
    found = await call.agent.history(
        session=call.session,
        conversation_id=arguments["conversationId"],
        limit=arguments["limit"],
        before=arguments["before"],
        fits=Room().fits,
    )
    return {
        "requests": [shown(request) for request in found.requests],
        "replies": [shown(reply) for reply in found.replies],
        "cursor": found.cursor,
        "has_more": found.cursor is not None,
        "notice": NOTICE,
    }


async def read_message(call: Call, arguments: Arguments) -> dict[str, Any]:
    message = await call.agent.message(arguments["messageId"])
    return {**page(message, arguments["start"]), "notice": NOTICE}


async def save_checkpoint(call: Call, arguments: Arguments) -> dict[str, Any]:
    checkpoint = await call.agent.save_checkpoint(
        call.session,
        source_message_id=arguments["sourceMessageId"],
        summary=arguments["summary"],
        next_action=arguments["nextAction"],
        host_session_label=arguments["hostSessionLabel"],
        status=arguments["status"],
        take_over=arguments["takeOver"],
        call_id=call.id,
    )
    return checkpoint.as_dict()


async def get_checkpoints(call: Call, arguments: Arguments) -> dict[str, Any]:
    found = await call.agent.checkpoints(
        conversation_id=arguments["conversationId"],
        include_completed=arguments["includeCompleted"],
        limit=arguments["limit"],
        after=_cursor(arguments["afterCursor"]),
        fits=Room().fits,
    )
    return {
        "checkpoints": [shown(checkpoint) for checkpoint in found.checkpoints],
        "cursor": found.cursor,
        "has_more": found.has_more,
        "notice": NOTICE,
    }


async def send_file(call: Call, arguments: Arguments) -> dict[str, Any]:
    transfer = _Transfer("Sending")
    with progress(call.context, TRANSFER_EVERY, transfer.state):
        reply = await call.agent.send_path(
            call.session,
            path=arguments["path"],
            name=arguments["name"],
            mime=arguments["mime"],
            text=arguments["text"] or "",
            source_message_id=arguments["sourceMessageId"],
            conversation_id=arguments["conversationId"],
            to=arguments["to"],
            take_over=arguments["takeOver"],
            call_id=call.id,
            idempotency_key=arguments["idempotencyKey"],
            on_progress=transfer.note,
        )
    return _sent(reply)


async def save_attachment(call: Call, arguments: Arguments) -> dict[str, Any]:
    transfer = _Transfer("Saving")
    with progress(call.context, TRANSFER_EVERY, transfer.state):
        saved = await call.agent.save_attachment(
            message_id=arguments["messageId"],
            attachment_id=arguments["attachmentId"],
            directory=arguments["directory"],
            session=call.session,
            call_id=call.id,
            on_progress=transfer.note,
        )
    return {**saved.as_dict(), "notice": FILE_NOTICE}


RUN: dict[str, Callable[[Call, Arguments], Awaitable[dict[str, Any]]]] = {
    tool.__name__: tool
    for tool in (
        get_status,
        wait_for_messages,
        wait_for_events,
        send_message,
        send_widget,
        update_widget,
        mark_processed,
        get_history,
        read_message,
        save_checkpoint,
        get_checkpoints,
        send_file,
        save_attachment,
    )
}


def _sent(reply: Reply) -> dict[str, Any]:
    whole = reply.as_dict()
    return {name: whole[name] for name in _SENT}


def _object(value: str | dict[str, Any] | None, argument: str) -> dict[str, Any] | None:
    """An object that may have come as its JSON text."""
    if not isinstance(value, str):
        return value
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise InvalidArgument(f"{argument} must be an object or its JSON text", argument=argument)
    return parsed


def _cursor(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= _MAX_CURSOR):
        raise InvalidArgument(
            "afterCursor is not a cursor that an earlier result gave",
            argument="afterCursor",
            hint="Leave afterCursor out to see every unfinished request.",
        )
    return int(text)


class _Transfer:
    """How far a file is."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._done, self._size = 0, 0

    def note(self, done: int, size: int) -> None:
        self._done, self._size = done, size

    def state(self) -> tuple[float, float, str]:
        return self._done, self._size, f"{self._doing} the file"
