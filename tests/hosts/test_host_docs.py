"""docs/hosts.md: the entries that people copy are those that the command line writes, into the same files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pacerelle_cli.hosts import formats
from pacerelle_cli.hosts.catalogue import HOSTS, Host
from pacerelle_cli.hosts.entry import Wanted, fresh

PAGE = (Path(__file__).parents[2] / "docs" / "hosts.md").read_text()
README = (Path(__file__).parents[2] / "README.md").read_text()
WANTED = Wanted("PYTHON", ("-I", "-S", "SHIM"), {"PACERELLE_AGENT_ID": "a-…"}, {})


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_the_entry_by_hand_is_the_one_that_is_written(host: Host) -> None:
    section = next(part for part in PAGE.split("\n### ") if host.title in part.partition("\n")[0])
    block = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)[0]
    text = re.sub(r"^    ", "", block, flags=re.MULTILINE)
    assert text == formats.put(host.format, "", host.where, fresh(host, WANTED))


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_the_files_are_in_the_table(host: Host) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{host.key}` |"))
    for platform in ("linux", "darwin"):
        assert f"`{host.file({'HOME': '~'}, platform)}`" in row


def test_the_readme_names_every_host() -> None:
    assert {key for key in HOSTS if f"{key}`" not in README} == set()
