"""JSON with comments and trailing commas, edited in place: every character outside the edit stays as it is.

What has neither comments nor trailing commas is JSON, and stays JSON. Python's libraries for this rewrite the document
or need Node; here a parser notes where each member of each object is, and an edit replaces such a span.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from .errors import BadText

_BLANK: Final = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_ATOM: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null", re.ASCII)
_UNIT: Final = "  "


@dataclass(frozen=True)
class _Node:
    """A value at `start:end`; `members` if it is an object."""

    start: int
    end: int
    data: Any
    members: tuple[_Member, ...] | None = None


@dataclass(frozen=True)
class _Member:
    """`comma` is where the comma after it is, if there is one."""

    key: str
    start: int
    value: _Node
    comma: int | None


def load(text: str) -> Any:
    """The document's value; an empty document is an empty object. Raises BadText."""
    root = _parse(text)
    return {} if root is None else root.data


def put(text: str, path: Sequence[str], value: Any) -> str:
    """The text with `value` at `path`; objects on the way are made. Raises BadText."""
    node = _parse(text)
    if node is None:
        head = text if not text or text.endswith("\n") else text + "\n"
        return head + _dump(_nested(path, value), "") + "\n"
    for depth, key in enumerate(path):
        member = _find(text, node, key)
        if member is None:
            return _insert(text, node, key, _nested(path[depth + 1 :], value))
        node = member.value
    indent = _indent_at(text, node.start)
    return text[: node.start] + _dump(value, indent, _newline(text)) + text[node.end :]


def remove(text: str, path: Sequence[str]) -> str:
    """The text without the member at `path`, which must be there. Raises BadText, LookupError."""
    node = _parse(text)
    for key in path[:-1]:
        node = _there(text, node, key).value
    member = _there(text, node, path[-1])
    assert node is not None
    return _cut(text, node, member)


# Reading


def _parse(text: str) -> _Node | None:
    start = _skip(text, 0)
    if start == len(text):
        return None
    try:
        root = _value(text, start)
    except RecursionError:
        raise BadText(1, "it is nested too deeply.") from None
    end = _skip(text, root.end)
    if end != len(text):
        raise _bad(text, end, "something follows after the end")
    return root


def _value(text: str, at: int) -> _Node:
    if text.startswith("{", at):
        return _object(text, at)
    if text.startswith("[", at):
        return _array(text, at)
    if text.startswith('"', at):
        end, data = _string(text, at)
        return _Node(at, end, data)
    found = _ATOM.match(text, at)
    if found is None:
        raise _bad(text, at, "a value is missing")
    return _Node(at, found.end(), json.loads(found[0]))


def _object(text: str, start: int) -> _Node:
    members: list[_Member] = []
    at = _skip(text, start + 1)
    while not text.startswith("}", at):
        if members and members[-1].comma is None:
            raise _bad(text, at, "a comma or } is missing")
        if not text.startswith('"', at):
            raise _bad(text, at, "a name in double quotes or } is missing")
        colon, key = _string(text, at)
        colon = _skip(text, colon)
        if not text.startswith(":", colon):
            raise _bad(text, colon, "a colon is missing")
        value = _value(text, _skip(text, colon + 1))
        after = _skip(text, value.end)
        comma = after if text.startswith(",", after) else None
        members.append(_Member(key, at, value, comma))
        at = after if comma is None else _skip(text, after + 1)
    return _Node(start, at + 1, {member.key: member.value.data for member in members}, tuple(members))


def _array(text: str, start: int) -> _Node:
    items: list[Any] = []
    at, more = _skip(text, start + 1), True
    while not text.startswith("]", at):
        if not more:
            raise _bad(text, at, "a comma or ] is missing")
        value = _value(text, at)
        items.append(value.data)
        at = _skip(text, value.end)
        more = text.startswith(",", at)
        at = _skip(text, at + 1) if more else at
    return _Node(start, at + 1, items)


def _string(text: str, at: int) -> tuple[int, str]:
    found = _STRING.match(text, at)
    if found is None:
        raise _bad(text, at, "a string does not end on its line")
    try:
        return found.end(), str(json.loads(found[0]))
    except ValueError:
        raise _bad(text, at, "a string has a wrong escape") from None


