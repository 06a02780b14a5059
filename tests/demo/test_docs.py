"""What people copy out of the documents, and where the documents send them."""

from __future__ import annotations

import re
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
