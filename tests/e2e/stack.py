"""The whole thing for tests: a relay process, the daemon as shims start it, hosts through real shims, phones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

import pacerelle_shim
from pacerelle_phone.device import Device
from pacerelle_phone.model import PairedAgent
from pacerelle_protocol.local import LocalPaths, local_paths

DEADLINE = 60.0  # seconds; generous, since the machine may be busy
LIMIT = 17 * 1024 * 1024  # bytes of a line


class HostGone(Exception):
    """The shim ended."""


async def until(condition: Callable[[], Any], what: str, deadline: float = DEADLINE) -> Any:
    """Polls until `condition()` (which may be a coroutine function) is true; returns its value."""
    end = time.monotonic() + deadline
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < end, f"timed out waiting for {what}"
        await asyncio.sleep(0.03)


class Host:
    """An MCP host: a real shim process on pipes, spoken to in JSON-RPC lines."""

    def __init__(self, stack: Stack, agent: PairedAgent | None, name: str) -> None:
        self.stack, self.agent, self.name = stack, agent, name
        self.command = [sys.executable, "-I", "-S", str(Path(pacerelle_shim.__file__).with_name("__main__.py"))]
        self.process: asyncio.subprocess.Process | None = None
        self._next = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reader: asyncio.Task[None] | None = None
        self.notifications: list[dict[str, Any]] = []
        self.stray: list[bytes] = []  # lines on stdout that are no JSON

    async def start(self, *, initialize: bool = True, extra_env: dict[str, str] | None = None) -> Host:
        env = {"HOME": str(self.stack.home), "PATH": os.environ["PATH"], "PACERELLE_STORE_ROOT": str(self.stack.root)}
        env["PACERELLE_BASE_URL"] = self.stack.agents_url or self.stack.relay_url
        if self.agent is not None:
            env |= {"PACERELLE_AGENT_ID": self.agent.agent_id, "PACERELLE_AGENT_TOKEN": self.agent.agent_token}
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=env | (extra_env or {}),
            limit=LIMIT,
        )
        self._reader = asyncio.create_task(self._read())
        if initialize:
            answer = await self.call(
                "initialize",
                {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {},
                    "clientInfo": {"name": self.name, "version": "1"},
                },
            )
            assert "result" in answer, answer
            await self.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    async def write(self, message: dict[str, Any] | bytes) -> None:
        assert self.process is not None
        assert self.process.stdin is not None
        line = message if isinstance(message, bytes) else json.dumps(message).encode() + b"\n"
        try:
            self.process.stdin.write(line)
            await self.process.stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise HostGone from error

    async def call(self, method: str, params: dict[str, Any], deadline: float | None = None) -> dict[str, Any]:
        self._next += 1
        number = self._next
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = future
        await self.write({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        try:
            return await asyncio.wait_for(future, deadline or self.stack.deadline)
        finally:
            self._answers.pop(number, None)

    async def tool(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """The structured result. A tool error raises AssertionError with its text."""
        answer = await self.call("tools/call", {"name": name, "arguments": arguments})
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        assert not result.get("isError"), result["content"][0]["text"]
        content: dict[str, Any] = result["structuredContent"]
        return content

    async def connected(self) -> None:
        """Waits until the daemon is connected to the relay."""

        async def check() -> bool:
            return bool((await self.tool("get_status"))["connection"] == "connected")

        await until(check, "the relay connection")

    def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()

    async def stop(self) -> None:
        """EOF on stdin, as hosts do it."""
        if self.process is None:
            return
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), 10)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
            raise AssertionError("the shim did not end after EOF") from None
        finally:
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.gather(self._reader, return_exceptions=True)

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            try:
                message = json.loads(line)
            except ValueError:
                self.stray.append(line)
                continue
            future = self._answers.get(message.get("id")) if "method" not in message else None
            if future is None:
                self.notifications.append(message)
            elif not future.done():
                future.set_result(message)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(HostGone())


@dataclass
class RelayProcess:
    """`pacerelle relay` as a process that can be killed and started again on the same data and port."""

    data: Path
    port: int = 0
    url: str = ""
    process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pacerelle_cli", "relay", "--json",
            "--data", str(self.data), "--port", str(self.port),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), DEADLINE)
        self.url = json.loads(line)["url"]
        self.port = int(self.url.rpartition(":")[2])

    async def kill(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


@dataclass
class Stack:
    """One person's machine and relay in a temporary folder."""

    home: Path
    relay: RelayProcess
    agents_url: str | None = None  # where agents find the relay, if not at its own address
    deadline: float = DEADLINE  # seconds, of a host's calls
    hosts: list[Host] = field(default_factory=list)
    phones: list[Device] = field(default_factory=list)

    @property
    def root(self) -> Path:
        return self.home / "root"

    @property
    def relay_url(self) -> str:
        return self.relay.url

    @property
    def paths(self) -> LocalPaths:
        return local_paths(str(self.root), env={}, uid=os.getuid())

    def configure(self, text: str) -> None:
        """Writes the daemon's config.toml."""
        self.paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.paths.config.write_text(text)

    async def phone(self, name: str = "phone", *, register: bool = True) -> Device:
        device = await Device.open(self.home / name, self.relay_url)
        self.phones.append(device)
        if register:
            await device.register(name)
        return device

    async def host(self, agent: PairedAgent | None, name: str = "host", **options: Any) -> Host:
        host = Host(self, agent, name)
        self.hosts.append(host)
        return await host.start(**options)

    @contextlib.asynccontextmanager
    async def control(self) -> AsyncIterator[aiohttp.ClientSession]:
        """A client of control.sock; paths begin with /v1."""
        connector = aiohttp.UnixConnector(str(self.paths.control_sock))
        async with aiohttp.ClientSession("http://localhost", connector=connector) as session:
            yield session

    def daemon_pid(self) -> int | None:
        try:
            text = self.paths.lock.read_text().strip()
        except FileNotFoundError:
            return None
        return int(text) if text.isdigit() and psutil.pid_exists(int(text)) else None

    def kill_daemon(self) -> None:
        if (pid := self.daemon_pid()) is not None:
            os.kill(pid, signal.SIGKILL)

    async def stop_daemon(self) -> None:
        if (pid := self.daemon_pid()) is not None:
            os.kill(pid, signal.SIGTERM)
            await until(lambda: not _alive(pid), "the daemon's end", 15)

    async def close(self) -> None:
        for host in self.hosts:
            host.kill()
            with contextlib.suppress(AssertionError):
                await host.stop()
        for phone in self.phones:
            await phone.close()
        try:
            await self.stop_daemon()
        finally:
            self.kill_daemon()
            _kill_all(str(self.root))  # a shim may have started one that has no lock yet
            await self.relay.kill()


def _kill_all(root: str) -> None:
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if root in process.cmdline():
                process.kill()


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.asynccontextmanager
async def stack(folder: Path) -> AsyncIterator[Stack]:
    relay = RelayProcess(folder / "relay")
    await relay.start()
    running = Stack(folder, relay)
    try:
        yield running
    finally:
        await running.close()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
