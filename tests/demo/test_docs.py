"""What people copy out of the documents, and where the documents send them."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


def anchor(heading: str) -> str:
    """As the forge makes it of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
        path, _, wanted = target.partition("#")
        found = (page.parent / path) if path else page
        assert found.is_file(), target
        if wanted:
            headings = re.findall(r"^#+ (.+)$", found.read_text(), re.MULTILINE)
            assert wanted in {anchor(heading) for heading in headings}, target


@pytest.mark.parametrize("page", ["README.md", "docs/hosts.md"])
def test_json_that_people_copy_is_json(page: str) -> None:
    blocks = re.findall(r"^ +\{\n(?: +.*\n)+? +\}\n(?=\n|\S)", (ROOT / page).read_text(), re.MULTILINE)
    assert blocks
    for block in blocks:
        servers = next(iter(json.loads(block).values()))
        assert set(servers) == {"pacerelle"}
        assert servers["pacerelle"]["command"].rpartition("/")[2] in ("pacerelle-mcp", "COMMAND")
        assert set(servers["pacerelle"]["env"]) == {
            "PACERELLE_AGENT_ID",
            "PACERELLE_AGENT_TOKEN",
            "PACERELLE_BASE_URL",
        }


def test_toml_that_people_copy_is_toml() -> None:
    lines = (ROOT / "docs/hosts.md").read_text().split("### Codex\n")[1].split("\nFast form")[0]
    entry = tomllib.loads("\n".join(line.strip() for line in lines.splitlines()))["mcp_servers"]["pacerelle"]
    assert entry["command"] == "COMMAND"
    assert "PACERELLE_AGENT_TOKEN" in entry["env"]
