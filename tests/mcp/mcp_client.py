"""A daemon's mcp.sock in a test, and clients of it: the official SDK's and one that writes raw lines."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import mcp_types
from mcp.shared.message import SessionMessage
from mcp_hub import HubDouble

from mcp import Client
from pacerelle_protocol.hello import Hello, encode_hello
from pacerelle_protocol.local import MAX_LINE
from pacerelled.servers.mcp_sock import McpSocketServer
from pacerelled.servers.sockets import bind_unix

DEADLINE = 30.0  # seconds
ERAS = ("legacy", "2026-07-28")


def hello(session: str | None = None, **more: Any) -> Hello:
    return Hello(session=session or secrets.token_hex(16), shim="0.1.0", pid=1, **more)


async def until(condition: Callable[[], Any], what: str = "the condition") -> None:
    """Waits for what happens elsewhere in this loop."""
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 (what is waited for sets no event)
            await asyncio.sleep(0.005)


class Daemon:
    """mcp.sock of a hub double."""

    def __init__(self, path: Path, hub: HubDouble) -> None:
        self.path = path
        self.hub = hub
        self.server = McpSocketServer(hub, bind_unix(path), version="9.9")

    @property
    def agent(self) -> Any:
        return self.hub.agent(None)


class Raw:
    """A client that writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, path: Path) -> Raw:
        return cls(*await asyncio.open_unix_connection(path, limit=2 * MAX_LINE))

    async def send(self, *lines: bytes | dict[str, Any]) -> None:
        for line in lines:
            self.writer.write(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n")
        await self.writer.drain()

    async def receive(self) -> Any:
        """The next line, or None at the end, which is a reset where the daemon had not read everything."""
        async with asyncio.timeout(DEADLINE):
            try:
                line = await self.reader.readline()
            except ConnectionResetError:
                return None
        return json.loads(line) if line else None

    async def ask(self, request_id: int | str, method: str, **params: Any) -> Any:
        await self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return await self.receive()

    async def call(self, request_id: int | str, tool: str, **arguments: Any) -> Any:
        return await self.ask(request_id, "tools/call", name=tool, arguments=arguments)

    async def close(self) -> None:
        self.writer.close()
        with suppress(OSError):
            await self.writer.wait_closed()


@asynccontextmanager
async def raw(path: Path, greeting: Hello | None = None, *, initialized: bool = True) -> AsyncIterator[Raw]:
    """A raw client that has said hello and, unless told otherwise, done the MCP handshake."""
    client = await Raw.connect(path)
    try:
        await client.send(encode_hello(greeting or hello()))
        assert (await client.receive())["pacerelle"] == "welcome"
        if initialized:
            await client.ask(
                0,
                "initialize",
                protocolVersion="2025-11-25",
                capabilities={},
                clientInfo={"name": "raw", "version": "1"},
            )
            await client.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def transport(path: Path, greeting: Hello) -> AsyncIterator[Any]:
    """The official SDK's transport protocol over mcp.sock."""
    reader, writer = await asyncio.open_unix_connection(path, limit=2 * MAX_LINE)
    writer.write(encode_hello(greeting))
    assert json.loads(await reader.readline())["pacerelle"] == "welcome"
    read_send, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, write_receive = anyio.create_memory_object_stream[SessionMessage](0)

    async def receive() -> None:
        async with read_send:
            with suppress(OSError, anyio.BrokenResourceError):
                while line := await reader.readline():
                    message = mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
                    await read_send.send(SessionMessage(message))

    async def send() -> None:
        async with write_receive:
            async for item in write_receive:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                writer.write(text.encode() + b"\n")
                await writer.drain()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        tasks.start_soon(send)
        try:
            yield read, write
        finally:
            tasks.cancel_scope.cancel()
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


def client(path: Path, era: str, greeting: Hello | None = None, **more: Any) -> Client:
    """The official client: `legacy` does the handshake, a date speaks that version without one."""
    info = mcp_types.Implementation(name="test-host", version="7")
    return Client(transport(path, greeting or hello()), mode=era, client_info=info, **more)
