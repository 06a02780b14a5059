"""The daemon as a process of its own, and a host's connection to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from pacerelle_protocol.hello import Hello, encode_hello
from pacerelle_protocol.local import MAX_LINE, LocalPaths, local_paths

from .polling import DEADLINE, until


class Daemon:
    """`python -m pacerelled` with a store root of its own; nothing of the test's environment reaches it."""

    def __init__(
        self, home: Path, *arguments: str, env: dict[str, str] | None = None, root: Path | None = None
    ) -> None:
        self.root = root or home / "root"
        self.env = {"HOME": str(home), "PATH": os.environ["PATH"], "PACERELLED_KEYRING": "off", **(env or {})}
        for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            if name in os.environ:
                self.env.setdefault(name, os.environ[name])
        self.arguments = ["--store-root", str(self.root), *arguments]
        self.process: asyncio.subprocess.Process
        self._errors: asyncio.Task[bytes] | None = None

    @property
    def paths(self) -> LocalPaths:
        return local_paths(str(self.root), env=self.env, uid=os.getuid())

    async def start(self, *, command: tuple[str, ...] = (), **options: Any) -> Daemon:
        self.process = await asyncio.create_subprocess_exec(
            *(command or (sys.executable, "-m", "pacerelled")),
            *self.arguments,
            env=self.env,
            stderr=asyncio.subprocess.PIPE,
            **options,
        )
        assert self.process.stderr is not None
        self._errors = asyncio.create_task(self.process.stderr.read())
        return self

    async def serving(self) -> None:
        """Returns when control.sock answers."""

        async def answers() -> bool:
            if self.process.returncode is not None:
                raise AssertionError(f"the daemon ended: {await self.errors()}")
            with contextlib.suppress(OSError):
                return "daemon" in await self.status()
            return False

        await until(answers, "the daemon")

    async def status(self) -> dict[str, Any]:
        reader, writer = await asyncio.open_unix_connection(str(self.paths.control_sock))
        try:
            writer.write(b"GET /v1/status HTTP/1.0\r\nHost: localhost\r\n\r\n")
            answer = await reader.read()
        finally:
            writer.close()
            await writer.wait_closed()
        body = answer.partition(b"\r\n\r\n")[2]
        found: dict[str, Any] = json.loads(body) if body else {}
        return found

    def signal(self, number: int = signal.SIGTERM) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)

    async def ended(self) -> int:
        return await asyncio.wait_for(self.process.wait(), DEADLINE)

    async def errors(self) -> str:
        assert self._errors is not None
        return (await self._errors).decode()

    async def run(self, **options: Any) -> tuple[int, str]:
        """Starts it, waits for its end; exit code and what it said."""
        await self.start(**options)
        return await self.ended(), await self.errors()

    async def kill(self) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        await self.process.wait()
        if self._errors is not None:
            await self._errors


@contextlib.asynccontextmanager
async def daemon(home: Path, *arguments: str, **options: Any) -> AsyncIterator[Daemon]:
    running = await Daemon(home, *arguments, **options).start()
    try:
        await running.serving()
        yield running
    finally:
        await running.kill()


class Host:
    """A shim's connection to mcp.sock, spoken to by hand."""

    def __init__(self) -> None:
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter
        self._number = 0

    @classmethod
    async def connect(cls, daemon: Daemon, **hello: Any) -> Host:
        host = cls()
        host.reader, host.writer = await asyncio.open_unix_connection(str(daemon.paths.mcp_sock), limit=MAX_LINE)
        host.writer.write(encode_hello(Hello(uuid.uuid4().hex, "test", os.getpid(), **hello)))
        host.welcome = json.loads(await host.reader.readline())
        return host

    welcome: dict[str, Any]

    async def initialize(self) -> Host:
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        assert "result" in await self.call("initialize", params)
        self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def write(self, message: dict[str, Any]) -> None:
        self.writer.write(json.dumps(message).encode() + b"\n")

    def send(self, method: str, params: dict[str, Any]) -> int:
        self._number += 1
        self.write({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        return self._number

    async def call(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        number = self.send(method, params)
        while line := await asyncio.wait_for(self.reader.readline(), DEADLINE):
            message: dict[str, Any] = json.loads(line)
            if message.get("id") == number:
                return message
        raise ConnectionError("the daemon closed the connection")

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


class Manager:
    """A service manager's notification socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self.said: list[str] = []

    def read(self) -> list[str]:
        with contextlib.suppress(BlockingIOError):
            while True:
                self.said += self._socket.recv(4096).decode().splitlines()
        return self.said

    async def told(self, state: str) -> None:
        await until(lambda: state in self.read(), state)

    def close(self) -> None:
        self._socket.close()
