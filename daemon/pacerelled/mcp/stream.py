"""One MCP session over an asyncio stream of lines."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.server import Server
from mcp.shared.message import SessionMessage

from . import wire

_CHUNK = 64 * 1024  # bytes a read
_UNSENT = 1024 * 1024  # bytes that may wait for a host before it is no longer read from


class LineReader:
    """Whole lines from a stream, whatever pieces they come in."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        self._splitter = wire.LineSplitter()
        self._lines: deque[bytes | wire.Oversized] = deque()

    async def next(self) -> bytes | wire.Oversized | None:
        """The next line that is not blank, or None at the end; a last line without an end is dropped.

        Raises OSError when the connection breaks.
        """
        while not self._lines:
            data = await self._reader.read(_CHUNK)
            if not data:
                return None
            self._lines.extend(self._splitter.feed(data))
        return self._lines.popleft()


async def serve_stream(server: Server, lines: LineReader, writer: asyncio.StreamWriter) -> None:
    """Runs `server` for the host at the other end until that end closes or the connection breaks.

    A host that does not read its answers is, past a limit, not read from either; calls in flight are cancelled at the
    end. The caller closes the stream.
    """
    writer.transport.set_write_buffer_limits(high=_UNSENT)
    # Without buffers, so that a host that is slow to read holds up its own calls and nothing piles up here.
    inbound_send, inbound = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outbound, outbound_receive = anyio.create_memory_object_stream[SessionMessage](0)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_receive, lines, writer, inbound_send, outbound.clone())
        tasks.start_soon(_send, outbound_receive, writer)
        await server.run(inbound, outbound, server.create_initialization_options())
        tasks.cancel_scope.cancel()


async def _receive(
    lines: LineReader,
    writer: asyncio.StreamWriter,
    inbound: MemoryObjectSendStream[SessionMessage | Exception],
    answers: MemoryObjectSendStream[SessionMessage],
) -> None:
    async with inbound, answers:
        with suppress(OSError, anyio.BrokenResourceError):
            while (line := await lines.next()) is not None:
                try:
                    await inbound.send(SessionMessage(wire.decode(line)))
                except wire.BadLine as bad:
                    await answers.send(SessionMessage(bad.answer))
                await writer.drain()


async def _send(outbound: MemoryObjectReceiveStream[SessionMessage], writer: asyncio.StreamWriter) -> None:
    async with outbound:
        with suppress(OSError):
            async for item in outbound:
                writer.write(wire.encode(item.message))
                await writer.drain()
