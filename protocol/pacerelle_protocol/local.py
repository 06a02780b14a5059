"""The local protocol: where the daemon's files and sockets are (docs/local-protocol.md). The handshake is in `hello`.

Standard library only, and little of it: the command line and the daemon's start pay for this import.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .errors import LocalProtocolError

MAX_LINE = 16 * 1024 * 1024  # bytes of a line on mcp.sock, its end included
MAX_SOCKET_PATH = 103  # bytes: what fits into macOS's sun_path with its NUL

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
            import hashlib  # most never need it

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
