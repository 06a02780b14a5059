"""Clients that are slow, silent, rude or many; and stopping with all of them attached."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp.shared.exceptions import MCPError

from pacerelled.servers.http import exchange, listener
from tests.daemon.polling import until
from tests.daemon.process import Daemon

from .served import MODERN, NOWHERE, Raw, Served

CALL = {"name": "wait_for_messages", "arguments": {"timeoutMs": 30_000}}


async def connect(served: Served, *, receive_buffer: int | None = None) -> tuple[Any, Any]:
    sock = socket.socket()
    if receive_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", served.port))
    return await asyncio.open_connection(sock=sock, limit=1024)


def head(served: Served, token: str, length: int, **headers: str) -> bytes:
    given = {
        "Host": f"127.0.0.1:{served.port}",
        "Authorization": f"Bearer {token}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        "Content-Length": str(length),
        **headers,
    }
    return ("POST /mcp HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in given.items()) + "\r\n").encode()


def connections(served: Served) -> set[Any]:
    assert served.server._listener is not None
    return served.server._listener._server.server_state.connections


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other side has closed."""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(30):
            while await reader.read(65536):
                pass
    return True


async def works(raw: Raw) -> bool:
    return bool((await raw.call("ping"))["result"] == {})


async def test_a_body_that_does_not_come_is_not_waited_for(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BODY_TIME", 0.2)
    reader, writer = await connect(served)
    writer.write(head(served, await served.token(), 999) + b"{")
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 30)
    writer.close()


@pytest.mark.parametrize("sent", [b"", b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nX: "])
async def test_a_connection_that_asks_nothing_is_ended(
    served: Served, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(listener, "QUIET_TIME", 0.1)
    reader, writer = await connect(served)
    writer.write(sent)
    assert await ended(reader)
    writer.close()
    monkeypatch.setattr(listener, "QUIET_TIME", 1.5)  # more than a busy machine takes between two calls
    async with served.raw(await served.token()) as raw:
        await raw.initialize()
        stream = await raw.http.get(raw.url, headers=raw.headers())
        await asyncio.sleep(2)
        assert len(connections(served)) >= 1  # an open stream is a request under way
        assert await works(raw)
        stream.close()


async def test_a_client_that_never_reads_is_disconnected_and_holds_up_nobody(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "WRITE_TIME", 0.5)
    token = await served.token()
    for number in range(50):
        await served.ask(f"{number} " + "x" * 20_000)
    async with served.raw(await served.token("other")) as raw:
        await raw.initialize()
        body = json.dumps(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/call",
                "params": {
                    "name": "get_history",
                    "arguments": {"limit": 50},
                    "_meta": {
                        "io.modelcontextprotocol/protocolVersion": MODERN,
                        "io.modelcontextprotocol/clientCapabilities": {},
                    },
                },
            }
        ).encode()
        extra = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "get_history"}
        deaf = []
        try:
            for _ in range(3):
                _, writer = await connect(served, receive_buffer=4096)
                deaf.append(writer)
                writer.write((head(served, token, len(body), **extra) + body) * 500)  # more than the system buffers
            assert await works(raw)
            await until(lambda: len(connections(served)) == 1, "the end of their connections")
            assert await works(raw)
        finally:
            for writer in deaf:
                writer.transport.abort()


async def test_more_connections_than_the_limit_are_closed_and_room_comes_back(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listener, "MAX_CONNECTIONS", 5)
    token = await served.token()
    open_ones = [await connect(served) for _ in range(5)]
    await until(lambda: len(connections(served)) == 5, "the connections")
    reader, writer = await connect(served)
    assert await ended(reader)
    for _, each in [*open_ones, (reader, writer)]:
        each.close()
    await until(lambda: not connections(served), "the end of the connections")
    async with served.raw(token) as raw:
        await raw.initialize()


async def test_connects_of_all_manners_leave_nothing_behind(served: Served) -> None:
    token = await served.token()
    async with served.raw(token) as raw:
        await raw.initialize()
        before = len(asyncio.all_tasks())
        body = b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}'
        for number in range(100):
            reader, writer = await connect(served)
            match number % 5:
                case 0:
                    writer.write(head(served, token, 999) + b"{")  # goes in the middle of a body
                case 1:
                    writer.write(b"\x00\xff nonsense\r\n\r\n")
                case 2:
                    writer.write(head(served, "wrong", len(body)) + body)
                    await reader.readline()
                case 3:
                    writer.write(head(served, token, len(body)) + body)  # goes before the answer
                    writer.write_eof()
                case 4:
                    pass
            writer.transport.abort() if number % 2 else writer.close()
        await until(lambda: len(connections(served)) == 1, "the end of the connections")
        await until(lambda: len(asyncio.all_tasks()) <= before, "the end of the tasks")
        assert len(served.server._endpoint._sessions) == 1
        assert await works(raw)


