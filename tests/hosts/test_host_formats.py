"""Edits of hosts' files as text: what is not ours stays as it is, to the character."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given, settings

from pacerelle_cli.hosts import formats
from pacerelle_cli.hosts.errors import BadText
from tests.hosts import host_texts
from tests.hosts.host_texts import ENTRY

JSON, TOML, YAML = ("mcpServers", "pacerelle"), ("mcp_servers", "pacerelle"), ("extensions", "pacerelle")


def squeezed(text: str) -> str:
    return "".join(text.split())


def is_within(lines: str, text: str) -> bool:
    """Whether all the lines are there, in their order."""
    left = iter(text.splitlines())
    return all(line in left for line in lines.splitlines())


def back(name: str, text: str, where: tuple[str, str]) -> str:
    return formats.remove(name, formats.put(name, text, where, ENTRY), where)


# JSON with comments


@settings(max_examples=150, deadline=None)
@given(host_texts.jsonc("mcpServers"))
def test_json_of_any_style_is_read_and_edited_in_place(made: tuple[str, Any]) -> None:
    text, data = made
    assert formats.read("jsonc", text) == data
    edited = formats.put("jsonc", text, JSON, ENTRY)
    assert formats.read("jsonc", edited) == data | {"mcpServers": data["mcpServers"] | {"pacerelle": ENTRY}}
    assert formats.put("jsonc", edited, JSON, ENTRY) == edited
    assert squeezed(formats.remove("jsonc", edited, JSON)) == squeezed(text)


@pytest.mark.parametrize(
    ("text", "edited"),
    [
        (
            '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "x"} // first\n  }\n}\n',
            '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "x"}, // first\n    "pacerelle": 1\n  }\n}\n',
        ),
        (
            '{\n\t"mcpServers": {\n\t\t"a": 1,\n\t\t/* last */\n\t},\n}',
            '{\n\t"mcpServers": {\n\t\t"a": 1,\n\t\t/* last */\n\t\t"pacerelle": 1,\n\t},\n}',
        ),
        ('{"mcpServers":{"a":1}}', '{"mcpServers":{"a":1, "pacerelle": 1}}'),
        ('{\r\n    "mcpServers": {}\r\n}', '{\r\n    "mcpServers": {\r\n        "pacerelle": 1\r\n    }\r\n}'),
    ],
)
def test_json_gets_the_entry_in_its_own_style(text: str, edited: str) -> None:
    assert formats.put("jsonc", text, JSON, 1) == edited
    assert formats.remove("jsonc", edited, JSON) == text


def test_plain_json_stays_plain_json() -> None:
    text = json.dumps({"numStartups": 3, "projects": {"/a": {"x": []}}}, indent=2)
    edited = formats.put("json", text, JSON, ENTRY)
    assert json.loads(edited)["mcpServers"]["pacerelle"] == ENTRY
    assert edited.startswith(text[:-2])


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', 3, "a comma or } is missing"),
        ('{"a": [1, 2}', 1, "a comma or ] is missing"),
        ('{\n\n"a": "x\n}', 3, "a string does not end on its line"),
        ('{"a": 1', 1, "ends too early"),
        ('{"a": 1} x', 1, "something follows"),
        ('{"a": /* x', 1, "a comment does not end"),
        ('{\n"a" 1}', 2, "a colon is missing"),
        ("{'a': 1}", 1, "a name in double quotes"),
        ('{"a": "\\x"}', 1, "a wrong escape"),
        ('{"a": NaN}', 1, "a value is missing"),
        ('{"a": 01}', 1, "a comma or } is missing"),
        ("[" * 10_000, 1, "nested too deeply"),
        ('{"mcpServers": []}', 1, "does not hold named settings"),
        ("[]", 1, "does not hold named settings"),
        ('{"mcpServers": {"pacerelle": 1,\n "pacerelle": 2}}', 2, "is there twice"),
    ],
)
def test_broken_json_is_refused_with_its_line(text: str, line: int, what: str) -> None:
    with pytest.raises(BadText, match=what) as caught:
        formats.put("jsonc", text, JSON, ENTRY)
    assert caught.value.line == line


def test_comments_are_too_much_for_a_host_that_reads_json() -> None:
    with pytest.raises(BadText, match="line 2: comments"):
        formats.read("json", '{\n  // hello\n  "a": 1}')


# TOML


@settings(max_examples=100, deadline=None)
@given(host_texts.toml("mcp_servers"))
def test_toml_of_any_style_is_edited_in_place(text: str) -> None:
    edited = formats.put("toml", text, TOML, ENTRY)
    assert edited.startswith(text)
    assert tomllib.loads(edited)["mcp_servers"]["pacerelle"] == ENTRY
    assert formats.put("toml", edited, TOML, ENTRY) == edited
    assert formats.remove("toml", edited, TOML).rstrip("\n") == text.rstrip("\n")


def test_toml_around_the_entry_stays() -> None:
    ours = '[mcp_servers.pacerelle]\ncommand = "x" # ours\nargs = []\n\n[mcp_servers."pacerelle".env]\nA = "1"\n'
    text = f"# top\n[mcp_servers.a]\nb = 1\n\n{ours}\n# about tui\n[tui]\nx = 1\n"
    edited = formats.put("toml", text, (*TOML, "command"), "y")
    assert edited == text.replace('"x"', '"y"')
    assert formats.remove("toml", text, TOML) == "# top\n[mcp_servers.a]\nb = 1\n\n# about tui\n[tui]\nx = 1\n"


@pytest.mark.parametrize("text", ["mcp_servers = {}\n", 'mcp_servers = { a = { command = "x" } } # c\n[t]\n'])
def test_an_inline_table_is_edited_too(text: str) -> None:
    assert back("toml", text, TOML) == text


def test_toml_gets_a_table_of_variables() -> None:
    text = '[mcp_servers.pacerelle]\ncommand = "x"\n\n# about t\n[t]\nx = 1\n'
    edited = formats.put("toml", text, (*TOML, "env"), {"A": "1"})
    assert tomllib.loads(edited)["mcp_servers"]["pacerelle"]["env"] == {"A": "1"}
    assert is_within(text, edited)


@pytest.mark.parametrize(("text", "line"), [("a = 1\nb = \n", 2), ("a = 1\na = 2\n", 2), ("[a\n", 1), ('x = """\n', 2)])
def test_broken_toml_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(BadText) as caught:
        formats.put("toml", text, TOML, ENTRY)
    assert caught.value.line == line


