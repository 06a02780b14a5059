"""Widgets, `widget.standard` version 1: what an agent can put in front of a person, and what each kind must contain.

Fields that are not known are kept, since clients may know more kinds of them than we do; a name that is almost a known
one is refused, since it is a slip that the person's client would ignore in silence.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import date, datetime, time
from typing import Any

from . import _wire
from .errors import InvalidWidget

KINDS = ("confirm", "choice", "permission", "form", "progress", "file-picker", "datetime")
RESPONSE_MODES = ("individual", "collective")
MAX_LABEL = 512  # characters of titles, labels, names
MAX_BODY = 16_384  # characters
MAX_ITEMS = 200  # options, fields, scopes

_TOP = ("type", "v", "id", "kind", "spec", "expires_at", "response_mode")

_EXAMPLE_SPECS: dict[str, dict[str, Any]] = {
    "confirm": {
        "title": "Publish?",
        "body": "Version 2",
        "danger": False,
        "labels": {"yes": "Publish", "no": "Not yet"},
    },
    "choice": {
        "title": "Which format?",
        "options": [{"id": "pdf", "label": "PDF"}, {"id": "csv", "label": "CSV"}],
        "multi": False,
    },
    "permission": {"title": "Read the calendar?", "body": "To find a free hour", "scopes": ["once", "session"]},
    "form": {
        "title": "Your address",
        "fields": [
            {"name": "email", "label": "Email", "type": "email", "required": True},
            {"name": "notes", "label": "Notes", "type": "textarea"},
        ],
        "submitLabel": "Save",
    },
    "progress": {"title": "Import", "value": 10, "max": 100, "cancellable": True},
    "file-picker": {"title": "Choose files", "multiple": True, "accept": [".pdf", "image/*"], "maxFiles": 5},
    "datetime": {"title": "When?", "mode": "datetime", "min": "2030-05-21T09:00:00"},
}


@dataclass(frozen=True, slots=True)
class Widget:
    """A checked widget. `expires_at` is ISO 8601, `response_mode` "individual" or "collective"."""

    id: str
    kind: str
    spec: dict[str, Any] = field(repr=False)
    expires_at: str | None = None
    response_mode: str | None = None


def example_widget(kind: str) -> dict[str, Any]:
    """A right widget of that kind, as JSON; of an unknown kind, a confirmation."""
    kind = kind if kind in KINDS else "confirm"
    spec = deepcopy(_EXAMPLE_SPECS[kind])
    return {"type": "widget.standard", "v": 1, "id": f"{kind}-1", "kind": kind, "spec": spec}


def widget_json(widget: Widget) -> dict[str, Any]:
    out: dict[str, Any] = {
        "type": "widget.standard",
        "v": 1,
        "id": widget.id,
        "kind": widget.kind,
        "spec": widget.spec,
    }
    if widget.expires_at is not None:
        out["expires_at"] = widget.expires_at
    if widget.response_mode is not None:
        out["response_mode"] = widget.response_mode
    return out


def parse_widget(value: str | Mapping[str, Any]) -> Widget:
    """An object and its JSON string give equal widgets. Raises InvalidWidget, naming the first wrong field."""
    kind = "confirm"
    try:
        obj = _load(value)
        if isinstance(obj.get("kind"), str):
            kind = obj["kind"]
        return _parse(obj)
    except _Wrong as wrong:
        raise InvalidWidget(wrong.path, wrong.problem, example_widget(kind)) from None


class _Wrong(Exception):
    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path)
        self.path = path
        self.problem = problem


def _load(value: Any) -> dict[str, Any]:
    if not isinstance(value, (str, Mapping)):
        raise _Wrong("widget", "must be an object or its JSON string")
    try:
        # Both forms take the same way, so that they cannot come out differently.
        return _wire.loads_object(value if isinstance(value, str) else _wire.dumps(dict(value)))
    except _wire.WireError as error:
        raise _Wrong("widget", "must be a JSON object" + _WHY.get(error.reason, "")) from None


_WHY = {"too_deep": f", nested at most {_wire.MAX_DEPTH} deep"}


def _parse(obj: dict[str, Any]) -> Widget:
    if obj.get("type") != "widget.standard":
        raise _Wrong("type", 'must be "widget.standard"')
    if type(obj.get("v")) is not int or obj["v"] != 1:
        raise _Wrong("v", "must be the number 1")
    if not _wire.is_id(obj.get("id")):
        raise _Wrong("id", f"must be a string of 1 to {_wire.MAX_ID} characters without control characters")
    kind = obj.get("kind")
    if kind not in KINDS:
        raise _Wrong("kind", "must be one of " + ", ".join(KINDS))
    checks, required = _SPECS[kind]
    for name in obj:
        if name not in _TOP and name in checks:
            raise _Wrong(_shown(name), "belongs inside spec")
    _no_near_misses(obj, _TOP, "")
    expires_at = obj.get("expires_at")
    if expires_at is not None:
        _moment(expires_at, "expires_at")
    response_mode = obj.get("response_mode")
    if response_mode is not None and response_mode not in RESPONSE_MODES:
        raise _Wrong("response_mode", "must be individual or collective")
    spec = obj.get("spec")
    _object(spec, "spec", checks, required)
    assert isinstance(spec, dict)
    _consistent(kind, spec)
    return Widget(obj["id"], kind, spec, expires_at, response_mode)


Check = Callable[[Any, str], None]


def _object(value: Any, path: str, checks: Mapping[str, Check], required: tuple[str, ...]) -> None:
    if not isinstance(value, dict):
        raise _Wrong(path, "must be an object")
    for name in required:
        if value.get(name) is None:
            _no_near_misses(value, tuple(checks), f"{path}.")
            raise _Wrong(f"{path}.{name}", "is required")
    for name, check in checks.items():
        if value.get(name) is not None:
            check(value[name], f"{path}.{name}")
    _no_near_misses(value, tuple(checks), f"{path}.")


def _no_near_misses(value: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    folded = {_folded(name): name for name in known}
    for name in value:
        if name not in known and _TWINS.get(name) in known:
            raise _Wrong(prefix + name, f"is not known here; did you mean {_TWINS[name]}?")
        near = [] if name in known else difflib.get_close_matches(_folded(name[:64]), folded, n=1, cutoff=0.8)
        if near:
            raise _Wrong(prefix + _shown(name), f"is not known; did you mean {folded[near[0]]}?")


# Each is the right name in another kind.
_TWINS = {"multi": "multiple", "multiple": "multi"}


def _folded(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _shown(name: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in name[:64])


def _label(value: Any, path: str) -> None:
    if not isinstance(value, str) or not value.strip() or len(value) > MAX_LABEL:
        raise _Wrong(path, f"must be a string of 1 to {MAX_LABEL} characters")


def _body(value: Any, path: str) -> None:
    if not isinstance(value, str) or len(value) > MAX_BODY:
        raise _Wrong(path, f"must be a string of at most {MAX_BODY} characters")


def _flag(value: Any, path: str) -> None:
    if not isinstance(value, bool):
        raise _Wrong(path, "must be true or false")


def _number(value: Any, path: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= _wire.MAX_SAFE_INT:
        raise _Wrong(path, "must be a number, 0 or more")


def _positive(value: Any, path: str) -> None:
    _number(value, path)
    if value == 0:
        raise _Wrong(path, "must be more than 0")


def _count(value: Any, path: str) -> None:
    if not _wire.is_count(value, at_least=1):
        raise _Wrong(path, "must be a whole number, 1 or more")


def _items(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_ITEMS:
        raise _Wrong(path, f"must be a list of 1 to {MAX_ITEMS} items")
    return value


def _strings(value: Any, path: str) -> None:
    for index, item in enumerate(_items(value, path)):
        _label(item, f"{path}[{index}]")
        if item in value[:index]:
            raise _Wrong(f"{path}[{index}]", "is there twice")


def _objects(checks: Mapping[str, Check], required: tuple[str, ...], unique: str) -> Check:
    def check(value: Any, path: str) -> None:
        seen: set[str] = set()
        for index, item in enumerate(_items(value, path)):
            _object(item, f"{path}[{index}]", checks, required)
            if item[unique] in seen:
                raise _Wrong(f"{path}[{index}].{unique}", "is there twice")
            seen.add(item[unique])

    return check


def _labels(value: Any, path: str) -> None:
    _object(value, path, {"yes": _label, "no": _label}, ())


def _one_of(*allowed: str) -> Check:
    def check(value: Any, path: str) -> None:
        if value not in allowed:
            raise _Wrong(path, "must be one of " + ", ".join(allowed))

    return check


_FIELD_TYPES = (
    "text",
    "textarea",
    "email",
    "number",
    "tel",
    "url",
    "password",
    "date",
    "time",
    "datetime",
    "checkbox",
    "select",
)


def _field_type(value: Any, path: str) -> None:
    """Clients may know more types than we do; only slips are refused."""
    _label(value, path)
    near = [] if value in _FIELD_TYPES else difflib.get_close_matches(value.lower(), _FIELD_TYPES, n=1, cutoff=0.75)
    if near and near[0] not in value.lower().split("-"):
        raise _Wrong(path, f"is not known; did you mean {near[0]}?")


_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?"
_MOMENT = re.compile(rf"{_DATE}T{_TIME}(Z|[+-][0-9]{{2}}:[0-9]{{2}})?")


def _moment(value: Any, path: str) -> datetime:
    """ISO 8601 as JavaScript reads it too: Python's own reader also takes week dates and worse."""
    if isinstance(value, str) and _MOMENT.fullmatch(value):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    raise _Wrong(path, "must be an ISO 8601 time like 2030-05-21T09:00:00Z")