async def test_stopping_ends_streams_and_waiting_calls(served: Served) -> None:
    token = await served.token()
    async with served.raw(token) as raw, served.client(token, MODERN) as client:
        await raw.initialize()
        stream = await raw.http.get(raw.url, headers=raw.headers())
        waiting = await raw.http.post(
            raw.url, json={"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": CALL}, headers=raw.headers()
        )
        task = asyncio.create_task(client.call_tool(CALL["name"], CALL["arguments"]))
        await until(lambda: sum(host["waiting"] for host in served.hosts()) == 2, "both waits")
        async with asyncio.timeout(30):
            await served.server.stop()
            for response in (stream, waiting):
                with suppress(aiohttp.ClientError):
                    assert b'"result"' not in await response.content.read()
            with pytest.raises((MCPError, ExceptionGroup, aiohttp.ClientError)):
                await task
        assert not connections(served)
        assert served.hosts() == []
        with pytest.raises(aiohttp.ClientConnectorError):
            await raw.post({"jsonrpc": "2.0", "id": 1, "method": "ping"})


async def test_the_whole_daemon_serves_it_and_stops_with_streams_open(tmp_path: Path) -> None:
    running = Daemon(tmp_path, env={"PACERELLED_HTTP": "on", "PACERELLED_HTTP_PORT": "0"})
    running.paths.state.mkdir(mode=0o700, parents=True)
    await running.start()
    try:
        await running.serving()
        connector = aiohttp.UnixConnector(str(running.paths.control_sock))
        async with aiohttp.ClientSession("http://localhost", connector=connector) as control:
            await control.post("/v1/agents", json={"agent_id": "a1", "token": "t", "base_url": NOWHERE})
            async with control.post("/v1/tokens", json={"label": "laptop"}) as made:
                secret = (await made.json())["secret"]
        url = (await running.status())["http"]["url"]
        headers = {"Authorization": f"Bearer {secret}", "Accept": "application/json, text/event-stream"}
        async with aiohttp.ClientSession(headers=headers) as http:
            raw = Raw(http, url)
            await raw.initialize()
            assert (await raw.tool("get_status"))["structuredContent"]["agent_id"] == "a1"
            stream = await http.get(url, headers=raw.headers())
            await http.post(
                url, json={"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": CALL}, headers=raw.headers()
            )
            hosts = (await running.status())["hosts"]
            assert [host["transport"] for host in hosts] == ["http"]
            started = time.monotonic()
            running.signal()
            assert await running.ended() == 0
            assert time.monotonic() - started < 5.0  # what the daemon promises
            stream.close()
        log = await running.errors()
        assert secret not in log
        assert "ERROR" not in log.replace("ERROR pacerelled.link", "")
        assert "Traceback" not in log
    finally:
        await running.kill()


def test_off_means_that_nothing_of_it_is_loaded() -> None:
    code = (
        "import sys, pacerelled.app, pacerelled.servers.control, pacerelled.servers.mcp_sock, pacerelled.agent.hub;"
        " print([name for name in sys.modules if name.startswith('pacerelled.servers.http')])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
