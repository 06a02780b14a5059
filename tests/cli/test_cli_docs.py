"""docs/cli.md and each command's help, compared with the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from pacerelle_cli.errors import EXIT_CODES, LOGIN_NEEDED, RELAY_OFFLINE
from pacerelle_cli.root import COMMANDS, root

DOCS = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
ELSEWHERE = ("relay", "chat")  # written by other packages, which say in their own way what they do


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(command)
    yield path, command
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from walk(found, f"{path} {name}")


TREE = dict(walk(root, "pacerelle"))
SECTIONS = dict(re.findall(r"^##+ `(.+?)`\n(.*?)(?=^##|\Z)", DOCS, re.DOTALL | re.MULTILINE))
COMMON = DOCS.partition("## `pacerelle status`")[0]


def options(command: click.Command) -> set[str]:
    found = {option for p in command.params if isinstance(p, click.Option) for option in p.opts + p.secondary_opts}
    return {option for option in found if option.startswith("--")} - {"--help"}


def test_every_command_has_its_section_and_no_other_has_one() -> None:
    assert set(SECTIONS) == set(TREE) - {"pacerelle"}


@pytest.mark.parametrize("path", sorted(set(TREE) - {"pacerelle"}))
def test_a_section_has_an_example_and_every_option(path: str) -> None:
    section = SECTIONS[path]
    assert re.search(rf"^    (?:.* )?{path}", section, re.MULTILINE) or path == "pacerelle paths"
    assert section.startswith("\n    ")
    known = options(TREE[path])
    if path.startswith("pacerelle chat "):
        known -= {"--home", "--relay", "--agent", "--json"}  # said once, for all of them
    assert {o for o in known if f"`{o}" not in section and f" {o}" not in section} == set()


def test_no_section_names_an_option_that_does_not_exist() -> None:
    for path, section in SECTIONS.items():
        here = options(TREE[path]) | options(root)
        for option in re.findall(r"^\| `(--[a-z0-9-]+)", section, re.MULTILINE):
            assert option in here, path


def test_the_global_options_are_documented() -> None:
    assert {option for option in options(root) if f"`{option}" not in COMMON} == set()


def test_the_list_of_commands_is_the_tree() -> None:
    assert {path.split()[1] for path in TREE if path != "pacerelle"} == set(COMMANDS)
    for name, (_, help_line) in COMMANDS.items():
        assert len(help_line) <= 60, name


@pytest.mark.parametrize("path", [path for path in TREE if path.split()[1:2] not in [[name] for name in ELSEWHERE]])
def test_the_help_of_every_command_ends_with_an_example(path: str) -> None:
    example = TREE[path].epilog or ""
    assert f"\n  {path}" in example or f"| {path}" in example


def test_the_exit_codes_are_documented() -> None:
    rows = dict(re.findall(r"^\| ([0-5]) \| (.+?) \|$", DOCS, re.MULTILINE))
    assert sorted(rows) == list("012345")
    assert "login" in rows[str(LOGIN_NEEDED)]
    assert "offline" in rows[str(RELAY_OFFLINE)]
    assert set(EXIT_CODES.values()) == {LOGIN_NEEDED, RELAY_OFFLINE}
