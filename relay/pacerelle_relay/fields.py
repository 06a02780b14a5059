"""Reading JSON that somebody else wrote. Every refusal names the field."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Callable
from typing import Any

from .errors import Malformed

IDENTIFIER = re.compile(r"[A-Za-z0-9._~-]{1,128}")
"""Ids become parts of `:`-separated Signal names and of authenticated history data, so they hold no `:` or control."""

MAX_NAME = 240  # characters, of people's and agents' names and titles
MAX_SAFE_INTEGER = 2**53 - 1  # what every JSON reader holds exactly
UINT32 = 2**32 - 1


def parse_object(text: str | bytes) -> Fields:
    """The JSON object in `text`. Raises Malformed."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        raise Malformed("not valid JSON") from None
    if not isinstance(value, dict):
        raise Malformed("not a JSON object")
    return Fields(value)


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def is_base64(value: str) -> bool:
    try:
        binascii.a2b_base64(value, strict_mode=True)
    except ValueError:
        return False
    return True


class Fields:
    """One JSON object. `what` precedes the field's name in messages. A null is the same as a missing field."""

    def __init__(self, values: dict[str, Any], what: str = "") -> None:
        self._values = values
        self._what = what

    def optional[T](self, read: Callable[[str], T], name: str) -> T | None:
        return None if self._values.get(name) is None else read(name)

    def identifier(self, name: str) -> str:
        value = self._values.get(name)
        if not isinstance(value, str) or not IDENTIFIER.fullmatch(value):
            raise self._malformed(name, "1 to 128 of the characters A-Z a-z 0-9 . _ ~ -")
        return value

    def target(self, name: str) -> str:
        """An id, or `group:` and an id."""
        value = self._values.get(name)
        if not isinstance(value, str) or not IDENTIFIER.fullmatch(value.removeprefix("group:")):
            raise self._malformed(name, "an id or group:<conversation id>")
        return value

    def name(self, name: str) -> str:
        """Text for people: one line, nothing invisible."""
        value = self._values.get(name)
        if not isinstance(value, str) or not value.strip() or len(value) > MAX_NAME or not value.isprintable():
            raise self._malformed(name, f"1 to {MAX_NAME} printable characters")
        return value

    def text(self, name: str, *, limit: int = 1024) -> str:
        value = self._values.get(name)
        if not isinstance(value, str) or len(value) > limit:
            raise self._malformed(name, f"a string of at most {limit} characters")
        return value

    def integer(self, name: str, *, low: int = 0, high: int = MAX_SAFE_INTEGER) -> int:
        value = self._values.get(name)
        if type(value) is not int or not low <= value <= high:
            raise self._malformed(name, f"an integer from {low} to {high}")
        return value

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise self._malformed(name, "true or false")
        return value

    def one_of(self, name: str, *choices: str) -> str:
        value = self._values.get(name)
        if value not in choices:
            raise self._malformed(name, "one of " + ", ".join(choices))
        return str(value)

    def base64(self, name: str, *, low: int = 0, high: int | None = None) -> str:
        """Base64 of `low` to `high` bytes, still encoded."""
        value = self._values.get(name)
        if not isinstance(value, str) or not is_base64(value):
            raise self._malformed(name, "base64")
        size = len(value) // 4 * 3 - value.count("=", -2)
        if size < low or (high is not None and size > high):
            raise self._malformed(name, f"base64 of {low} bytes" + (f" to {high}" if high != low else ""))
        return value

    def object(self, name: str) -> dict[str, Any]:
        value = self._values.get(name)
        if not isinstance(value, dict):
            raise self._malformed(name, "an object")
        return value

    def objects(self, name: str, *, limit: int) -> list[dict[str, Any]]:
        value = self._values.get(name)
        if not isinstance(value, list) or len(value) > limit or not all(isinstance(x, dict) for x in value):
            raise self._malformed(name, f"a list of at most {limit} objects")
        return value

    def each(self, name: str, *, limit: int) -> list[Fields]:
        """The objects of a list, ready to be read."""
        return [Fields(x, f"{name}[{i}].") for i, x in enumerate(self.objects(name, limit=limit))]

    def identifiers(self, name: str, *, low: int = 1, high: int) -> list[str]:
        """`low` to `high` different ids."""
        value = self._values.get(name)
        if (
            not isinstance(value, list)
            or not low <= len(value) <= high
            or not all(isinstance(x, str) and IDENTIFIER.fullmatch(x) for x in value)
            or len(set(value)) != len(value)
        ):
            raise self._malformed(name, f"a list of {low} to {high} different ids")
        return value

    def _malformed(self, name: str, expected: str) -> Malformed:
        missing = " (it is missing)" if self._values.get(name) is None else ""
        return Malformed(f"{self._what}{name} must be {expected}{missing}")
