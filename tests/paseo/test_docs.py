"""docs/paseo.md, compared with the tools and the settings."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from pacerelled.mcp.paseo.schemas import LOOKING, TOOLS
from pacerelled.mcp.paseo.tools import RUN
from pacerelled.paseo.settings import PaseoSettings
from pacerelled.paseo.tracker import TYPES

TEXT = (Path(__file__).parents[2] / "docs" / "paseo.md").read_text()


def test_the_page_names_every_tool_argument_and_field() -> None:
    for name, spec in TOOLS.items():
        section = TEXT.split(f"### `{name}`")[1].split("\n### ")[0].split("\n## ")[0]
        for argument in spec.tool.input_schema["properties"]:
            assert f"`{argument}`" in section, (name, argument)
        for field in (spec.tool.output_schema or {})["required"]:
            assert field in section, (name, field)
    assert re.findall(r"^### `(\w+)`", TEXT, re.MULTILINE) == list(TOOLS) == list(RUN)


def test_read_only_has_the_tools_that_look() -> None:
    assert all(TOOLS[name].only_looks for name in LOOKING)
    assert tuple(TOOLS)[:6] == LOOKING
    assert "paseo_create_agent" not in LOOKING


def test_the_page_names_every_setting_and_event() -> None:
    for each in fields(PaseoSettings):
        assert re.search(rf"`{each.name}[.`]", TEXT), each.name
    for kind in TYPES:
        assert f"`{kind}`" in TEXT
