"""What the shim's tests need: a host on real pipes, a listener in the daemon's place, a throwaway environment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil

import pacerelle_shim

DEADLINE = 30.0  # seconds
LIMIT = 64 << 20  # bytes of a line
SHIM = Path(pacerelle_shim.__file__).with_name("__main__.py")
STAND_IN = Path(__file__).with_name("stand_in.py")
INITIALIZE = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "test", "version": "1"},
}


async def until(condition: Callable[[], Any], what: str) -> Any:
    """Polls until `condition()` is true; returns its value."""
    end = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < end, f"timed out waiting for {what}"
        await asyncio.sleep(0.01)
    return value


def line_of(method: str, params: object = None, *, id: object = None) -> bytes:
    """A request (with an id) or a notification."""
    message: dict[str, object] = {"jsonrpc": "2.0", "method": method}
    message |= {} if id is None else {"id": id}
    message |= {} if params is None else {"params": params}
    return json.dumps(message).encode() + b"\n"


def _there[T](value: T | None) -> T:
    assert value is not None
    return value


class Host:
    """A real shim on pipes. Every line on its stdout is checked to be JSON-RPC."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.stdin, self.stdout, self.stderr = (
            _there(process.stdin),
            _there(process.stdout),
            _there(process.stderr),
        )

    async def send(self, line: bytes) -> None:
        self.stdin.write(line)
        await self.stdin.drain()

    async def read(self) -> dict[str, Any]:
        async with asyncio.timeout(DEADLINE):
            line = await self.stdout.readline()
        message = json.loads(line)
        assert line.endswith(b"\n")
        assert message["jsonrpc"] == "2.0"
        return message  # type: ignore[no-any-return]

    async def call(self, method: str, params: object = None, *, id: object = 1) -> dict[str, Any]:
        await self.send(line_of(method, params, id=id))
        message = await self.read()
        assert message["id"] == id
        return message

    async def initialize(self) -> dict[str, Any]:
        answer = await self.call("initialize", INITIALIZE, id=0)
        await self.send(line_of("notifications/initialized"))
        return answer

    async def ended(self, within: float = DEADLINE) -> int:
        """Its exit code, once it has ended."""
        async with asyncio.timeout(within):
            return await self.process.wait()


class Daemon:
    """A listener where the daemon's socket belongs; the test itself says what the daemon says."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server: asyncio.Server | None = None
        self._queue: asyncio.Queue[Connection] = asyncio.Queue()
        self._connections: list[Connection] = []

    async def start(self) -> None:
        self.path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._accept, self.path, limit=LIMIT)

    def stop(self) -> None:
        """No further connections; a crash leaves the file as this does."""
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.append(Connection(reader, writer))
        await self._queue.put(self._connections[-1])

    async def close(self) -> None:
        self.stop()
        for connection in self._connections:
            connection.close()
            with contextlib.suppress(OSError):
                await connection.writer.wait_closed()

    async def accept(self, *, welcome: bool = True) -> Connection:
        async with asyncio.timeout(DEADLINE):
            connection = await self._queue.get()
        connection.hello = await connection.read()
        if welcome:
            await connection.send(
                {
                    "pacerelle": "welcome",
                    "v": 1,
                    "daemon": "0",
                    "session": connection.hello["session"],
                    "offers": "those",
                }
            )
        return connection


class Connection:
    """The daemon's end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.hello: dict[str, Any] = {}

    async def read_line(self) -> bytes:
        async with asyncio.timeout(DEADLINE):
            return await self.reader.readline()

    async def read(self) -> dict[str, Any]:
        return json.loads(await self.read_line())  # type: ignore[no-any-return]

    async def send(self, message: object) -> None:
        await self.send_bytes(json.dumps(message).encode() + b"\n")

    async def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, request: dict[str, Any], result: object = None) -> None:
        await self.send({"jsonrpc": "2.0", "id": request["id"], "result": result or {}})

    def close(self) -> None:
        self.writer.transport.abort()


class World:
    """A home with a store root, an environment in which `pacerelled` is the stand-in, and all that runs in it."""

    def __init__(self, home: Path) -> None:
        self.home, self.root = home, home / "root"
        self.state = self.root / "pacerelled"
        self.state.mkdir(mode=0o700, parents=True)
        self.socket = self.state / "mcp.sock"
        packages = home / "env" / "lib" / "python3.12" / "site-packages"
        (packages / "pacerelled").mkdir(parents=True)
        (packages / "pacerelled" / "__init__.py").touch()
        shutil.copy(STAND_IN, packages / "pacerelled" / "__main__.py")
        (packages / "pacerelle_shim").symlink_to(SHIM.parent)
        self.shim = packages / "pacerelle_shim" / "__main__.py"
        self.python = home / "env" / "bin" / "python"
        self.python.parent.mkdir()
        self.python.symlink_to(os.path.realpath(sys.executable))
        (home / "env" / "pyvenv.cfg").write_text(f"home = {os.path.dirname(os.path.realpath(sys.executable))}\n")
        self._hosts: list[Host] = []

    async def host(
        self,
        *flags: str,
        command: list[str] | None = None,
        env: dict[str, str] | None = None,
        **more: Any,
    ) -> Host:
        process = await asyncio.create_subprocess_exec(
            *(command or [str(self.python), "-I", "-S", str(self.shim)]),
            *flags,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self.env() if env is None else env,
            limit=LIMIT,
            **more,
        )
        host = Host(process)
        self._hosts.append(host)
        return host

    def env(self, **more: str) -> dict[str, str]:
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "PACERELLE_STORE_ROOT": str(self.root)} | more

    def patient(self, **constants: float) -> list[str]:
        """The shim's command with other waiting times."""
        lines = ["import sys", f"sys.path.append({str(self.shim.parent.parent)!r})", "import pacerelle_shim as shim"]
        lines += [f"shim.{name} = {value}" for name, value in constants.items()]
        return [str(self.python), "-I", "-S", "-c", "\n".join([*lines, "sys.exit(shim.main())"])]

    def starts(self) -> list[dict[str, Any]]:
        """What each stand-in that was started found."""
        file = self.root / "starts"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def daemons(self) -> list[psutil.Process]:
        """The stand-ins that run."""
        alive = []
        for start in self.starts():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(start["pid"])
                if process.status() != psutil.STATUS_ZOMBIE and "pacerelled" in process.cmdline():
                    alive.append(process)
        return alive

    async def close(self) -> None:
        for host in self._hosts:
            if host.process.returncode is None:
                host.process.kill()
            host.stdin.close()
            with contextlib.suppress(OSError):
                await host.stdin.wait_closed()
            await host.process.wait()
            host.process._transport.close()  # type: ignore[attr-defined]
        for process in self.daemons():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        await until(lambda: not self.daemons(), "the stand-ins' end")


@contextlib.asynccontextmanager
async def a_world(home: Path) -> AsyncIterator[World]:
    world = World(home)
    try:
        yield world
    finally:
        await world.close()
