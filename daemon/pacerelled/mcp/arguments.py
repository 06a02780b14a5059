"""Checks a call's arguments against the tool's input schema, and says what a right call looks like.

Only the words that `shapes` has are known: type, enum, minimum, maximum, minLength, maxLength, items (always strings),
maxItems, default. A JSON null counts as left out, since many models fill in optional arguments with it.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from pacerelled.errors import InvalidArgument

from .shapes import Schema, ToolSpec

_NAMES = {
    "string": "a string",
    "integer": "a whole number",
    "boolean": "true or false",
    "object": "an object",
    "array": "a list",
}


def check(spec: ToolSpec, given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with defaults filled in, None for what was left out.

    Raises InvalidArgument naming the argument, with a right call as the hint.
    """
    schema = spec.tool.input_schema
    properties: dict[str, Schema] = schema["properties"]
    for name in given:
        if name not in properties:
            raise _invalid(spec, name, _unknown(name, properties))
    required = tuple(schema.get("required", ()))
    if spec.instead is not None:
        alone, needed = spec.instead
        if given.get(alone) is None:
            required += (needed,)
        elif others := [n for n, v in given.items() if n != alone and v not in (None, properties[n].get("default"))]:
            raise _invalid(spec, others[0], f"{alone} goes alone, without {others[0]}: what it names is not changed")
    arguments: dict[str, Any] = {}
    for name, wanted in properties.items():
        value = given.get(name)
        if value is None:
            if name in required:
                raise _invalid(spec, name, f"{name} is missing; it must be {_describe(wanted)}")
            value = wanted.get("default")
        elif problem := _problem(value, wanted, optional=name not in required):
            raise _invalid(spec, name, f"{name} {problem}")
        arguments[name] = int(value) if isinstance(value, float) else value
    return arguments


def example_call(spec: ToolSpec) -> str:
    return f"{spec.tool.name} {json.dumps(spec.example, ensure_ascii=False)}"


def close_name(name: str, known: Mapping[str, Any]) -> str | None:
    """The known name that `name` is a slip of: another case, other separators, or a letter or two."""
    plain = {re.sub("[^a-z0-9]", "", each.lower()): each for each in known}
    found = difflib.get_close_matches(re.sub("[^a-z0-9]", "", name.lower()), plain, 1, 0.75)
    return plain[found[0]] if found else None


def _invalid(spec: ToolSpec, argument: str, message: str) -> InvalidArgument:
    return InvalidArgument(message, argument=argument, hint=f"A right call: {example_call(spec)}")


def _unknown(name: str, properties: Mapping[str, Schema]) -> str:
    shown = name if len(name) <= 64 else name[:64] + "…"
    if not properties:
        return f"{shown} is not an argument: this tool takes none"
    if meant := close_name(name, properties):
        how = " (arguments are written in camelCase)" if "_" in name and "_" not in meant else ""
        return f"{shown} is not an argument; did you mean {meant}{how}?"
    return f"{shown} is not an argument; there are {', '.join(properties)}"


def _problem(value: Any, wanted: Schema, *, optional: bool) -> str | None:
    kind = _kind(value)
    fits = kind in _kinds(wanted) and value in wanted.get("enum", (value,))
    if fits and kind == "integer":
        fits = wanted.get("minimum", value) <= value <= wanted.get("maximum", value)
    if not fits:
        shown = _NAMES[kind] if kind in ("object", "array") else json.dumps(value)
        return f"must be {_describe(wanted)}, not {shown if len(shown) <= 64 else _NAMES[kind]}"
    if kind == "string" and len(value) < wanted.get("minLength", 0):
        return "must not be empty" + ("; leave it out instead" if optional else "")
    if kind == "array":
        if not all(isinstance(item, str) and item for item in value):
            return f"must be {_describe(wanted)}"
        if len(value) > wanted["maxItems"]:
            return f"has {len(value)} entries; at most {wanted['maxItems']} are allowed"
    if kind == "string" and len(value) > wanted.get("maxLength", len(value)):
        return f"has {len(value)} characters; at most {wanted['maxLength']} are allowed"
    return None


def _kinds(wanted: Schema) -> list[str]:
    kinds = wanted["type"]
    return kinds if isinstance(kinds, list) else [kinds]


def _kind(value: Any) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "integer" if value.is_integer() else "number"
        case str():
            return "string"
        case dict():
            return "object"
        case _:
            return "array"


def _describe(wanted: Schema) -> str:
    if "enum" in wanted:
        return " or ".join(json.dumps(each) for each in wanted["enum"])
    text = " or ".join(_NAMES[kind] for kind in _kinds(wanted))
    if "items" in wanted:
        text += " of strings that are not empty"
    if "minimum" in wanted:
        text += f" from {wanted['minimum']} to {wanted['maximum']}"
    return text
