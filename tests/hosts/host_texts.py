"""Texts of every style that people and programs write, with what they mean."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

ENTRY = {"command": "/opt/a b/ü/python", "args": ["-I", "-S", "/x y/__main__.py"], "env": {"PACERELLE_AGENT_ID": "a-1"}}

KEYS = st.one_of(st.sampled_from(["mcpServers", "other", "a b", "ключ", 'q"uote', "//", "/*"]), st.text(max_size=4))
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**6), 10**6),
    st.floats(-1e6, 1e6),
    st.text(max_size=8),
    st.just("// no */"),
)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=3)),
    max_leaves=12,
)


@st.composite
def jsonc(draw: st.DrawFn, holder: str) -> tuple[str, Any]:
    """A document with an object at `holder`, and its data."""
    data = draw(st.dictionaries(KEYS, DATA, max_size=3))
    data[holder] = draw(st.dictionaries(KEYS.filter(lambda key: key != "pacerelle"), DATA, max_size=3))
    gaps = st.sampled_from(["", " ", "\n", "\n\t", "\n  ", " // c: {\n", "/* \n, */", "\r\n    "])
    trailing = draw(st.booleans())

    def gap() -> str:
        return draw(gaps)

    def write(value: Any) -> str:
        if isinstance(value, dict) and value:
            items = [f"{gap()}{json.dumps(key)}{gap()}:{gap()}{write(item)}{gap()}" for key, item in value.items()]
            return "{" + ",".join(items) + ("," + gap() if trailing and draw(st.booleans()) else "") + "}"
        if isinstance(value, list) and value:
            items = [f"{gap()}{write(item)}{gap()}" for item in value]
            return "[" + ",".join(items) + ("," if trailing and draw(st.booleans()) else "") + "]"
        if value in ({}, []):
            return str(value)[0] + gap() + str(value)[1]
        return json.dumps(value, ensure_ascii=draw(st.booleans()))

    return gap() + write(data) + gap(), data


WORDS = st.text("abcxyz", min_size=1, max_size=5)
NAMES = WORDS.filter(lambda name: name not in ("y", "pacerelle"))


@st.composite
def yaml_block(draw: st.DrawFn, holder: str) -> str:
    """A document in block style with a mapping at `holder`, comments anywhere, any indentation."""
    tree = st.recursive(st.none(), lambda inner: st.dictionaries(NAMES, inner, min_size=1, max_size=3), max_leaves=6)
    lines: list[str] = []

    def write(mapping: dict[str, Any], indent: int) -> None:
        for key, value in mapping.items():
            if draw(st.booleans()):
                lines.append(" " * indent + "# about " + key)
            tail = draw(st.sampled_from(["", "   # why", " "]))
            if isinstance(value, dict):
                lines.append(" " * indent + f"{key}:" + tail)
                write(value, indent + draw(st.integers(1, 4)))
            else:
                lines.extend(scalar(key, indent, tail))

    def scalar(key: str, indent: int, tail: str) -> list[str]:
        pad, deeper = " " * indent, " " * (indent + 2)
        return draw(
            st.sampled_from(
                [
                    [f"{pad}{key}: one two{tail}"],
                    [f'{pad}{key}:   "ü: #1"{tail}'],
                    [f"{pad}{key}: [ a,   'b' ]{tail}"],
                    [f"{pad}{key}: |", f"{deeper}text # no comment", "", f"{deeper}more"],
                    [f"{pad}{key}:", f"{pad}- a", f"{pad}-   b: 1"],
                    [f"{pad}{key}:{tail}"],
                ]
            )
        )

    top = draw(st.dictionaries(NAMES, tree, max_size=2))
    top[holder] = draw(st.dictionaries(NAMES, tree, min_size=1, max_size=3))
    write(top, 0)
    return "\n".join(lines) + draw(st.sampled_from(["\n", "\n\n# end\n", ""]))


@st.composite
def toml(draw: st.DrawFn, holder: str) -> str:
    """A document with tables below `holder` and elsewhere, comments anywhere."""
    parts = [draw(st.sampled_from(["", "# top\n", 'model = "m"   # which\n\n']))]
    names = draw(st.lists(NAMES, unique=True, max_size=3))
    for name in names:
        table = f"{holder}.{name}" if draw(st.booleans()) else f"t{name}"
        parts.append(draw(st.sampled_from(["", "# about\n", "\n\n# about\n"])) + f"[ {table} ]\n")
        parts.append(draw(st.sampled_from(["", "x=1\n", "a = [\n  1, # one\n  2,\n]\n", 's = """\n[no.table]\n"""\n'])))
    return "".join(parts) + draw(st.sampled_from(["", "\n", "# end\n", "# end"]))
