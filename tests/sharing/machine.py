"""A real hub, store and mcp.sock in this process, with one agent; requests are put in as if they had come."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self

import anyio
import mcp_types
from mcp.shared.message import SessionMessage

from mcp import Client
from pacerelle_protocol.hello import Hello, encode_hello
from pacerelle_protocol.local import MAX_LINE
from pacerelled.agent.agent import Agent
from pacerelled.agent.model import Session, WaitResult
from pacerelled.servers.mcp_sock import McpSocketServer
from pacerelled.servers.sockets import bind_unix
from pacerelled.store import requests
from pacerelled.store.database import Tx
from pacerelled.store.requests import NewRequest
from tests.daemon.core import Core
from tests.daemon.polling import until

ERAS = ("legacy", "2026-07-28")
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
NOWHERE = "http://127.0.0.1:9"  # no relay: nothing here needs one


class Machine:
    """`async with Machine(folder) as machine`."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder = folder
        self.core = Core(folder / "state", **settings)
        self.server: McpSocketServer
        self.agent: Agent

    async def __aenter__(self) -> Self:
        await self.core.start()
        self.agent = await self.core.agent(NOWHERE)
        self.server = McpSocketServer(self.core.hub, bind_unix(self._folder / "mcp.sock"), version="9.9")
        self.server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.stop()
        await self.core.stop()

    # What people do

    async def ask(self, *texts: str, conversation: str = "c1", kind: str = "text", **more: Any) -> None:
        """Requests that came together; a text's first 20 characters are its message's id, too."""
        rows = [
            NewRequest(
                t[:20], conversation, "ada", "d1", False, True, kind, t, more.get("detail"), more.get("files"), None
            )
            for t in texts
        ]

        def job(tx: Tx) -> None:
            for row in rows:
                requests.insert_request(tx, "a1", row, f"digest of {row.message_id}")

        await self.core.store.run(job)
        for _ in texts:
            self.agent._claims.waiting.wake(conversation)
        self.agent._notify("inbox")

    # What sessions do

    async def take(self, session: Session, **options: Any) -> list[str]:
        return ids(await self.agent.wait_for_messages(session, **{"timeout": 0, **options}))

    def wait(self, session: Session, **options: Any) -> asyncio.Task[WaitResult]:
        return asyncio.create_task(self.agent.wait_for_messages(session, **{"timeout": 60, **options}))

    async def waiting(self, count: int) -> None:
        """So many calls wait, and have found nothing so far."""
        queue = self.agent._claims.waiting._waiters
        await until(lambda: len(queue) == count and all(w.looked for w in queue), f"{count} calls that wait")
        await self.core.store.settled()
        await asyncio.sleep(0.02)

    async def claimed(self) -> dict[str, str]:
        """Message id -> session."""

        def job(tx: Tx) -> dict[str, str]:
            rows = tx.all("SELECT message_id, session_id FROM claims JOIN requests ON seq = request_seq")
            return {row[0]: row[1] for row in rows}

        return await self.core.store.run(job)

    async def events(self, type_: str) -> list[dict[str, Any]]:
        """The data of what happened so, oldest first."""
        found = await self.core.hub.event_log.last(1000, lambda event: event["type"] == type_)
        return [event["data"] for event in found["events"]]

    async def taken_over(self) -> list[dict[str, Any]]:
        return [event for event in await self.events("message.claimed") if "taken_from" in event]

    # What hosts do

    def hello(self, session: str | None = None, **more: Any) -> Hello:
        return Hello(session=session or secrets.token_hex(16), shim="0.1.0", **{"pid": 1, **more})

    def client(self, era: str, hello: Hello | None = None, **more: Any) -> Client:
        """The official client: `legacy` does the handshake, a date speaks that version without one."""
        info = mcp_types.Implementation(name="codex", version="0.171")
        return Client(self._transport(hello or self.hello()), mode=era, client_info=info, **more)

    @asynccontextmanager
    async def raw(self, *, modern: bool = False, version: str = "2025-11-25") -> AsyncIterator[Raw]:
        reader, writer = await asyncio.open_unix_connection(self._folder / "mcp.sock", limit=2 * MAX_LINE)
        host = Raw(reader, writer, modern=modern)
        try:
            hello = self.hello()
            host.session = hello.session
            writer.write(encode_hello(hello))
            assert (await host.receive())["pacerelle"] == "welcome"
            if not modern:
                info = {"name": "raw", "version": "1"}
                await host.ask(0, "initialize", protocolVersion=version, capabilities={}, clientInfo=info)
                host.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
            yield host
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    @asynccontextmanager
    async def _transport(self, hello: Hello) -> AsyncIterator[Any]:
        reader, writer = await asyncio.open_unix_connection(self._folder / "mcp.sock", limit=2 * MAX_LINE)
        writer.write(encode_hello(hello))
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
                    writer.write(item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
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


class Raw:
    """A host that writes lines, of either era."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, modern: bool) -> None:
        self._reader = reader
        self._writer = writer
        self._modern = modern
        self.session = ""

    def send(self, *messages: dict[str, Any]) -> None:
        """All in one write."""
        self._writer.write(b"".join(json.dumps(message).encode() + b"\n" for message in messages))

    def call(self, number: int | str, tool: str, **arguments: Any) -> dict[str, Any]:
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if self._modern:
            params["_meta"] = META
        return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}

    def cancel(self, number: int | str) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": number}}

    async def receive(self) -> Any:
        async with asyncio.timeout(30):
            return json.loads(await self._reader.readline())

    async def ask(self, number: int, method: str, **params: Any) -> Any:
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return await self.receive()

    async def tool(self, number: int | str, tool: str, **arguments: Any) -> Any:
        """The result of a call whose answer is the next line."""
        self.send(self.call(number, tool, **arguments))
        answer = await self.receive()
        assert answer["id"] == number, answer
        return answer["result"]


def ids(found: WaitResult) -> list[str]:
    return [request.message_id for request in found.messages]


async def call(host: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """A call's structured content."""
    result = await host.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return dict(result.structured_content)


async def error(host: Client, tool: str, **arguments: Any) -> str:
    result = await host.call_tool(tool, arguments)
    assert result.is_error
    (content,) = result.content
    assert isinstance(content, mcp_types.TextContent)
    return content.text
