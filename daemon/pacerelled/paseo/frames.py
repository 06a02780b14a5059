"""Frames of a Paseo daemon's WebSocket: values in, JSON text out, and back. No socket, no clock.

What is not known is passed over: new versions add messages, fields and items. Our requests never hold a null, which the
daemon refuses.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PROTOCOL_VERSION = 1
APP_VERSION = "0.1.65"  # from 0.1.45 on a client is shown the agents of every provider
PING = '{"type":"ping"}'
_MAX_ERROR = 500  # characters of a daemon's words that are passed on

# Their `requestId` is not (only) that of a request of ours: a permission's, or another client's.
_NEVER_ANSWERS = frozenset({"agent_permission_request", "agent_permission_resolved", "agent_deleted", "agent_stream"})


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The daemon took our hello: only now there is a connection. Sent again when its features change."""

    server_id: str
    version: str | None
    features: frozenset[str]


@dataclass(frozen=True, slots=True)
class Rejected:
    """The daemon did not take our hello; `reason` is its word, e.g. `incorrect_password`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What came for one request. `error` is set where the daemon says that it failed."""

    request_id: str
    type: str
    payload: dict[str, Any] = field(repr=False)
    error: str | None = None
    code: str | None = None


@dataclass(frozen=True, slots=True)
class Push:
    """Something that nobody asked for."""

    type: str
    payload: dict[str, Any] = field(repr=False)


Frame = ServerInfo | Rejected | Answer | Push


def hello(client_id: str, auth: Mapping[str, str] | None) -> str:
    """The first frame. `auth` is for daemons that take it; older ones pass it over."""
    frame: dict[str, Any] = {
        "type": "hello",
        "clientId": client_id,
        "clientType": "mcp",
        "protocolVersion": PROTOCOL_VERSION,
        "appVersion": APP_VERSION,
        "capabilities": {"reasoning_merge_enum": True, "all_providers": True, "hello_rejection": True},
    }
    if auth is not None:
        frame["auth"] = dict(auth)
    return json.dumps(frame)


def request(kind: str, request_id: str, fields: Mapping[str, Any]) -> str:
    """A request, without the fields that are None."""
    message = {"type": kind, "requestId": request_id, **_without_nulls(fields)}
    return json.dumps({"type": "session", "message": message})


def parse(raw: str | bytes) -> Frame | None:
    """The frame; None for what is of no use to us, or broken."""
    if isinstance(raw, bytes):
        return None  # terminals
    try:
        frame = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(frame, dict):
        return None
    if frame.get("type") == "hello.rejected":
        return Rejected(text(frame.get("reason")) or "rejected")
    message = frame.get("message")
    if frame.get("type") != "session" or not isinstance(message, dict):
        return None
    kind, payload = message.get("type"), message.get("payload")
    if not isinstance(kind, str) or not isinstance(payload, dict):
        return None
    if kind == "status" and payload.get("status") == "server_info":
        return _server_info(payload)
    request_id = payload.get("requestId")
    if isinstance(request_id, str) and kind not in _NEVER_ANSWERS:
        error, code = _failure(kind, payload)
        return Answer(request_id, kind, payload, error, code)
    return Push(kind, payload)


def text(value: Any) -> str | None:
    """A string that says something, else None."""
    return value if isinstance(value, str) and value else None


def _server_info(payload: dict[str, Any]) -> ServerInfo:
    features = payload.get("features")
    named = features.items() if isinstance(features, dict) else ()
    return ServerInfo(
        server_id=text(payload.get("serverId")) or "",
        version=text(payload.get("version")),
        features=frozenset(name for name, on in named if on is True),
    )


def _failure(kind: str, payload: dict[str, Any]) -> tuple[str | None, str | None]:
    """The daemon has four ways to say that a request failed."""
    failed = (
        kind == "rpc_error"
        or payload.get("status") == "agent_create_failed"
        or payload.get("accepted") is False
        or text(payload.get("error")) is not None
    )
    if not failed:
        return None, None
    words = text(payload.get("error")) or "it gave no reason"
    return words[:_MAX_ERROR], text(payload.get("code")) or text(payload.get("errorCode"))


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    return value
