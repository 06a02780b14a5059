"""The manual pages: the same as the help, and right in the eyes of those who show them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import pytest

from pacerelle_cli.man.pages import Page, pages
from pacerelle_cli.man.roff import escape, render
from pacerelle_cli.root import root
from tests.cli.test_cli_docs import TREE, options
from tests.cli.world import Home, home

__all__ = ["home"]

PAGES = {" ".join(page.words): page for page in pages(root, ("pacerelle",))}


def test_each_command_has_a_page_with_its_options_and_examples() -> None:
    assert set(PAGES) == set(TREE)
    for path, page in PAGES.items():
        named = " ".join(names for names, _ in page.options)
        assert {option for option in options(TREE[path]) if option not in named} == set()
        assert page.summary
        assert page.about
        if path.split()[1:2] not in (["chat"], ["relay"]):
            assert page.examples, path


async def test_the_same_program_writes_the_same_bytes(home: Home) -> None:
    first = json.loads((await home.run("man", "one", "--json")).out)["written"]
    assert (await home.run("man", "two")).out == f"{len(first)} pages are in two.\n"
    assert len(first) == len(PAGES)
    for name in first:
        one = home.path / name
        assert one.read_bytes() == (home.path / "two" / one.name).read_bytes()
    (home.path / "file").write_text("")
    result = await home.run("man", "file/x")
    assert (result.code, result.err.startswith("Error: ")) == (1, True)


@pytest.mark.parametrize("path", ["pacerelle", "pacerelle host install", "pacerelle status"])
def test_a_page_has_its_sections_in_order(path: str) -> None:
    text = render(PAGES[path], "1.2")
    sections = re.findall(r"^\.SH (.+)$", text, re.MULTILINE)
    known = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS", "EXIT STATUS", "EXAMPLES", "NOTES", "SEE ALSO"]
    assert sections == [each for each in known if each in sections]
    assert {"NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "EXAMPLES"} <= set(sections)


def test_what_would_be_a_request_or_an_escape_is_text() -> None:
    assert escape(".SH x\\fB") == "\\&.SH x\\efB"
    assert escape("'tis `a` --b") == "\\&\\(aqtis \\(gaa\\(ga \\-\\-b"
    page = Page(("a",), "s", "a", [".so /etc/passwd"], [("--x", "")], [], ["'x", ""], [])
    lines = render(page, "1").splitlines()
    assert "\\&.so /etc/passwd" in lines
    assert "\\&\\(aqx" in lines


@pytest.mark.parametrize(
    ("program", "flags"),
    [("groff", ["-man", "-ww", "-z", "-Tutf8", "-Kutf8"]), ("mandoc", ["-man", "-Tlint", "-Wwarning"])],
    ids=["groff", "mandoc"],
)
def test_a_formatter_has_nothing_to_say_about_them(program: str, flags: list[str]) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"there is no {program} here")
    together = "".join(render(page, "1") for page in PAGES.values())
    done = subprocess.run([program, *flags], input=together.encode(), capture_output=True, check=False)
    # mandoc misses a date, with which the pages would not be the same every time they are written.
    remarks = [line for line in (done.stdout + done.stderr).splitlines() if b"missing date" not in line]
    assert remarks == []
    assert done.returncode in ((0, 2) if program == "mandoc" else (0,))
