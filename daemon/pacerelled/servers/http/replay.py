"""What one session was sent, so that a stream which broke can be taken up again (`Last-Event-ID`).

Each session has its own: an event of another one cannot be asked for. An event's id names its stream, so that also a
stream of which older events are gone can be taken up with what there is.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, unquote

from mcp.server.streamable_http import GET_STREAM_KEY, EventCallback, EventMessage, EventStore
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse

MAX_EVENTS: Final = 256
MAX_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Event:
    number: int
    stream: str
    message: JSONRPCMessage | None  # None: the stream's beginning
    size: int

    @property
    def id(self) -> str:
        return f"{self.number}-{quote(self.stream, safe='')}"


class Replay(EventStore):
    """Keeps the newest `MAX_EVENTS` events, and `MAX_BYTES` of them, but always the last one."""

    def __init__(self) -> None:
        self._events: deque[_Event] = deque()
        self._bytes = 0
        self._number = 0
        self._followers: dict[str, object] = {}  # stream → who follows it
        self._news = asyncio.Event()

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        self._number += 1
        size = len(message.model_dump_json(by_alias=True, exclude_unset=True)) if message is not None else 0
        event = _Event(self._number, stream_id, message, size)
        self._events.append(event)
        self._bytes += size
        while len(self._events) > MAX_EVENTS or (self._bytes > MAX_BYTES and len(self._events) > 1):
            self._bytes -= self._events.popleft().size
        self._tell()
        return event.id

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> None:
        """Sends what followed, and all that comes until the stream is answered, taken up anew, or `close`.

        The transport would go on itself if it were given the stream's name, but what is stored before it has made its
        preparations would never be sent.
        """
        number, _, quoted = last_event_id.partition("-")
        stream = unquote(quoted)
        if not number.isascii() or not number.isdigit():
            return
        sent, me = int(number[:19]), object()
        self.release(stream)
        self._followers[stream] = me
        try:
            while self._followers.get(stream) is me:
                news = self._news
                kept = [event for event in self._events if event.stream == stream]
                for event in kept:
                    if event.number > sent:
                        sent = event.number
                        if event.message is not None:
                            await send_callback(EventMessage(event.message, event.id))
                answered = bool(kept) and isinstance(kept[-1].message, JSONRPCResponse | JSONRPCError)
                if (answered or not kept) and stream != GET_STREAM_KEY:  # at its end, or not known
                    return
                await news.wait()
        finally:
            if self._followers.get(stream) is me:
                del self._followers[stream]

    def release(self, stream: str) -> None:
        """Ends who follows it."""
        if self._followers.pop(stream, None) is not None:
            self._tell()

    def close(self) -> None:
        """Ends all who follow."""
        self._followers.clear()
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()
