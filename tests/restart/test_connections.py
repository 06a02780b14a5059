"""Many hosts at once, and clients of mcp.sock that come and go in every manner."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import sys
import tempfile
import uuid
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp.client import Client

import pacerelle_shim
from mcp import StdioServerParameters
from pacerelle_protocol.hello import Hello, encode_hello
from pacerelled.servers import mcp_sock
from pacerelled.servers.mcp_sock import McpSocketServer
from pacerelled.servers.sockets import bind_unix
from tests.daemon.core import Core
from tests.e2e.stack import Stack, until
from tests.restart.machine import INITIALIZE, MODERN, EraHost

SHIM = str(Path(pacerelle_shim.__file__).with_name("__main__.py"))
ROOM = 12 * 2**20  # bytes that memory may seem to have grown


# -- the SDK's clients, both eras, through the real shim


async def sdk_clients(machine: Stack, count: int) -> None:
    (await EraHost(machine, None, "first", "handshake").start())  # starts the daemon
    async with machine.control() as control:
        agent = {"agent_id": "a1", "token": "t", "base_url": "http://127.0.0.1:9"}  # nobody there
        async with control.post("/v1/agents", json=agent) as response:
            assert response.status == 201
        together = asyncio.Barrier(count + 1)
        clients = [
            asyncio.create_task(one_client(machine, "auto" if n % 2 else MODERN, together)) for n in range(count)
        ]
        try:
            async with asyncio.timeout(120):
                await together.wait()
            async with control.get("/v1/hosts") as response:
                hosts = (await response.json())["hosts"]
            assert len({host["session"] for host in hosts}) == len(hosts) == count + 1
            assert {host["client"] for host in hosts} >= {"mcp"}
            await together.wait()
        finally:
            await asyncio.gather(*clients)

        async def gone() -> bool:
            async with control.get("/v1/hosts") as response:
                return len((await response.json())["hosts"]) == 1

        await until(gone, "the clients' end")


async def one_client(machine: Stack, mode: str, together: asyncio.Barrier) -> None:
    env = {"HOME": str(machine.home), "PACERELLE_STORE_ROOT": str(machine.root)}
    server = StdioServerParameters(command=sys.executable, args=["-I", "-S", SHIM], env=env)
    async with Client(server, mode=mode) as client:
        assert {"wait_for_messages", "send_message"} <= {tool.name for tool in (await client.list_tools()).tools}
        await together.wait()
        status, waited, read = await asyncio.gather(
            client.call_tool("get_status", {}),
            client.call_tool("wait_for_messages", {"timeoutMs": 500}),
            client.read_resource("conversation://current"),
        )
        assert status.structured_content is not None
        assert sum(host["this_session"] for host in status.structured_content["hosts"]) == 1
        assert waited.structured_content is not None
        assert waited.structured_content["messages"] == []
        assert json.loads(read.contents[0].text)["conversation"] is None  # type: ignore[union-attr]
        refused = await client.call_tool("send_message", {"text": "x", "sourceMessageId": "nobody's"})
        assert refused.is_error
        await together.wait()


async def test_sdk_clients_of_both_eras_at_once(bare: Stack) -> None:
    await sdk_clients(bare, 6)


@pytest.mark.long
async def test_fifty_sdk_clients_of_both_eras_at_once(bare: Stack) -> None:
    await sdk_clients(bare, 50)


# -- clients that come and go


@dataclass
class Served:
    core: Core
    server: McpSocketServer
    path: Path


@pytest.fixture
async def served(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """The daemon's real parts in this process, where its tasks can be counted."""
    monkeypatch.setattr(mcp_sock, "HELLO_TIMEOUT", 0.5)
    with tempfile.TemporaryDirectory(prefix="conn-") as folder:
        async with Core(Path(folder) / "state", claim_grace=0.2) as core:
            await core.agent("http://127.0.0.1:9")
            path = Path(folder) / "mcp.sock"
            server = McpSocketServer(core.hub, bind_unix(path), version="1")
            server.start()
            yield Served(core, server, path)
            await server.stop()


