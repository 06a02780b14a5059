"""Unix sockets: taken over from the service manager, or bound so that nothing of anybody else's is harmed.

The caller of `bind_unix` holds the daemon's lock: only then does a socket file that lies at the path belong to a daemon
that is gone. Where the sockets are is `pacerelle_protocol.local`'s business.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import sys
from asyncio.trsock import TransportSocket
from collections.abc import Mapping
from pathlib import Path
from weakref import WeakKeyDictionary

from pacerelle_protocol.local import MAX_SOCKET_PATH
from pacerelled.activation import by_launchd, by_systemd, launchd_descriptors
from pacerelled.errors import ConfigError, SocketPathError

INHERITED_NAMES = ("mcp", "control")

_FIRST_INHERITED = 3  # SD_LISTEN_FDS_START of sd_listen_fds(3)
_BACKLOG = 128
_XUCRED = struct.Struct("=II")  # the head of macOS' struct xucred: version, uid
_UCRED = struct.Struct("=iII")  # Linux' struct ucred: pid, uid, gid

_files: WeakKeyDictionary[socket.socket, tuple[int, int]] = WeakKeyDictionary()
"""Device and inode of the file that `bind_unix` made for a socket; the socket itself does not know them."""


def bind_unix(path: Path) -> socket.socket:
    """A listening, non-blocking socket at `path`, mode 0600 from its first moment.

    A socket file of ours that lies there is removed: its daemon is gone, since the caller holds the lock. Anything else
    at the path is left alone. A missing directory is made, 0700.

    Raises SocketPathError: the path is too long or taken, its directory is not private or cannot be written.
    """
    size = len(os.fsencode(path))
    if size > MAX_SOCKET_PATH:
        raise SocketPathError(
            f"the socket path {path} has {size} bytes; the system takes at most {MAX_SOCKET_PATH}",
            hint="Choose a shorter store root or a shorter --socket path.",
        )
    try:
        _prepare_directory(path.parent)
        _remove_stale(path)
        return _bind(path)
    except OSError as error:
        raise SocketPathError(
            f"cannot make the socket {path}: {error.strerror}",
            hint="Make its directory writable for you, or choose another place with --store-root or --socket.",
        ) from error


def inherited_sockets(env: Mapping[str, str]) -> dict[str, socket.socket]:
    """The listening sockets handed over by the service manager (sd_listen_fds(3), launchd), by name; empty without any.

    Where `LISTEN_FDNAMES` has none of our names, the order of `INHERITED_NAMES` counts: systemd names descriptors after
    their unit unless told otherwise.

    Raises ConfigError: the variables or the descriptors are not what they claim.
    """
    if by_launchd(env):
        return {name: _adopt(name, fd) for name, fd in launchd_descriptors(INHERITED_NAMES).items()}
    if not by_systemd(env):
        return {}
    try:
        count = int(env.get("LISTEN_FDS", ""))
    except ValueError as error:
        raise ConfigError("LISTEN_FDS is not a number", hint="Check the socket unit.") from error
    names = env.get("LISTEN_FDNAMES", "").split(":")
    if len(names) != count or not set(names) & set(INHERITED_NAMES):
        names = list(INHERITED_NAMES)
    sockets: dict[str, socket.socket] = {}
    for name, descriptor in zip(names, range(_FIRST_INHERITED, _FIRST_INHERITED + count), strict=False):
        if name in INHERITED_NAMES and name not in sockets:
            sockets[name] = _adopt(name, descriptor)
    return sockets


def peer_uid(sock: socket.socket | TransportSocket) -> int:
    """The uid of the process at the other end of a connected Unix socket, as the kernel noted it at connect time."""
    if sys.platform == "darwin":
        sol_local, local_peercred = 0, 1  # <sys/un.h>
        credentials = sock.getsockopt(sol_local, local_peercred, 128)
        return int(_XUCRED.unpack_from(credentials)[1])
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(credentials)[1])


def unlink_own(path: Path, sock: socket.socket) -> None:
    """Removes the socket file at `path` if it is the one that `bind_unix` made for `sock`.

    An inherited socket's file belongs to the service manager and stays.
    """
    try:
        found = path.lstat()
        if _files.pop(sock, None) == (found.st_dev, found.st_ino):
            path.unlink()
    except OSError:
        pass  # already gone, or the file system became read-only: nothing that stopping could mend


def _prepare_directory(directory: Path) -> None:
    missing = [d for d in (directory, *directory.parents) if not d.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)
    if directory.parent.stat().st_mode & stat.S_IWOTH:
        # Where everybody may create entries (/tmp), somebody can have put one of this name there before us.
        entry = directory.lstat()
        private = stat.S_ISDIR(entry.st_mode) and entry.st_uid == os.geteuid() and not entry.st_mode & 0o022
        if not private:
            raise SocketPathError(
                f"{directory} is not a real directory that is yours and that only you can write",
                hint="Somebody else may have made it. Remove it, or choose another place with --socket.",
            )
    elif directory.stat().st_uid not in (os.geteuid(), 0):
        raise SocketPathError(
            f"{directory} belongs to another user", hint="Choose another place with --store-root or --socket."
        )


def _remove_stale(path: Path) -> None:
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise SocketPathError(
            f"{path} exists and is not a socket; it was left alone",
            hint="Move it away, or choose another place with --socket.",
        )
    if found.st_uid != os.geteuid():
        raise SocketPathError(
            f"{path} is a socket of another user; it was left alone",
            hint="Choose another place with --socket.",
        )
    path.unlink()


def _bind(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            sock.bind(os.fspath(path))
        finally:
            os.umask(before)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        made = path.lstat()
    except OSError:
        sock.close()
        raise
    _files[sock] = (made.st_dev, made.st_ino)
    return sock


def _adopt(name: str, descriptor: int) -> socket.socket:
    try:
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        raise ConfigError(
            f"descriptor {descriptor}, handed over as {name!r}, is not a socket",
            hint="Check the socket unit.",
        ) from error
    listening = sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if sock.family != socket.AF_UNIX or not listening:
        sock.detach()
        raise ConfigError(
            f"descriptor {descriptor}, handed over as {name!r}, is not a listening Unix stream socket",
            hint="Use ListenStream= with a path in the socket unit.",
        )
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock
