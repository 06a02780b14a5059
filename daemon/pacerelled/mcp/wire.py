"""JSON-RPC lines: bytes in, messages out. No sockets, no tasks.

A line ends with ``\\n`` and has at most `pacerelle_protocol.local.MAX_LINE` bytes, its end included. Whatever a
line holds, reading it ends in a message or in `BadLine` with the error to answer with; it never ends the session.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from mcp_types import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from pacerelle_protocol.local import MAX_LINE

_HEAD = 64 * 1024  # bytes at the start of a too long line in which its id is looked for
_TAIL = 1024  # and at its end: some clients write the id last

_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]"]', re.DOTALL)
_ID_VALUE = rb'\s*:\s*(-?\d+|"[^"\\]*(?:\\.[^"\\]*)*")\s*'
_ID_FOLLOWS = re.compile(_ID_VALUE + rb"[,}]", re.DOTALL)
# Only plain members between the id and the one brace that ends the line, so that it is the outermost object's.
_ID_LAST = re.compile(rb'[,{]\s*"id"' + _ID_VALUE + rb'(?:,\s*"\w+"\s*:\s*"[^"\\]*"\s*)*\}\s*$', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Oversized:
    """A line over the limit. It was read past, not kept; `id` is its request's id if that could be found."""

    id: RequestId | None


class BadLine(Exception):
    """A line that holds no message, and the `answer` to it."""

    def __init__(self, request_id: RequestId | None, code: int, message: str) -> None:
        super().__init__(message)
        self.answer = _error(request_id, code, message)


class LineSplitter:
    """Cuts a stream of bytes into lines, keeping less than `limit` bytes of an unfinished one."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._part = bytearray()
        self._skipped_head: bytes | None = None  # set while the rest of a too long line is read past

    def feed(self, data: bytes) -> Iterator[bytes | Oversized]:
        """The lines that `data` completes, without their ends; blank ones are left out."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._take(data, start, end)
            start = end + 1
            if self._skipped_head is not None:
                yield Oversized(_find_id(self._skipped_head, self._part[-_TAIL:]))
                self._skipped_head = None
            elif line := bytes(self._part).strip():
                yield line
            self._part.clear()
        self._take(data, start, len(data))

    def _take(self, data: bytes, start: int, end: int) -> None:
        self._part += memoryview(data)[start:end]
        if self._skipped_head is None and len(self._part) >= self._limit:
            self._skipped_head = bytes(self._part[:_HEAD])
        if self._skipped_head is not None and len(self._part) > _HEAD:
            self._part = self._part[-_TAIL:]


def decode(line: bytes | Oversized) -> JSONRPCMessage:
    """The message in a line. Raises BadLine."""
    if isinstance(line, Oversized):
        raise BadLine(line.id, INVALID_REQUEST, f"The message is too long: a line has at most {MAX_LINE} bytes.")
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValidationError:
        if _SURROGATE.search(line):  # half a surrogate pair, as in a text cut inside an emoji
            mended = _ESCAPE.sub(lambda m: rb"\ufffd" if m["lone"] else m[0], line)
            if mended != line:
                return decode(mended)
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        raise BadLine(None, PARSE_ERROR, "This line is not JSON in UTF-8.") from None
    if isinstance(value, list):
        raise BadLine(None, INVALID_REQUEST, "Batches are not supported: send one message a line.")
    raise BadLine(
        _id_of(value), INVALID_REQUEST, "This line is not a JSON-RPC 2.0 message, or it is nested too deeply."
    )


def encode(message: JSONRPCMessage, limit: int = MAX_LINE) -> bytes:
    """The line for a message. An answer that cannot be a line within `limit` becomes an error that says so."""
    try:
        line = _dump(message)
    except ValueError:
        return _dump(_error(_id_of(message), INTERNAL_ERROR, "The answer could not be written as JSON."))
    if len(line) <= limit:
        return line
    text = (
        f"The answer has {len(line)} bytes; a line has at most {limit}. "
        "Ask for less: a smaller limit, or one conversation."
    )
    if isinstance(message, JSONRPCResponse) and "content" in message.result:  # a tool's: models see only tool errors
        result: dict[str, Any] = {key: message.result[key] for key in ("resultType", "_meta") if key in message.result}
        result |= {"content": [{"type": "text", "text": text}], "isError": True}
        return _dump(JSONRPCResponse(jsonrpc="2.0", id=message.id, result=result))
    return _dump(_error(_id_of(message), INTERNAL_ERROR, text))


def _error(request_id: RequestId | None, code: int, message: str) -> JSONRPCError:
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=message))


def _dump(message: JSONRPCMessage) -> bytes:
    text = message.model_dump_json(by_alias=True, exclude_unset=True)
    # Readers that split at every Unicode line end would tear a line at these two, which JSON leaves bare in strings.
    return text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029").encode() + b"\n"


def _id_of(value: object) -> RequestId | None:
    return _as_id(value.get("id") if isinstance(value, dict) else getattr(value, "id", None))


def _as_id(value: object) -> RequestId | None:
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None


def _find_id(head: bytes, tail: bytes | bytearray) -> RequestId | None:
    """The id of the outermost object of a line of which only the two ends are known."""
    depth = 0
    for token in _TOKEN.finditer(head):
        match token[0]:
            case b"{" | b"[":
                depth += 1
            case b"}" | b"]":
                depth -= 1
            case b'"':  # a string that goes on beyond the head
                break
            case b'"id"' if depth == 1 and (found := _ID_FOLLOWS.match(head, token.end())):
                return _parse_id(found[1])
    found = _ID_LAST.search(tail)
    return _parse_id(found[1]) if found else None


def _parse_id(value: bytes) -> RequestId | None:
    try:
        return _as_id(json.loads(value))
    except ValueError:
        return None
