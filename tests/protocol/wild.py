"""Hypothesis strategies: what a peer, a relay or a broken client could send."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from hypothesis import strategies as st

any_text = st.text(st.characters(exclude_categories=()), max_size=40)  # lone surrogates and NUL included
clean_text = st.text(max_size=40)
ids = st.text(st.characters(codec="ascii", categories=["L", "N"], include_characters="-_."), min_size=1, max_size=20)
any_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | any_text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(any_text, inner, max_size=4),
    max_leaves=12,
)
b64 = st.binary(max_size=60).map(lambda data: base64.b64encode(data).decode())


def nearly(fields: Mapping[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with these fields, any of which may be missing or be anything at all."""
    return st.fixed_dictionaries({}, optional={name: value | any_json for name, value in fields.items()})


def written(value: Any) -> str:
    """As Python's own writer gives it: NaN and escaped lone surrogates included."""
    return json.dumps(value)


DEEP = "[" * 200_000
HOSTILE_JSON = [
    "",
    "{",
    "null",
    "[]",
    "\ufeff{}",
    DEEP,
    '{"a":' * 100_000,
    '{"type":' + "[" * 3000 + "]" * 3000 + "}",
    '{"type":"MSG","id":' + "9" * 10_000 + "}",
    '{"type":NaN}',
    '{"type":1e999}',
    '{"type":"\\ud800"}',
    '{"type":"\\u0000"}',
    '{"type":"MSG","type":"MSG"}',
    "\u2028{}",
    '{"a":"\x00"}',
]
HOSTILE_BYTES = [
    b"\xff",
    b"\x00",
    b"\xed\xa0\x80",
    b"{\xff}",
    b"\xf0\x9f\x98",
    *(text.encode() for text in HOSTILE_JSON),
]
