"""A service manager's part: sockets that stay open while daemons come and go."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from types import TracebackType
from typing import Any

from tests.daemon.process import Daemon

# Becomes the daemon, so that LISTEN_PID is right. The first two words are the descriptors to hand over.
_HAND_OVER = """
import os, sys
spare = [os.dup(int(number)) for number in sys.argv[1:3]]
for number, fd in enumerate([os.dup2(fd, 100 + i) for i, fd in enumerate(spare)]):
    os.dup2(fd, 3 + number, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="2", LISTEN_FDNAMES="pacerelled.socket:pacerelled.socket")
os.execv(sys.executable, [sys.executable, "-m", "pacerelled", *sys.argv[3:]])
"""


class Sockets:
    """What pacerelled.socket is to systemd."""

    def __init__(self, daemon: Daemon) -> None:
        self._sockets = []
        daemon.paths.state.mkdir(parents=True, mode=0o700, exist_ok=True)
        for path in (daemon.paths.mcp_sock, daemon.paths.control_sock):
            path.unlink(missing_ok=True)
            sock = socket.socket(socket.AF_UNIX)
            sock.bind(str(path))
            sock.listen()
            self._sockets.append(sock)

    async def start(self, daemon: Daemon) -> None:
        numbers = [sock.fileno() for sock in self._sockets]
        await daemon.start(command=(sys.executable, "-c", _HAND_OVER, *map(str, numbers)), pass_fds=numbers)

    def __enter__(self) -> Sockets:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        for sock in self._sockets:
            sock.close()


async def ask(daemon: Daemon, method: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    """One call of control.sock, however long it takes until somebody answers."""
    reader, writer = await asyncio.open_unix_connection(str(daemon.paths.control_sock))
    content = json.dumps(body).encode() if body is not None else b""
    try:
        writer.write(
            f"{method} {path} HTTP/1.0\r\nHost: x\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content
        )
        answer = await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()
    first, _, rest = answer.partition(b"\r\n\r\n")
    return int(first.split()[1]), json.loads(rest) if rest else {}