def _limit(value: Any, path: str, mode: str) -> date | time | datetime:
    if isinstance(value, str):
        try:
            if mode == "time" and re.fullmatch(_TIME, value):
                return time.fromisoformat(value)
            if mode == "date" and re.fullmatch(_DATE, value):
                return date.fromisoformat(value)
        except ValueError:
            pass
    if mode == "datetime":
        return _moment(value, path)
    raise _Wrong(path, "must be " + {"time": "a time like 09:00", "date": "a date like 2030-05-21"}[mode])


def _consistent(kind: str, spec: dict[str, Any]) -> None:
    """What single fields cannot tell."""
    if kind == "progress" and spec.get("max") is not None and spec["value"] > spec["max"]:
        raise _Wrong("spec.value", "must not be more than spec.max")
    if kind == "datetime":
        limits = [
            _limit(spec[name], f"spec.{name}", spec["mode"]) for name in ("min", "max") if spec.get(name) is not None
        ]
        try:
            backwards = len(limits) == 2 and limits[0] > limits[1]  # type: ignore[operator]
        except TypeError:  # one with and one without time zone: only the client can order these
            backwards = False
        if backwards:
            raise _Wrong("spec.min", "must not be after spec.max")


_COMMON: dict[str, Check] = {"title": _label, "body": _body}
_OPTIONS = _objects({"id": _label, "label": _label, "description": _body}, ("id", "label"), "id")
_FIELDS = _objects(
    {"name": _label, "label": _label, "type": _field_type, "required": _flag, "placeholder": _body},
    ("name", "label", "type"),
    "name",
)


def _any(value: Any, path: str) -> None:
    """Checked by `_consistent`, which knows the other fields."""


_SPECS: dict[str, tuple[dict[str, Check], tuple[str, ...]]] = {
    "confirm": (_COMMON | {"danger": _flag, "labels": _labels}, ("title",)),
    "choice": (_COMMON | {"options": _OPTIONS, "multi": _flag}, ("title", "options")),
    "permission": (_COMMON | {"scopes": _strings}, ("title",)),
    "form": (_COMMON | {"fields": _FIELDS, "submitLabel": _label}, ("title", "fields")),
    "progress": (_COMMON | {"value": _number, "max": _positive, "cancellable": _flag}, ("title", "value")),
    "file-picker": (_COMMON | {"multiple": _flag, "accept": _strings, "maxFiles": _count}, ("title",)),
    "datetime": (
        _COMMON | {"mode": _one_of("date", "time", "datetime"), "min": _any, "max": _any},
        ("title", "mode"),
    ),
}
