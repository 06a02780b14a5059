"""What a caller of control.sock sends: the fields of a query or of a JSON object, and the bytes of a file.

Every field is asked for by name and type; what is left over afterwards is refused, so that a misspelt option
is never silently ignored. All errors here are `InvalidArgument` (400, naming the field) or aiohttp's 413.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiohttp import web

from pacerelled.errors import InvalidArgument

MAX_JSON: Final = 16 * 1024 * 1024
"""Bytes of a JSON body."""
MAX_FILE: Final = 64 * 1024 * 1024
"""Bytes of a file."""


class Fields:
    """The fields of one call. JSON `null` counts as absent."""

    def __init__(self, values: Mapping[str, Any], *, parse_text: bool = False) -> None:
        """With `parse_text` the values are strings that may stand for numbers and flags (a query)."""
        self._values = {name: value for name, value in values.items() if value is not None}
        self._parse_text = parse_text

    def text(self, name: str, *, most: int = MAX_JSON) -> str | None:
        """`most` is in characters."""
        value = self._values.pop(name, None)
        if value is not None and not isinstance(value, str):
            raise _wrong(name, "must be a string")
        if value is not None and len(value) > most:
            raise _wrong(name, f"must have at most {most} characters")
        return value

    def required_text(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise _wrong(name, "is required and must not be empty")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of strings, empty without one."""
        value = self._values.pop(name, [])
        if isinstance(value, list) and all(isinstance(each, str) and each for each in value):
            return value
        raise _wrong(name, "must be a list of strings")

    def text_or_object(self, name: str) -> str | dict[str, Any] | None:
        value = self._values.pop(name, None)
        if value is None or isinstance(value, str | dict):
            return value
        raise _wrong(name, "must be an object or a string with JSON")

    def object(self, name: str) -> dict[str, Any] | None:
        value = self._values.pop(name, None)
        if value is None or isinstance(value, dict):
            return value
        raise _wrong(name, "must be an object")

    def choice(self, name: str, *, of: tuple[str, ...]) -> str | None:
        value = self.text(name)
        if value is None or value in of:
            return value
        raise _wrong(name, f"must be one of {', '.join(of)}")

    def names(self, name: str) -> tuple[str, ...]:
        """Several in one, with commas between: none of what is named so has one."""
        value = self.text(name)
        return tuple(filter(None, (value or "").split(",")))

    def flag(self, name: str, *, default: bool) -> bool:
        value: object = self._values.pop(name, default)
        if self._parse_text and value in ("true", "false"):
            return value == "true"
        if isinstance(value, bool):
            return value
        raise _wrong(name, "must be true or false")

    def integer(self, name: str, *, default: int, least: int = 0, most: int) -> int:
        value = self.optional_integer(name, least=least, most=most)
        return default if value is None else value

    def optional_integer(self, name: str, *, least: int = 0, most: int) -> int | None:
        value = self._values.pop(name, None)
        if value is None:
            return None
        if self._parse_text and isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
            value = int(value)
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
            return value
        raise _wrong(name, f"must be a whole number from {least} to {most}")

    def seconds(self, name: str, *, most: float, default: float = 0.0) -> float:
        value = self._values.pop(name, default)
        if self._parse_text and isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                value = math.nan
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= most:
            return float(value)
        raise _wrong(name, f"must be a number of seconds from 0 to {most:g}")

    def done(self) -> None:
        """Raises InvalidArgument if the caller sent a field that nobody asked for."""
        for name in self._values:
            shown = name[:64].encode("ascii", "backslashreplace").decode()
            raise InvalidArgument(
                f"{shown!r} is not a field of this call",
                argument=shown,
                hint="Check its spelling against docs/local-protocol.md.",
            )


def query_fields(request: web.Request) -> Fields:
    """The fields of the query. Raises InvalidArgument for one that is given twice."""
    query = request.query
    for name in query:
        if len(query.getall(name)) > 1:
            raise _wrong(name[:64], "is given more than once")
    return Fields(query, parse_text=True)


async def json_fields(request: web.Request) -> Fields:
    """The fields of the body, a JSON object; an empty body has none."""
    raw = await request.read()
    if not raw:
        return Fields({})
    try:
        body = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _wrong("body", "must be JSON in UTF-8") from error
    if not isinstance(body, dict):
        raise _wrong("body", "must be a JSON object")
    for name, value in body.items():
        _check_encodable(name, value)
    return Fields(body)


def file_pieces(request: web.Request) -> AsyncIterator[bytes]:
    """The body as it is, at most `MAX_FILE` bytes. Raises aiohttp's 413 now or as soon as there are more."""
    announced = request.content_length
    if announced is not None and announced > MAX_FILE:
        raise web.HTTPRequestEntityTooLarge(max_size=MAX_FILE, actual_size=announced)

    async def pieces() -> AsyncIterator[bytes]:
        size = 0
        async for piece in request.content.iter_any():
            size += len(piece)
            if size > MAX_FILE:
                raise web.HTTPRequestEntityTooLarge(max_size=MAX_FILE, actual_size=size)
            yield piece

    return pieces()


def _check_encodable(name: str, value: Any) -> None:
    """A lone surrogate or a NaN gets through JSON's parser, but is of no use to anybody behind us."""
    try:
        name.encode()
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError) as error:
        shown = name[:64].encode("ascii", "backslashreplace").decode()
        raise _wrong(shown, "has a lone surrogate, a number that is not finite, or is nested too deeply") from error


def _wrong(name: str, what: str) -> InvalidArgument:
    return InvalidArgument(f"{name} {what}", argument=name)
