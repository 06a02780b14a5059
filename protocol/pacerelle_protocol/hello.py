"""The handshake on mcp.sock: a shim's first line, and the daemon's (docs/local-protocol.md)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from . import _wire
from .errors import LocalProtocolError

PROTOCOL_VERSION = 1  # understood with the one before and the one after: see docs/local-protocol.md
MAX_HELLO_TEXT = 4096  # characters of any one string in a hello


@dataclass(frozen=True, slots=True)
class Hello:
    """A shim's first line. `session` (32 hex digits) is made once in a shim's life and sent again on reconnecting.

    `in_flight` is None at first; from then on it has the calls that will be made again: the id as JSON, and how many
    seconds ago the host made it. `token_visible`: the token is in the shim's arguments, which others can see.
    `channel`: the host's entry wants requests pushed into the session. `offers`: that of the last welcome.
    """

    session: str
    shim: str
    pid: int
    host: str | None = None
    cwd: str | None = None
    agent_id: str | None = None
    token: str | None = field(default=None, repr=False)
    base_url: str | None = None
    ws_url: str | None = None
    e2ee: bool = True
    in_flight: dict[str, float] | None = None
    token_visible: bool = False
    channel: bool = False
    offers: str | None = None


_OPTIONAL = ("host", "cwd", "agent_id", "token", "base_url", "ws_url", "offers")


def encode_hello(hello: Hello) -> bytes:
    """The line with its end."""
    return _line(
        {
            "pacerelle": "hello",
            "v": PROTOCOL_VERSION,
            "session": hello.session,
            "shim": hello.shim,
            "pid": hello.pid,
            "host": hello.host,
            "cwd": hello.cwd,
            "agent_id": hello.agent_id,
            "token": hello.token,
            "base_url": hello.base_url,
            "ws_url": hello.ws_url,
            "e2ee": hello.e2ee,
            "in_flight": hello.in_flight,
            "token_visible": hello.token_visible,
            "channel": hello.channel,
            "offers": hello.offers,
        }
    )


def parse_hello(line: bytes) -> Hello:
    """Fields that are not known are ignored. Raises LocalProtocolError: bad_hello, shim_too_old, daemon_too_old."""
    try:
        obj = _wire.loads_object(line)
    except _wire.WireError:
        raise LocalProtocolError("bad_hello", "the first line must be a hello in JSON") from None
    if obj.get("pacerelle") != "hello" or type(obj.get("v")) is not int:
        raise LocalProtocolError("bad_hello", "the first line must be a hello")
    if abs(obj["v"] - PROTOCOL_VERSION) > 1:
        older, reason = "pacerelle-mcp", "shim_too_old"
        if obj["v"] > PROTOCOL_VERSION:
            older, reason = "the daemon", "daemon_too_old"
        raise LocalProtocolError(
            reason,
            f"pacerelle-mcp speaks version {obj['v']} of the local protocol, this daemon version {PROTOCOL_VERSION}:"
            f" {older} is too old",
        )
    if not isinstance(obj.get("session"), str) or not re.fullmatch("[0-9a-f]{32}", obj["session"]):
        raise _bad("session", "32 hex digits")
    if not _wire.is_count(obj.get("pid")):
        raise _bad("pid", "a whole number")
    if not _is_text(obj.get("shim")):
        raise _bad("shim", "a string")
    for name in _OPTIONAL:
        if obj.get(name) is not None and not _is_text(obj[name]):
            raise _bad(name, f"null or a string of at most {MAX_HELLO_TEXT} characters")
    for name, otherwise in (("e2ee", True), ("token_visible", False), ("channel", False)):
        if not isinstance(obj.get(name, otherwise), bool):
            raise _bad(name, "true or false")
    if not _is_ages(obj.get("in_flight")):
        raise _bad("in_flight", "null, or an object of seconds")
    return Hello(
        session=obj["session"],
        shim=obj["shim"],
        pid=obj["pid"],
        e2ee=obj.get("e2ee", True),
        in_flight=obj.get("in_flight"),
        token_visible=obj.get("token_visible", False),
        channel=obj.get("channel", False),
        **{name: obj.get(name) or None for name in _OPTIONAL},
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_HELLO_TEXT


def _is_ages(value: Any) -> bool:
    return value is None or (
        isinstance(value, dict) and all(type(age) in (int, float) and age >= 0 for age in value.values())
    )


def _bad(name: str, wanted: str) -> LocalProtocolError:
    return LocalProtocolError("bad_hello", f"the hello's {name} must be {wanted}")


def welcome_line(*, daemon: str, session: str, offers: str) -> bytes:
    """The daemon's first line to a shim it serves; `offers` is another text where the daemon has other tools."""
    return _line(
        {"pacerelle": "welcome", "v": PROTOCOL_VERSION, "daemon": daemon, "session": session, "offers": offers}
    )


def refused_line(*, code: str, message: str, hint: str, retry: bool = False) -> bytes:
    """The daemon's only line to a shim it does not serve. Codes: docs/local-protocol.md."""
    return _line(
        {
            "pacerelle": "refused",
            "v": PROTOCOL_VERSION,
            "code": code,
            "message": message,
            "hint": hint,
            "retry": retry,
        }
    )


def _line(obj: dict[str, Any]) -> bytes:
    return _wire.dumps(obj).encode() + b"\n"
