"""TOML, edited in place. A new table goes to the end and an old one goes by its lines, so that all else stays as it is.

What stands otherwise (inline tables, single keys) is edited by tomlkit, which keeps comments, order and layout, but
moves blank lines, and counts a comment before the next table to the last one. The standard library's parser judges.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, MutableMapping, Sequence
from itertools import pairwise
from typing import Any

import tomlkit
from tomlkit.exceptions import ParseError, TOMLKitError
from tomlkit.items import InlineTable, Table

from .errors import BadText


def load(text: str) -> Any:
    """The document's value. Raises BadText."""
    try:
        return tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        what, _, where = str(error).partition(" (at ")
        line = re.match(r"line (\d+)", where)
        raise BadText(int(line[1]) if line else text.count("\n") + 1, f"{what}.") from error


def put(text: str, path: Sequence[str], value: Any) -> str:
    """The text with `value` at `path`; tables on the way are made. Raises BadText."""
    if isinstance(value, Mapping):
        text = remove(text, path) if _has(load(text), path) else text
        section = tomlkit.document()
        _set(section, path, value)
        newline = "\r\n" if "\r\n" in text else "\n"
        gap = newline * (bool(text) + (bool(text) and not text.endswith("\n")))
        appended = text + gap + section.as_string().replace("\n", newline)
        try:
            load(appended)
        except BadText:
            pass  # the table is an inline one
        else:
            return appended
    document = _parse(text)
    _set(document, path, value)
    return document.as_string()


def remove(text: str, path: Sequence[str]) -> str:
    """The text without what is at `path`, which must be there. Raises BadText, LookupError."""
    lines = text.splitlines(keepends=True)
    headers = [number for number, line in enumerate(lines) if _header(line) is not None]
    ours = [(begin, end) for begin, end in pairwise([*headers, len(lines)]) if _has(_header(lines[begin]), path)]
    for begin, end in reversed(ours):
        while not (last := lines[end - 1].strip()) or last.startswith("#"):
            end -= 1
        if begin and not lines[begin - 1].strip() and not (end < len(lines) and lines[end].strip()):
            begin -= 1
        del lines[begin:end]
    if ours:
        return "".join(lines)
    document = _parse(text)
    place: MutableMapping[str, Any] = document
    for key in path[:-1]:
        place = _table(place[key], key)
    del place[path[-1]]
    return document.as_string()


def _header(line: str) -> Any:
    """What a line that begins a table says, as a value with that table in it; None for another line."""
    if not line.lstrip().startswith("["):
        return None
    try:
        return tomllib.loads(line.strip())
    except tomllib.TOMLDecodeError:
        return None


def _has(data: Any, path: Sequence[str]) -> bool:
    for key in path:
        if not isinstance(data, Mapping) or key not in data:
            return False
        data = data[key]
    return True


def _parse(text: str) -> tomlkit.TOMLDocument:
    try:
        document = tomlkit.parse(text)
    except ParseError as error:
        raise BadText(error.line, f"{str(error).partition(' at line')[0]}.") from error
    except TOMLKitError as error:
        raise BadText(1, str(error)) from error
    if document.as_string() != text:
        raise BadText(1, "it is written in a way that cannot be edited without changing the rest of it.")
    return document


def _set(document: tomlkit.TOMLDocument, path: Sequence[str], value: Any) -> None:
    place: MutableMapping[str, Any] = document
    for key in path[:-1]:
        if key not in place:
            place[key] = tomlkit.inline_table() if isinstance(place, InlineTable | Table) else tomlkit.table(True)
        place = _table(place[key], key)
    inline = isinstance(place, InlineTable)
    place[path[-1]] = _item(value, inline=inline) if isinstance(value, Mapping) else value


def _table(found: Any, key: str) -> MutableMapping[str, Any]:
    if not isinstance(found, MutableMapping):
        raise BadText(1, f"{key} is no table.")
    return found


def _item(value: Mapping[str, Any], *, inline: bool) -> Table | InlineTable:
    """A table, with those within it on one line each."""
    made: Table | InlineTable = tomlkit.inline_table() if inline else tomlkit.table()
    for key, each in value.items():
        made[key] = _item(each, inline=True) if isinstance(each, Mapping) else each
    return made
