"""The local protocol: where the daemon's files and sockets are, and the handshake on mcp.sock (docs/local-protocol.md).

Standard library only, and little of it: the command line and the daemon's start pay for this import.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import _wire
from .errors import LocalProtocolError

PROTOCOL_VERSION = 1  # understood with the one before and the one after: see docs/local-protocol.md
MAX_LINE = 16 * 1024 * 1024  # bytes of a line on mcp.sock, its end included
MAX_SOCKET_PATH = 103  # bytes: what fits into macOS's sun_path with its NUL
MAX_HELLO_TEXT = 4096  # characters of any one string in a hello

DEFAULT_STORE_ROOT = "~/.pacerelle/mcp"


@dataclass(frozen=True, slots=True)
class LocalPaths:
    """Every path the daemon uses. `state` holds all but, where its path is too long, the sockets."""

    state: Path
    mcp_sock: Path
    control_sock: Path
    lock: Path
    start_lock: Path
    store: Path
    key_file: Path
    config: Path
    log: Path


def local_paths(store_root: str | None, socket: str | None = None, *, env: Mapping[str, str], uid: int) -> LocalPaths:
    """The paths for a store root (None or empty: `PACERELLE_STORE_ROOT`, then the default) and `--socket`.

    Raises LocalProtocolError: no_home, no_cwd, bad_path, socket_path (a `--socket` that is too long, or takes
    control.sock's name).
    """
    root = store_root or env.get("PACERELLE_STORE_ROOT") or DEFAULT_STORE_ROOT
    state = _absolute(root, env, uid) / "pacerelled"
    if socket:
        mcp_sock = _absolute(socket, env, uid)
        directory = mcp_sock.parent
        if mcp_sock.name == "control.sock" or not _fits(mcp_sock) or not _fits(directory / "control.sock"):
            raise LocalProtocolError(
                "socket_path",
                f"--socket needs a path of at most {MAX_SOCKET_PATH} bytes for itself and for control.sock beside it",
            )
    else:
        directory = state
        if not _fits(state / "control.sock"):  # the longer of the two
            digest = hashlib.sha256(os.fsencode(state)).hexdigest()[:16]
            directory = Path(f"/tmp/pacerelled-{uid}-{digest}")
        mcp_sock = directory / "mcp.sock"
    return LocalPaths(
        state=state,
        mcp_sock=mcp_sock,
        control_sock=directory / "control.sock",
        lock=state / "lock",
        start_lock=state / "start.lock",
        store=state / "store.db",
        key_file=state / "store.key",
        config=state / "config.toml",
        log=state / "pacerelled.log",
    )


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= MAX_SOCKET_PATH


def _absolute(path: str, env: Mapping[str, str], uid: int) -> Path:
    """`~` expanded, made absolute; symlinks are left as they are, so that shim and daemon compute the same."""
    if path == "~" or path.startswith("~/"):
        path = _home(env, uid) + path[1:]
    try:
        if b"\0" in os.fsencode(path):
            raise LocalProtocolError("bad_path", "a path has a NUL character")
        return Path(os.path.abspath(path))
    except UnicodeEncodeError:
        raise LocalProtocolError("bad_path", "a path has characters that no file name can have") from None
    except OSError:
        raise LocalProtocolError("no_cwd", "the working directory does not exist; give an absolute path") from None


def _home(env: Mapping[str, str], uid: int) -> str:
    home = env.get("HOME")
    if home:
        return home
    try:
        return pwd.getpwuid(uid).pw_dir
    except KeyError:
        raise LocalProtocolError("no_home", "HOME is not set and the user has no entry; give --store-root") from None


@dataclass(frozen=True, slots=True)
class Hello:
    """A shim's first line. `session` (32 hex digits) is made once in a shim's life and sent again on reconnecting.

    `in_flight` is None at first; from then on it has the calls that will be made again: the id as JSON, and how many
    seconds ago the host made it. `token_visible`: the token is in the shim's arguments, which others can see.
    `channel`: the host's entry wants requests pushed into the session.
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


_OPTIONAL = ("host", "cwd", "agent_id", "token", "base_url", "ws_url")


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


def welcome_line(*, daemon: str, session: str) -> bytes:
    """The daemon's first line to a shim it serves; `daemon` is the daemon's version."""
    return _line({"pacerelle": "welcome", "v": PROTOCOL_VERSION, "daemon": daemon, "session": session})


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
