"""How things are written for people."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacerelle_cli.layout import cells, laid_out, shortened
from pacerelle_cli.save import safe_name
from pacerelle_cli.text import ago, duration, escape, escape_lines, size, when


@given(st.text(st.characters()))
def test_an_escaped_text_has_nothing_that_a_terminal_obeys(text: str) -> None:
    shown = escape(text)
    assert "Cc" not in map(category, shown)
    assert not set(shown) & set("\u202a\u202b\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\u2028\u2029")
    shown.encode()  # no surrogate is left


@pytest.mark.parametrize("text", ["plain", "ünï", "日本語", "👩‍👩‍👧 🏴", "a\\nb"])
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert escape(text) == text


def test_lines_stay_lines() -> None:
    assert escape_lines("a\nb\r\nc\rd\u2028e") == ["a", "b", "c\\rd\\u2028e"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (-3, "0 s"),
        (0.9, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (86400, "1 d"),
        (90000 + 7200, "1 d 3 h"),
    ],
)
def test_durations(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_ages() -> None:
    assert ago(None) == "never"
    assert ago(3) == "3 s ago"
    now = datetime(2031, 1, 1, tzinfo=UTC)
    assert when("2030-12-31T23:58:30Z", now=now).endswith("(1 min ago)")
    assert when("2030-12-31T23:58:30", now=now).endswith("(1 min ago)")
    assert "ago" not in when("2031-01-01T00:00:01+00:00", now=now)
    local = (now - timedelta(minutes=3)).astimezone().strftime("%Y-%m-%d %H:%M")
    assert when("2030-12-31T23:57:00Z", now=now) == f"{local} (3 min ago)"
    assert when("not\x1ba time") == "not\\x1ba time"


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (999_950, "1.0 MB")]
)
def test_sizes(count: int, shown: str) -> None:
    assert size(count) == shown


@pytest.mark.parametrize(
    ("given_name", "used"),
    [
        ("photo.jpg", "photo.jpg"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Windows\\a b.txt", "a b.txt"),
        ("/", "attachment"),
        ("..", "attachment"),
        (".bashrc", "bashrc"),
        ("", "attachment"),
        ("a\x00b\x1b[1m\n.txt", "a_b_[1m_.txt"),
        ("gpj.\u202efdp.exe", "gpj._fdp.exe"),
        ("日本 ü.png", "日本 ü.png"),
    ],
)
def test_a_peers_file_name_is_made_harmless(given_name: str, used: str) -> None:
    assert safe_name(given_name) == used


@given(st.text(st.characters(), max_size=400))
def test_any_file_name_becomes_one_visible_part_that_fits(name: str) -> None:
    used = safe_name(name)
    assert used
    assert 0 < len(used.encode()) <= 200
    assert not set(used) & set('/\\\0<>:"|?*')
    assert not used.startswith(".")


def test_a_long_name_keeps_its_suffix() -> None:
    used = safe_name("ü" * 300 + ".tar")
    assert used.endswith("ü.tar")
    assert len(used.encode()) <= 200


HEADERS = ["ID", "TEXT"]
ROWS = [
    ["0123456789-0123456789-0123", "a long text that can be made shorter"],
    ["x", "日本語の長い文章です、とても長い"],
]


def test_a_table_is_whole_in_a_pipe() -> None:
    assert list(laid_out(HEADERS, ROWS, None)) == [
        "ID                          TEXT",
        "0123456789-0123456789-0123  a long text that can be made shorter",
        "x                           日本語の長い文章です、とても長い",
    ]


@pytest.mark.parametrize("width", [64, 60, 55, 48])
def test_texts_are_shortened_until_a_table_fits_and_ids_never(width: int) -> None:
    rows = [
        ["0123456789-0123456789-0123", "a long text that can be made shorter"],
        ["x", "日本語の 長い文章です、とても長い"],
    ]
    lines = list(laid_out(HEADERS, rows, width))
    assert max(map(cells, lines)) <= width
    assert lines[1].startswith("0123456789-0123456789-0123  a long text that")
    assert all(line.endswith("…") or width == 64 for line in lines[1:2])


def test_what_does_not_fit_becomes_blocks() -> None:
    assert list(laid_out(HEADERS, ROWS, 40, bold=True)) == [
        "\x1b[1mid:\x1b[0m 0123456789-0123456789-0123",
        "\x1b[1mtext:\x1b[0m a long text that can be made shorter",
        "",
        "\x1b[1mid:\x1b[0m x",
        "\x1b[1mtext:\x1b[0m 日本語の長い文章です、とても長い",
    ]


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"])), st.integers(1, 40))
def test_a_shortened_text_is_never_wider_than_asked(text: str, width: int) -> None:
    shown = shortened(text, width)
    assert cells(shown) <= width
    assert shown == text or (shown.endswith("…") and text.startswith(shown[:-1]))


def test_an_empty_table_is_its_header() -> None:
    assert list(laid_out(HEADERS, [], 80)) == ["ID  TEXT"]
