"""What a person sees and types, without a terminal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacerelle_phone import show
from pacerelle_phone.answers import field_value, parse_answer
from pacerelle_phone.editor import Editor
from pacerelle_phone.errors import InvalidArgument
from pacerelle_phone.files import write_new
from pacerelle_phone.model import Message
from pacerelle_protocol.widgets import KINDS, Widget, example_widget, parse_widget


def widget(kind: str, **spec: Any) -> Widget:
    example = example_widget(kind)
    return parse_widget(example | {"spec": example["spec"] | spec})


@given(st.text())
def test_nothing_a_peer_writes_reaches_the_terminal_as_a_command(text: str) -> None:
    shown = show.escape(text)
    assert all(c in "\n\t" or c >= " " for c in shown)
    assert not any("\x7f" <= c <= "\x9f" or "\ud800" <= c <= "\udfff" for c in shown)
    assert "\n" not in show.escape(text, one_line=True)


def test_escapes_are_readable_and_ordinary_text_stays() -> None:
    assert show.escape("\x1b[2J\u202egnp\u2028") == "\\x1b[2J\\u202egnp\\u2028"
    assert show.escape("grüße 👩‍👩‍👧 日本\n\tx") == "grüße 👩‍👩‍👧 日本\n\tx"


def shown(**fields: Any) -> str:
    common = {"seq": 1, "id": "m", "direction": "in", "agent_id": "a", "conversation_id": "c", "group": False}
    return show.message(Message(**{**common, "kind": "text", "state": "received", "at": "", **fields}), "Ec\x1bho")


@pytest.mark.parametrize("kind", KINDS)
def test_every_widget_is_shown_with_how_to_answer_it(kind: str) -> None:
    text = shown(kind="widget", widget=widget(kind, title="Ti\x1btle"), ref="w")
    assert text.startswith("Ec\\x1bho asks: Ti\\x1btle")
    assert ("nswer" in text) == (kind != "progress")


def test_other_messages_are_shown_for_what_they_are() -> None:
    assert shown(kind="undecryptable", reason="no_session").endswith("cannot be decrypted: no_session]")
    assert "/trust" in shown(kind="identity_changed")
    assert shown(kind="widget_update", ref="w", value={"spec": {"value": 5}}).endswith("updated: value: 5")
    assert shown(kind="widget_response", ref="w", value=[True, "x"]).endswith("answered: yes, x")
    assert shown(text="a\nb", state="queued") == "Ec\\x1bho: a\n    b (waiting to be sent)"


@pytest.mark.parametrize(
    ("asked", "text", "value"),
    [
        (widget("confirm"), "YES", True),
        (widget("confirm"), "not yet", False),
        (widget("confirm", labels={}), "n", False),
        (widget("choice"), "2", "csv"),
        (widget("choice"), "PDF", "pdf"),
        (widget("choice", multi=True), "2, pdf, 1", ["csv", "pdf"]),
        (widget("permission"), "yes", {"granted": True, "scope": "once"}),
        (widget("permission"), "session", {"granted": True, "scope": "session"}),
        (widget("permission"), "no", {"granted": False}),
        (widget("permission", scopes=None), "y", {"granted": True}),
        (widget("form"), '{"email": "a@b"}', {"email": "a@b"}),
        (widget("datetime"), "2030-05-21T09:30", "2030-05-21T09:30"),
        (widget("datetime", mode="date", min=None), "2030-05-21", "2030-05-21"),
    ],
)
def test_answers(asked: Widget, text: str, value: Any) -> None:
    assert parse_answer(asked, f" {text} ") == value


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (widget("confirm"), "perhaps"),
        (widget("choice"), "0"),
        (widget("choice"), "1,2"),
        (widget("choice"), "²"),
        (widget("permission"), "always"),
        (widget("form"), "a@b"),
        (widget("form"), '{"notes": "x"}'),
        (widget("form"), "[" * 100_000),
        (widget("datetime"), "tomorrow"),
        (widget("progress"), "yes"),
        (widget("file-picker"), "a.txt"),
    ],
)
def test_what_is_no_answer_is_refused_with_what_would_be(asked: Widget, text: str) -> None:
    with pytest.raises(InvalidArgument) as info:
        parse_answer(asked, text)
    assert info.value.message


def test_the_fields_of_a_form() -> None:
    field = {"name": "n", "label": "Name", "type": "text"}
    assert field_value(field, " x ") == "x"
    assert field_value(field, "") is None
    assert field_value(field | {"type": "number"}, "2.5") == 2.5
    assert field_value(field | {"type": "checkbox"}, "no") is False
    assert field_value(field | {"type": "date"}, "2030-01-01") == "2030-01-01"
    for wrong, text in [({"required": True}, " "), ({"type": "number"}, "x"), ({"type": "number"}, "nan")]:
        with pytest.raises(InvalidArgument):
            field_value(field | wrong, text)


def typed(*keys: str) -> tuple[list[str | None], Editor]:
    editor = Editor()
    return [line for part in keys for line in editor.feed(part)], editor


def test_lines_are_edited() -> None:
    assert typed("hello\r\n")[0] == ["hello", ""]
    assert typed("helo\x1b[Dl\r")[0] == ["hello"]
    assert typed("one two\x17three\x01>\x05<\r")[0] == [">one three<"]
    assert typed("abc\x1b[D\x1b[D\x0b\r")[0] == ["a"]
    assert typed("abc\x1b[H\x1b[3~\x04\r")[0] == ["c"]
    assert typed("\x1b[1;5Cx\x07\t\r")[0] == ["x"]
    assert typed("a\x1b", "[", "Db\r")[0] == ["ba"]
    assert typed("\x04")[0] == [None]


def test_earlier_lines_come_back() -> None:
    lines, editor = typed("one\rtwo\rdraft\x1b[A\x1b[A")
    assert (lines, editor.text) == (["one", "two"], "one")
    assert (list(editor.feed("\x1b[B\x1b[B")), editor.text) == ([], "draft")


@given(st.lists(st.text(alphabet="ab 日é\x1b[DHF~3\x7f\x15\x17\x04\r")))
def test_the_cursor_is_always_inside_what_is_shown(parts: list[str]) -> None:
    _, editor = typed(*parts)
    assert 0 <= editor.cursor <= len(editor.text)
    part, column = editor.window(10)
    assert part in editor.text
    assert 0 <= column < 10 + 1


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.txt", "a.txt"),
        ("../../etc/passwd", "passwd"),
        ("C:\\temp\\x.exe", "x.exe"),
        ("..", "file"),
        (".bashrc", "bashrc"),
        ("a\x00\x1bb\n.txt", "ab.txt"),
        ("日" * 300 + ".txt", "日" * 50 + ".txt"),
    ],
)
def test_a_senders_file_name_cannot_leave_the_folder(tmp_path: Any, name: str, expected: str) -> None:
    path = write_new(tmp_path, name, b"x")
    assert (path.parent, path.name) == (tmp_path, expected)
    assert path.stat().st_mode & 0o777 == 0o600
    assert write_new(tmp_path, name, b"y") != path