# YAML


@settings(max_examples=50, deadline=None)
@given(host_texts.yaml_block("extensions"))
def test_yaml_of_any_style_is_edited_in_place(text: str) -> None:
    edited = formats.put("yaml", text, YAML, ENTRY)
    assert formats.read("yaml", edited)["extensions"]["pacerelle"] == ENTRY
    assert is_within(text, edited)
    assert formats.put("yaml", edited, (*YAML, "command"), "/b") == edited.replace('"/opt/a b/ü/python"', "/b")
    assert formats.remove("yaml", edited, YAML) == text


@pytest.mark.parametrize(
    "text", ["extensions: {}\nb: 1\n", "extensions: {dev: {a: 1}}\n", "extensions: # x\n    dev: {a: 1}\n"]
)
def test_yaml_in_other_styles_comes_back_as_it_was(text: str) -> None:
    assert back("yaml", text, YAML) == text


@pytest.mark.parametrize("text", ["", "# c\n", "a: 1", "extensions:\n", "extensions: ~ # none\n", "{}", "{a: 1}"])
def test_yaml_without_extensions_gets_them(text: str) -> None:
    data = formats.read("yaml", text)
    edited = formats.put("yaml", text, YAML, ENTRY)
    assert formats.read("yaml", edited) == data | {"extensions": {"pacerelle": ENTRY}}


def test_yaml_that_cannot_be_edited_in_place_is_refused() -> None:
    for text in ("x: &e {a: {}}\nextensions: *e\n", "- a\n", "extensions: [a]\n"):
        with pytest.raises(BadText):
            formats.put("yaml", text, YAML, ENTRY)


@pytest.mark.parametrize(
    ("text", "line"), [("a: 1\nb: [\n", 3), ("a: 1\n b: 2\n", 2), ("a: 1\na: 2\n", 2), ("a: 1\n---\nb: 2\n", 2)]
)
def test_broken_yaml_is_refused_with_its_line(text: str, line: int) -> None:
    with pytest.raises(BadText) as caught:
        formats.put("yaml", text, YAML, ENTRY)
    assert caught.value.line == line


def test_values_mean_in_yaml_what_they_are() -> None:
    for value in ("yes", "0x1", "1e3", "~", "a: b", "#", "", "ü", "x\ny", "null", "/plain/path", True, 300):
        text = formats.put("yaml", "extensions: {}\n", YAML, {"v": value})
        assert formats.read("yaml", text)["extensions"]["pacerelle"]["v"] == value
