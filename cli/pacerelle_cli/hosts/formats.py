"""Edits of a host's file as text, whatever its format, which change one place and prove it."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any, Protocol

from .errors import BadText


class Format(Protocol):
    """A module that reads and edits one format: `jsonc`, `toml`, `yaml`. Its functions raise BadText."""

    def load(self, text: str) -> Any: ...

    def put(self, text: str, path: Sequence[str], value: Any) -> str: ...

    def remove(self, text: str, path: Sequence[str]) -> str: ...


def format_named(name: str) -> Format:
    """`json`, `jsonc`, `toml` or `yaml`. The libraries for the last two are imported when they are needed."""
    if name == "toml":
        from . import toml

        return toml
    if name == "yaml":
        from . import yaml

        return yaml
    from . import jsonc

    return jsonc


def read(name: str, text: str) -> Any:
    """The document's value, which is a mapping. Raises BadText."""
    data = format_named(name).load(text)
    if not isinstance(data, dict):
        raise BadText(1, "it does not hold named settings.")
    if name == "json" and text.strip():
        try:
            json.loads(text)
        except ValueError as error:
            line = getattr(error, "lineno", 1)
            raise BadText(line, "comments and trailing commas are more than this host reads.") from error
    return data


def find(data: Any, path: Sequence[str]) -> Any:
    """What is at `path`, or None."""
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def put(name: str, text: str, path: Sequence[str], value: Any) -> str:
    """The text with `value` at `path` and all else as it was. Raises BadText."""
    place = expected = copy.deepcopy(read(name, text))
    for key in path[:-1]:
        if place.get(key) is None:
            place[key] = {}
        place = place[key]
        if not isinstance(place, dict):
            raise BadText(1, f"{key} does not hold named settings.")
    if path[-1] in place and place[path[-1]] == value:
        return text
    place[path[-1]] = value
    return _proved(name, format_named(name).put(text, path, value), expected)


def remove(name: str, text: str, path: Sequence[str]) -> str:
    """The text without what is at `path`, and all else as it was. Raises BadText, LookupError."""
    expected = copy.deepcopy(read(name, text))
    holder = find(expected, path[:-1])
    del holder[path[-1]]
    edited = format_named(name).remove(text, path)
    if not holder and find(read(name, edited), path[:-1]) is None:
        del find(expected, path[:-2])[path[-2]]  # TOML cannot tell an empty table that has no line of its own
    return _proved(name, edited, expected)


def _proved(name: str, text: str, expected: Any) -> str:
    """The edited text, if it means what was wanted and nothing else."""
    try:
        if read(name, text) == expected:
            return text
    except BadText:
        pass
    raise BadText(1, "it is written in a way that cannot be edited without changing the rest of it.")