def _skip(text: str, at: int) -> int:
    """Where blanks and comments end."""
    found = _BLANK.match(text, at)
    end = found.end() if found else at
    if text.startswith("/*", end):
        raise _bad(text, end, "a comment does not end")
    return end


def _bad(text: str, at: int, what: str) -> BadText:
    return BadText(text.count("\n", 0, at) + 1, f"{what}." if at < len(text) else f"{what}: the file ends too early.")


def _find(text: str, node: _Node, key: str) -> _Member | None:
    if node.members is None:
        raise _bad(text, node.start, f'there should be an object here, to hold "{key}"')
    found = [member for member in node.members if member.key == key]
    if len(found) > 1:
        raise _bad(text, found[1].start, f'"{key}" is there twice')
    return found[0] if found else None


def _there(text: str, node: _Node | None, key: str) -> _Member:
    member = None if node is None else _find(text, node, key)
    if member is None:
        raise LookupError(key)
    return member


# Writing


def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _insert(text: str, node: _Node, key: str, value: Any) -> str:
    """As the last member, in the style of those that are there, behind their comments."""
    last = node.members[-1] if node.members else None
    close = node.end - 1
    at = len(text[:close].rstrip())  # where the content of the object ends, comments included
    inline = last is not None and "\n" not in text[node.start : close]
    newline = _newline(text)
    if inline:
        lead, tail = " ", text[at:close]
        written = f"{_quoted(key)}: {_dump_inline(value)}"
    else:
        outer = _indent_at(text, close) if "\n" in text[at:close] else _indent_at(text, node.start)
        inner = _indent_at(text, last.start) if last and _begins_line(text, last.start) else outer + _unit(text)
        lead = newline + inner
        tail = text[at:close] if "\n" in text[at:close] else newline + outer
        written = f"{_quoted(key)}: {_dump(value, inner, newline, _unit(text))}"
    if last is None:
        return text[:at] + lead + written + tail + text[close:]
    if last.comma is not None:
        return text[:at] + lead + written + "," + tail + text[close:]
    return text[: last.value.end] + "," + text[last.value.end : at] + lead + written + tail + text[close:]


def _cut(text: str, parent: _Node, member: _Member) -> str:
    """With the comma that belongs to it and the blanks before it; comments around it stay."""
    members = parent.members or ()
    end = member.value.end if member.comma is None else member.comma + 1
    begin = len(text[: member.start].rstrip())
    rest = text[end:].partition("\n")[0]
    if "\n" in text[begin : member.start] and rest.strip():
        begin = member.start  # something follows on its last line, which must not get into a comment before it
    place = members.index(member)
    before = members[place - 1].comma if place and member.comma is None else None
    head = text[:begin] if before is None else text[:before] + text[before + 1 : begin]
    inside = head[parent.start + 1 :] + text[end : parent.end - 1]
    if len(members) == 1 and not inside.strip():
        return text[: parent.start] + "{}" + text[parent.end :]
    return head + text[end:]


def _dump(value: Any, indent: str, newline: str = "\n", unit: str = _UNIT) -> str:
    """Objects over several lines, all else on one."""
    if not isinstance(value, Mapping) or not value:
        return _dump_inline(value)
    inner = indent + unit
    lines = (f"{inner}{_quoted(key)}: {_dump(item, inner, newline, unit)}" for key, item in value.items())
    return "{" + newline + f",{newline}".join(lines) + newline + indent + "}"


def _dump_inline(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _quoted(key: str) -> str:
    return json.dumps(key, ensure_ascii=False)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line_before(text: str, at: int) -> str:
    return text[text.rfind("\n", 0, at) + 1 : at]


def _begins_line(text: str, at: int) -> bool:
    return not _line_before(text, at).strip()


def _indent_at(text: str, at: int) -> str:
    """How the line at `at` is indented."""
    line = _line_before(text, at)
    return line[: len(line) - len(line.lstrip())]


def _unit(text: str) -> str:
    """What the document indents with: as its first member is, else two spaces."""
    found = re.match(r"\s*\{[^\S\n]*\n([ \t]+)\S", text)
    return found[1] if found else _UNIT
