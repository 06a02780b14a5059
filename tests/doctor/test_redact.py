"""What must not be in a report."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pacerelle_cli.doctor.redact import redacted, settings

NAMES = {"/home/ada": "~", "ada": "USER", "box": "HOST", "agent-7e1ab": "AGENT-1"}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abc.def", "Authorization: Bearer […]"),
        ("https://ada:secret@relay.example.org/x", "https://[…]@relay.example.org/x"),
        ("ws://h/ws/agent?token=abc&x=1", "ws://h/ws/agent?token=[…]&x=1"),
        ('{"agent_token": "abc", "n": 1}', '{"agent_token": […]", "n": 1}'),
        ("PACERELLE_AGENT_TOKEN=abc host", "PACERELLE_AGENT_TOKEN=[…] host"),
        ("password: hunter2", "password: […]"),
        ("made pcl_abc_DEF9", "made […]"),
        ("key 0123456789abcdef0123456789abcdef", "key […]"),
        ("key QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0NTY3ODk=", "key […]"),
        ("/home/ada/.pacerelle on box of ada", "~/.pacerelle on HOST of USER"),
        ("Canada has boxes", "Canada has boxes"),
        ("agent-7e1ab: connected", "AGENT-1: connected"),
        ("2031-05-06 07:08:09,123 INFO pacerelled.link.connection: Relay: away", None),
        ("File /usr/lib/python3.12/site-packages/pacerelled/store/database.py:123", None),
        ("error 1a2b3c4d in GET /v1/agents/{id}/inbox", None),
    ],
)
def test_what_goes_and_what_stays(text: str, shown: str | None) -> None:
    assert redacted(text, NAMES) == (text if shown is None else shown)


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-", min_size=24))
def test_a_long_word_with_digits_and_letters_never_stays(word: str) -> None:
    if any(c.isdigit() for c in word) and any(c.isalpha() for c in word):
        assert word not in redacted(f"before {word} after", {})


def test_settings_show_numbers_and_flags_and_little_text() -> None:
    raw = b"""
base_url = "https://relay.example.org"
claim_lease = 60.0
keyring = false
files_out = ["/home/ada/private"]
api_password = "hunter2"
[section]
secret = "x"
"""
    assert list(settings(raw)) == [
        "base_url = 'https://relay.example.org'",
        "claim_lease = 60.0",
        "keyring = false",
        "files_out = (1 entries)",
        "api_password = (set)",
        "section = (1 entries)",
    ]
    assert list(settings(b"\xff = nonsense")) == ["(not valid TOML)"]
