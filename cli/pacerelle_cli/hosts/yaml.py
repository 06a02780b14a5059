"""YAML, edited in place: ruamel.yaml says where things are, and the text is changed there and nowhere else.

Its own way of writing keeps comments, but indents anew what others have indented.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, ScalarNode

from .errors import BadText

_PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
_NOT_TEXT: Final = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}  # to one version of YAML or another
_UNIT: Final = 2  # columns


def load(text: str) -> Any:
    """The document's value; an empty document is an empty mapping. Raises BadText."""
    try:
        data = YAML(typ="safe", pure=True).load(text)
    except YAMLError as error:
        raise _bad(error) from error
    return {} if data is None else data


def put(text: str, path: Sequence[str], value: Any) -> str:
    """The text with `value` at `path`; mappings on the way are made. Raises BadText."""
    node = _compose(text)
    owner: Node | None = None  # the key whose value `node` is
    for depth, key in enumerate(path):
        found = None if node is None or _is_null(node) else _find(node, key)
        if found is None:
            for outer in reversed(path[depth + 1 :]):
                value = {outer: value}
            return _insert(text, owner, node, key, value)
        owner, node = found
    assert node is not None
    end = _end(text, node)
    written = _inline(value) if isinstance(value, Mapping | list) else _scalar(value)
    return text[: node.start_mark.index] + written + text[end:]


def remove(text: str, path: Sequence[str]) -> str:
    """The text without what is at `path`, which must be there. Raises BadText, LookupError."""
    above, parent = None, _compose(text)
    for key in path[:-1]:
        above, parent = _there(parent, key)
    name, value = _there(parent, path[-1])
    assert isinstance(parent, MappingNode)
    begin, end = name.start_mark.index, _end(text, value)
    if parent.flow_style:
        after = re.match(r"\s*,\s*", text[end:])
        if after:
            return text[:begin] + text[end + after.end() :]
        return re.sub(r"\s*,\s*$", "", text[:begin]) + text[end:]
    text = text[: _line_start(text, begin)] + text[_next_line(text, end) :]
    if len(parent.value) == 1 and above is not None:
        colon = text.index(":", above.end_mark.index) + 1
        text = f"{text[:colon]} {{}}{text[colon:]}"
    return text


def _compose(text: str) -> Node | None:
    try:
        node: Node | None = YAML(pure=True).compose(text)
    except YAMLError as error:
        raise _bad(error) from error
    return node


def _bad(error: YAMLError) -> BadText:
    mark = (error.problem_mark or error.context_mark) if isinstance(error, MarkedYAMLError) else None
    what = (getattr(error, "problem", None) or getattr(error, "reason", None) or "it is no YAML").rstrip(".")
    return BadText(mark.line + 1 if mark else 1, f"{what}.")


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _find(node: Node, key: str) -> tuple[Node, Node] | None:
    if not isinstance(node, MappingNode):
        raise BadText(node.start_mark.line + 1, f"there should be a mapping here, to hold {key}.")
    return next(((name, value) for name, value in node.value if name.value == key), None)


def _there(node: Node | None, key: str) -> tuple[Node, Node]:
    found = None if node is None else _find(node, key)
    if found is None:
        raise LookupError(key)
    return found


def _insert(text: str, owner: Node | None, node: Node | None, key: str, value: Any) -> str:
    if isinstance(node, MappingNode) and node.flow_style and node.value:
        at = node.start_mark.index + 1
        return f"{text[:at]}{json.dumps(key)}: {_inline(value)}, {text[at:]}"
    if isinstance(node, MappingNode) and not node.flow_style:
        column = node.value[0][0].start_mark.column
    else:  # empty, in one way or another
        column = 0 if owner is None else owner.start_mark.column + _UNIT
        if node is not None:
            text = text[: node.start_mark.index].rstrip(" ") + text[_end(text, node) :]
    newline = "\r\n" if "\r\n" in text else "\n"
    written = "".join(line + newline for line in _block(key, value, " " * column))
    at = len(text) if owner is None else _next_line(text, owner.start_mark.index)
    head = text[:at]
    return head + (newline if head and not head.endswith("\n") else "") + written + text[at:]


def _end(text: str, node: Node) -> int:
    """Where its last character is; the mark of a collection is behind the comments that follow."""
    while isinstance(node, CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        node = last[1] if isinstance(last, tuple) else last
    begin, end = int(node.start_mark.index), int(node.end_mark.index)
    return begin + len(text[begin:end].rstrip())


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _next_line(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _block(key: str, value: Any, indent: str) -> list[str]:
    name = indent + _scalar(key)
    if isinstance(value, Mapping) and value:
        inner = indent + " " * _UNIT
        return [f"{name}:", *(line for k, v in value.items() for line in _block(k, v, inner))]
    return [f"{name}: {_inline(value) if isinstance(value, Mapping | list) else _scalar(value)}"]


def _inline(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _scalar(value: Any) -> str:
    """A text as it is where that means the same, else quoted; JSON's quotes and escapes are YAML's too."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    return json.dumps(value, ensure_ascii=False)
