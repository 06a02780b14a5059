"""Names that others chose."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacerelled.agent.names import MAX_BYTES, numbered, safe_name, shown_name


@pytest.mark.parametrize(
    ("given_name", "wanted"),
    [
        ("plan.pdf", "plan.pdf"),
        ("../../.ssh/authorized_keys", "authorized_keys"),
        ("/etc/passwd", "passwd"),
        ("C:\\Users\\a\\..\\b.txt", "b.txt"),
        ("..", "attachment"),
        (".", "attachment"),
        ("/", "attachment"),
        ("", "attachment"),
        ("   ", "attachment"),
        (".bashrc", "bashrc"),
        ("...hidden", "hidden"),
        (" . .x", "x"),
        ("a\x00b\nc\x1b[31m.txt", "abc[31m.txt"),
        ("invoice\u202efdp.exe", "invoicefdp.exe"),
        ("zero\u200bwidth", "zerowidth"),
        ("half \ud83d pair", "half  pair"),
        ("line\u2028separator", "line separator"),
        ('a<b>c:d"e|f?g*h', "a_b_c_d_e_f_g_h"),
        ("CON", "_CON"),
        ("nul.txt", "_nul.txt"),
        ("Com1 .tar.gz", "_Com1 .tar.gz"),
        ("console.log", "console.log"),
        ("trailing. . ", "trailing"),
        ("u\u0308ber.txt", "über.txt"),
        ("-rf", "-rf"),
    ],
)
def test_what_is_left_of_a_name(given_name: str, wanted: str) -> None:
    assert safe_name(given_name) == wanted


def test_a_long_name_keeps_its_suffix() -> None:
    name = safe_name("ä" * 500 + ".pdf")
    assert name.endswith("ä.pdf")
    assert MAX_BYTES - 2 <= len(name.encode()) <= MAX_BYTES
    assert len(safe_name("a." + "b" * 500).encode()) == MAX_BYTES


@given(st.text(alphabet=st.characters(exclude_categories=()), max_size=400))
def test_any_name_becomes_one_visible_harmless_name(name: str) -> None:
    safe = safe_name(name)
    assert Path("/folder") / safe == Path("/folder/" + safe)
    assert Path("/folder", safe).name == safe
    assert not safe.startswith((".", " "))
    assert 0 < len(safe.encode()) <= MAX_BYTES
    assert not any(unicodedata.category(c) in ("Cc", "Cf", "Cs") or c in '/\\<>:"|?*' for c in safe)
    assert safe_name(safe) == safe
    assert len(numbered(safe, 1000).encode()) <= 255
    shown = shown_name(name)
    assert 0 < len(shown) <= 512
    shown.encode()


def test_numbers_stand_before_the_suffix() -> None:
    assert [numbered("plan.pdf", n) for n in (1, 2, 10)] == ["plan.pdf", "plan (2).pdf", "plan (10).pdf"]
    assert numbered("plan", 2) == "plan (2)"