def request(number: int, method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"


HELD = request(9, "tools/call", name="wait_for_messages", arguments={})


class Peer:
    """A client of mcp.sock."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connected(cls, path: Path, *, greeted: bool = True) -> Peer:
        peer = cls(*await asyncio.open_unix_connection(path, limit=1 << 20))
        if greeted:
            peer.writer.write(encode_hello(Hello(uuid.uuid4().hex, "test", os.getpid())))
            peer.writer.write(request(0, "initialize", **INITIALIZE))
            assert b'"welcome"' in await peer.line()
            assert b'"serverInfo"' in await peer.line()
        return peer

    async def line(self) -> bytes:
        async with asyncio.timeout(60):
            return await self.reader.readline()

    async def to_the_end(self) -> bytes:
        async with asyncio.timeout(60):
            return await self.reader.read()

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


async def closes(path: Path) -> None:
    peer = await Peer.connected(path)
    peer.writer.write(request(1, "tools/list"))
    assert b'"tools"' in await peer.line()
    await peer.close()


async def is_killed(path: Path) -> None:
    command = [sys.executable, "-I", "-S", SHIM, "--socket", str(path), "--store-root", str(path.parent / "none")]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, env={"HOME": str(path.parent)})
    assert process.stdin
    assert process.stdout
    process.stdin.write(request(0, "initialize", **INITIALIZE) + HELD)
    async with asyncio.timeout(60):
        assert b'"serverInfo"' in await process.stdout.readline()
    process.kill()
    await process.wait()


async def half_closes(path: Path) -> None:
    peer = await Peer.connected(path)
    peer.writer.write(HELD)
    peer.writer.write_eof()
    await peer.to_the_end()
    await peer.close()


async def never_reads(path: Path) -> None:
    peer = await Peer.connected(path)
    peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for number in range(30):
        peer.writer.write(request(number + 1, "tools/list"))
    await asyncio.sleep(0.1)
    peer.writer.transport.abort()


async def is_silent(path: Path) -> None:
    peer = await Peer.connected(path, greeted=False)
    assert b"bad_hello" in await peer.to_the_end()
    await peer.close()


MANNERS = (closes, is_killed, half_closes, never_reads, is_silent)


async def come_and_go(served: Served, connects: int) -> None:
    """`connects` of all five manners, a few of each at a time: then all is as it was."""
    process, batch = psutil.Process(), 5

    async def round_() -> None:
        await asyncio.gather(*(manner(served.path) for manner in MANNERS for _ in range(batch)))

    async def settled(tasks: int, descriptors: int) -> None:
        await until(lambda: not served.server._connections, "the connections' end")
        await until(lambda: len(asyncio.all_tasks()) <= tasks, "the tasks' end")
        gc.collect()
        await until(lambda: process.num_fds() <= descriptors, "the descriptors' end")

    tasks, descriptors = len(asyncio.all_tasks()), process.num_fds() + 4  # the first subprocess costs some
    await round_()
    await settled(tasks, descriptors)
    descriptors, memory = process.num_fds(), process.memory_info().rss
    for _ in range(connects // (batch * len(MANNERS)) - 1):
        await round_()
    await settled(tasks, descriptors)
    assert served.core.hub.sessions() == []
    assert process.memory_info().rss - memory < ROOM
    await closes(served.path)


async def test_clients_that_come_and_go_in_every_manner_leave_nothing(served: Served) -> None:
    await come_and_go(served, 50)


@pytest.mark.long
async def test_two_thousand_clients_leave_nothing(served: Served) -> None:
    await come_and_go(served, 2000)


# -- no descriptors left


async def test_without_descriptors_the_daemon_serves_whom_it_has_and_recovers(bare: Stack) -> None:
    host = EraHost(bare, None, "first", "handshake")
    await host.start()
    pid = bare.daemon_pid()
    assert pid is not None
    daemon = psutil.Process(pid)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64))
    peers = [await Peer.connected(bare.paths.mcp_sock, greeted=False) for _ in range(80)]
    asking = [await Peer.connected(bare.paths.control_sock, greeted=False) for _ in range(5)]
    await until(lambda: b"cannot accept" in bare.paths.log.read_bytes(), "the shortage")
    used, said = sum(daemon.cpu_times()[:2]), bare.paths.log.stat().st_size
    for _ in range(4):
        assert "result" in await host.call("tools/list", {})
        await asyncio.sleep(1.0)
    assert sum(daemon.cpu_times()[:2]) - used < 2.0  # seconds; a loop that spins takes all four
    assert bare.paths.log.stat().st_size - said < 20_000
    second = asyncio.create_task(EraHost(bare, None, "second", "modern").start())
    for peer in (*peers, *asking):
        peer.writer.transport.abort()
    await second
    assert len((await bare.hosts[-1].call("tools/list", {}))["result"]["tools"]) > 5
    async with bare.control() as control, control.get("/v1/status") as response:
        assert response.status == 200
    assert bare.daemon_pid() == pid
