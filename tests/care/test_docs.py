"""The documents: their links lead somewhere, the settings are all there, and both guides say the same."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from pacerelle_cli.root import root
from pacerelled.config import ENVIRONMENT, Settings
from pacerelled.mcp.schemas import TOOLS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([*DOCS.glob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"])


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        assert not anchor or anchor in anchors(there), target


def test_the_index_has_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} == set(re.findall(r"\(([\w.-]+\.md)\)", index))


def test_every_setting_and_its_variable_are_documented() -> None:
    text = "".join(page.read_text() for page in DOCS.glob("*.md"))
    for setting in (field.name for field in fields(Settings)):
        assert f"`{setting}`" in text, setting
    for variable in ENVIRONMENT:
        # The second of two may stand without what both begin with.
        short = "_" + variable.rpartition("_")[2]
        assert f"`{variable}`" in text or f"`{short}`" in text, variable


def blocks(page: Path) -> list[str]:
    return re.findall(r"^    \S.*$", page.read_text(), re.MULTILINE)


def words(page: Path) -> set[str]:
    return set(re.findall(r"`([^`]+)`", page.read_text()))


def test_both_guides_say_the_same() -> None:
    english, french = DOCS / "guide.en.md", DOCS / "guide.fr.md"
    assert blocks(english) == blocks(french)
    assert words(english) == words(french)
    links = [re.findall(r"\(([\w.#-]+\.md[^)]*)\)", page.read_text()) for page in (english, french)]
    assert set(links[0]) - {"guide.fr.md"} == set(links[1]) - {"guide.en.md"}
    headings = [len(re.findall(r"^#", page.read_text(), re.MULTILINE)) for page in (english, french)]
    assert headings[0] == headings[1]


def test_the_guide_names_every_tool_and_no_other() -> None:
    always = {name for name, tool in TOOLS.items()}
    named = {word for word in words(DOCS / "guide.en.md") if word in always or word.startswith(("get_", "send_"))}
    assert named <= always
    assert {"get_status", "wait_for_messages", "send_message", "mark_processed", "save_attachment"} <= named


@pytest.mark.parametrize("page", ["guide.en.md", "install.md", "security.md", "troubleshooting.md", "daemon.md"])
def test_commands_in_the_text_exist(page: str) -> None:
    context = click.Context(root)
    for line in re.findall(r"`pacerelle ([a-z][^`]*)`|^    pacerelle (.+)$", (DOCS / page).read_text(), re.MULTILINE):
        command: click.Command | None = root
        for word in "".join(line).split():
            if not isinstance(command, click.Group) or not re.fullmatch("[a-z-]+", word):
                break
            command = command.get_command(context, word)
            assert command is not None, line
