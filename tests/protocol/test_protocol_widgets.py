from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wild import HOSTILE_JSON, any_json, any_text, nearly, written

from pacerelle_protocol.errors import InvalidWidget, LocalProtocolError
from pacerelle_protocol.widgets import KINDS, Widget, example_widget, parse_widget, widget_json


@pytest.mark.parametrize("kind", KINDS)
def test_object_and_string_give_the_same_widget(kind: str) -> None:
    example = example_widget(kind) | {"response_mode": "collective"}
    widget = parse_widget(example)
    assert widget == parse_widget(json.dumps(example)) == parse_widget(widget_json(widget))
    assert widget.kind == kind
    assert widget.spec == example["spec"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_least_that_the_official_client_sends(kind: str) -> None:
    least: dict[str, dict[str, Any]] = {
        "choice": {"options": [{"id": "a", "label": "A"}]},
        "form": {"fields": [{"name": "a", "label": "A", "type": "text"}]},
        "progress": {"value": 0},
        "datetime": {"mode": "date"},
    }
    spec = {"title": "T"} | least.get(kind, {})
    widget = {"type": "widget.standard", "v": 1, "id": "w", "kind": kind, "spec": spec}
    assert parse_widget(widget) == Widget("w", kind, spec)


def _of(kind: str, **spec: Any) -> dict[str, Any]:
    example = example_widget(kind)
    example["spec"] |= spec
    return example


def _options(*changes: dict[str, Any]) -> dict[str, Any]:
    return _of("choice", options=[{"id": f"o{n}", "label": "L"} | change for n, change in enumerate(changes)])


def _without(widget: dict[str, Any], *path: str) -> dict[str, Any]:
    where = widget
    for name in path[:-1]:
        where = where[name]
    del where[path[-1]]
    return widget


@pytest.mark.parametrize(
    ("widget", "field"),
    [
        ([], "widget"),
        (3, "widget"),
        ("[]", "widget"),
        ("{", "widget"),
        ({}, "type"),
        (example_widget("confirm") | {"type": "widget"}, "type"),
        (example_widget("confirm") | {"v": "1"}, "v"),
        (example_widget("confirm") | {"v": True}, "v"),
        (example_widget("confirm") | {"id": ""}, "id"),
        (_without(example_widget("confirm"), "id"), "id"),
        (example_widget("confirm") | {"kind": "confirmation"}, "kind"),
        (example_widget("confirm") | {"kind": ["confirm"]}, "kind"),
        (example_widget("confirm") | {"spec": "x"}, "spec"),
        (_without(example_widget("confirm"), "spec"), "spec"),
        (example_widget("confirm") | {"title": "T"}, "title"),
        (example_widget("confirm") | {"expiresAt": "2030-01-01T00:00:00Z"}, "expiresAt"),
        (example_widget("confirm") | {"expires_at": "tomorrow"}, "expires_at"),
        (example_widget("confirm") | {"expires_at": "2030-02-30T00:00:00Z"}, "expires_at"),
        (example_widget("confirm") | {"expires_at": "2030-01-01"}, "expires_at"),
        (example_widget("confirm") | {"expires_at": 1893456000}, "expires_at"),
        (example_widget("confirm") | {"response_mode": "all"}, "response_mode"),
        (_without(example_widget("confirm"), "spec", "title"), "spec.title"),
        (_of("confirm", title=" "), "spec.title"),
        (_of("confirm", title="x" * 513), "spec.title"),
        (_of("confirm", body=3), "spec.body"),
        (_of("confirm", danger="yes"), "spec.danger"),
        (_of("confirm", labels=["Yes", "No"]), "spec.labels"),
        (_of("confirm", labels={"yes": 1}), "spec.labels.yes"),
        (_of("confirm", Titel="T"), "spec.Titel"),
        (_of("choice", options=[]), "spec.options"),
        (_of("choice", options={"a": "A"}), "spec.options"),
        (_of("choice", options=["a"]), "spec.options[0]"),
        (_options({}, {"label": None}), "spec.options[1].label"),
        (_options({}, {"label": 7}), "spec.options[1].label"),
        (_options({"id": "a"}, {"id": "a"}), "spec.options[1].id"),
        (_options({}, {"lable": "x"}), "spec.options[1].lable"),
        (_of("choice", multi=1), "spec.multi"),
        (_of("choice", option=[]), "spec.option"),
        (_of("choice", multiple=True), "spec.multiple"),
        (_of("file-picker", multi=True), "spec.multi"),
        (_of("permission", scopes="once"), "spec.scopes"),
        (_of("permission", scopes=["once", ""]), "spec.scopes[1]"),
        (_of("permission", scopes=["once", "once"]), "spec.scopes[1]"),
        (_of("form", fields=[{"name": "a", "label": "A"}]), "spec.fields[0].type"),
        (_of("form", fields=[{"name": "a", "label": "A", "type": "emial"}]), "spec.fields[0].type"),
        (_of("form", fields=[{"name": "a", "label": "A", "type": "text", "required": 1}]), "spec.fields[0].required"),
        (_of("form", submit_label="Go"), "spec.submit_label"),
        (_of("progress", value="10"), "spec.value"),
        (_of("progress", value=True), "spec.value"),
        (_of("progress", value=-1), "spec.value"),
        (_of("progress", value=10**400), "spec.value"),
        (_of("progress", value=10**300), "spec.value"),
        (_of("progress", value=11, max=10), "spec.value"),
        (_of("progress", max=0), "spec.max"),
        (_of("file-picker", maxFiles=0), "spec.maxFiles"),
        (_of("file-picker", maxFiles=1.5), "spec.maxFiles"),
        (_of("file-picker", max_files=3), "spec.max_files"),
        (_of("file-picker", accept=".pdf"), "spec.accept"),
        (_of("datetime", mode="week"), "spec.mode"),
        (_of("datetime", mode=["date"]), "spec.mode"),
        (_of("datetime", min="2030-05-21"), "spec.min"),
        (_of("datetime", mode="date", min="21.5.2030"), "spec.min"),
        (_of("datetime", mode="time", min="25:00"), "spec.min"),
        (_of("datetime", max="2030-05-20T09:00:00"), "spec.min"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 40 else "",
)
def test_an_error_names_the_field_and_shows_a_right_one(widget: Any, field: str) -> None:
    with pytest.raises(InvalidWidget) as caught:
        parse_widget(widget)
    error = caught.value
    assert isinstance(error, LocalProtocolError)
    assert error.field == field
    assert str(error).startswith(f"{field}: ")
    right = parse_widget(error.example)
    if isinstance(widget, dict) and widget.get("kind") in KINDS:
        assert right.kind == widget["kind"]


@pytest.mark.parametrize(
    "widget",
    [
        _of("confirm", icon="trash", xyz={"deep": [1]}),
        _options({"color": "red", "description": "D"}),
        _of("form", fields=[{"name": "a", "label": "A", "type": "signature"}]),
        _of("form", fields=[{"name": "a", "label": "A", "type": "datetime-local", "placeholder": "p"}]),
        _of("progress", value=0.5, max=1.0),
        _of("datetime", mode="time", min="09:00", max="17:30"),
        _of("datetime", mode="date", min="2030-05-21", max="2030-05-22"),
        _of("datetime", min="2030-05-21T09:00:00Z", max="2030-05-21T09:00:00"),
        _of("confirm", body=None),
    ],
    ids=range(9),
)
def test_what_clients_may_know_and_we_do_not_is_kept(widget: dict[str, Any]) -> None:
    assert parse_widget(widget).spec == widget["spec"]


def test_an_error_repeats_nothing_but_names() -> None:
    with pytest.raises(InvalidWidget) as caught:
        parse_widget(_of("confirm", title=3, body="a secret plan"))
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidWidget) as caught:
        parse_widget(_of("confirm", **{"title\x1b" + "e" * 500: 1, "titl\n": 2}))
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("text", HOSTILE_JSON, ids=range(len(HOSTILE_JSON)))
def test_hostile_strings(text: str) -> None:
    with pytest.raises(InvalidWidget):
        parse_widget(text)


@pytest.mark.parametrize("value", [float("nan"), {1, 2}, b"x", object()])
def test_objects_that_json_cannot_say(value: Any) -> None:
    with pytest.raises(InvalidWidget):
        parse_widget(_of("confirm", extra=value))


def test_an_object_that_contains_itself() -> None:
    spec: dict[str, Any] = {"title": "T"}
    spec["spec"] = spec
    with pytest.raises(InvalidWidget):
        parse_widget(example_widget("confirm") | {"spec": spec})


def test_the_callers_object_is_not_ours() -> None:
    mine = _of("confirm")
    widget = parse_widget(mine)
    mine["spec"]["title"] = "changed"
    assert widget.spec["title"] == "Publish?"


_specs = nearly(
    {
        "title": any_text,
        "body": any_text,
        "options": st.lists(nearly({"id": any_text, "label": any_text})),
        "fields": st.lists(nearly({"name": any_text, "label": any_text, "type": any_text})),
        "scopes": st.lists(any_text),
        "value": st.floats() | st.integers(),
        "max": st.integers(),
        "mode": st.sampled_from(["date", "time", "datetime"]),
        "min": st.datetimes().map(lambda value: value.isoformat()),
        "maxFiles": st.integers(),
    }
)


@given(
    nearly(
        {
            "type": st.just("widget.standard"),
            "v": st.just(1),
            "id": any_text,
            "kind": st.sampled_from(KINDS),
            "spec": _specs,
        }
    ),
    st.sampled_from([written, lambda value: value]),
)
def test_any_widget_is_read_or_refused(widget: dict[str, Any], form: Callable[[Any], Any]) -> None:
    try:
        got = parse_widget(form(widget))
    except InvalidWidget as error:
        parse_widget(error.example)
        str(error).encode()
        return
    assert parse_widget(widget_json(got)) == got


@given(any_json | st.binary())
def test_anything(value: Any) -> None:
    with pytest.raises(InvalidWidget):
        parse_widget(value)
