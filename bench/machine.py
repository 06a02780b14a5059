"""A daemon in a home of its own, and idle hosts that are attached to it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PATIENCE = 60.0  # seconds until something that should happen counts as broken
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
INITIALIZED = b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n'


@contextmanager
def home() -> Iterator[tuple[Path, dict[str, str]]]:
    """A store root and the environment that goes with it."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        yield Path(folder) / "root", dict(os.environ) | {"HOME": folder, "PACERELLED_KEYRING": "false"}


@contextmanager
def daemon() -> Iterator[tuple[int, Path, Path]]:
    """A daemon without agents: its pid, store root and mcp.sock."""
    with home() as (root, env):
        command = [sys.executable, "-I", "-m", "pacerelled", "--store-root", str(root)]
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as process:
            sock = root / "pacerelled" / "mcp.sock"
            while not sock.exists():
                if process.poll() is not None:
                    raise RuntimeError("the daemon did not start")
                time.sleep(0.02)
            try:
                yield process.pid, root, sock
            finally:
                process.terminate()


def attached(path: Path) -> socket.socket:
    """A host's connection after its handshake."""
    hello = {"pacerelle": "hello", "v": 1, "session": os.urandom(16).hex(), "shim": "bench", "pid": os.getpid()}
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE)
    sock.connect(str(path))
    with sock.makefile("rb") as lines:
        for message in (hello, INITIALIZE):
            sock.sendall(json.dumps(message).encode() + b"\n")
            if not lines.readline():
                raise RuntimeError("the daemon did not answer")
    sock.sendall(INITIALIZED)
    return sock
