"""A person's words as a widget's value.

Values by kind: confirm a boolean; choice an option's id, or a list of ids with `multi`; permission
`{"granted": bool, "scope"?}`; form an object by field name; datetime an ISO 8601 string; file-picker a list of
`{name, mime, size}` whose files come in a message before it.
"""

from __future__ import annotations

import json
import math
from datetime import date, datetime, time
from typing import Any

from pacerelle_protocol.widgets import Widget

from .errors import InvalidArgument
from .show import EXAMPLES

_YES = ("yes", "y", "true")
_NO = ("no", "n", "false")


def parse_answer(widget: Widget, text: str) -> Any:
    """Raises InvalidArgument that says how to answer this widget."""
    text = text.strip()
    match widget.kind:
        case "confirm":
            return _yes_or_no(text, widget.spec.get("labels") or {})
        case "permission":
            return _permission(text, widget.spec.get("scopes") or [])
        case "choice":
            return _choice(text, widget.spec)
        case "datetime":
            return _moment(text, widget.spec["mode"])
        case "form":
            return _form(text, widget.spec["fields"])
        case "progress":
            raise _wrong("Progress is only shown; it can be cancelled.")
    raise _wrong("Files are needed.", "Give their paths.")


def field_value(field: dict[str, Any], text: str) -> Any:
    """What was typed for one field of a form; None where it was left empty. Raises InvalidArgument."""
    text = text.strip()
    if not text:
        if field.get("required"):
            raise _wrong(f"{field['label']} is needed.")
        return None
    match field["type"]:
        case "number":
            return _number(text, field["label"])
        case "checkbox":
            return _yes_or_no(text, {})
        case "date" | "time" | "datetime":
            return _moment(text, field["type"])
    return text


def _wrong(message: str, hint: str = "") -> InvalidArgument:
    return InvalidArgument(message, argument="answer", hint=hint)


def _yes_or_no(text: str, labels: dict[str, Any]) -> bool:
    said = text.casefold()
    if said in (*_YES, str(labels.get("yes", "")).casefold() or "yes"):
        return True
    if said in (*_NO, str(labels.get("no", "")).casefold() or "no"):
        return False
    raise _wrong("That is neither yes nor no.")


def _permission(text: str, scopes: list[str]) -> dict[str, Any]:
    if scopes and text.casefold() not in _NO:
        # Plain yes allows the least: agents list their scopes from narrow to wide.
        chosen = 0 if text.casefold() in _YES else _index(text, scopes)
        return {"granted": True, "scope": scopes[chosen]}
    return {"granted": _yes_or_no(text, {})}


def _choice(text: str, spec: dict[str, Any]) -> Any:
    ids = [str(option["id"]) for option in spec["options"]]
    labels = [str(option["label"]) for option in spec["options"]]
    parts = [part.strip() for part in text.split(",")] if spec.get("multi") else [text]
    chosen = [ids[_index(part, ids, labels)] for part in parts]
    return list(dict.fromkeys(chosen)) if spec.get("multi") else chosen[0]


def _index(text: str, *names: list[str]) -> int:
    """By name first: an option may be called "2"."""
    for known in names:
        if text in known:
            return known.index(text)
    if text.isdecimal() and 0 < int(text) <= len(names[0]):
        return int(text) - 1
    raise _wrong(f"There is no such choice; there are 1 to {len(names[0])}.")


def _moment(text: str, mode: str) -> str:
    read = {"date": date.fromisoformat, "time": time.fromisoformat, "datetime": datetime.fromisoformat}[mode]
    try:
        read(text)
    except ValueError:
        raise _wrong(f"That is no {mode}.", f"Like {EXAMPLES[mode]}") from None
    return text


def _number(text: str, label: str) -> int | float:
    for read in (int, float):
        try:
            value = read(text)
            if math.isfinite(value):
                return value
        except (ValueError, OverflowError):
            continue
    raise _wrong(f"{label} must be a number.")


def _form(text: str, fields: list[dict[str, Any]]) -> dict[str, Any]:
    example = json.dumps({field["name"]: "…" for field in fields}, ensure_ascii=False)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise _wrong("A form is answered with a JSON object.", f"Like {example}")
    missing = [str(field["name"]) for field in fields if field.get("required") and field["name"] not in value]
    if missing:
        raise _wrong(f"The form needs {', '.join(missing)}.", f"Like {example}")
    return value
