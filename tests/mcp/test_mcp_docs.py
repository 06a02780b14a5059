from __future__ import annotations

from pathlib import Path

from pacerelled.mcp.resources import RESOURCES
from pacerelled.mcp.schemas import TOOLS
from pacerelled.mcp.texts import PROMPT_NAME
from pacerelled.mcp.tools import RUN


def test_the_reference_names_every_tool_argument_field_and_resource() -> None:
    text = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
    for name, spec in TOOLS.items():
        assert f"### `{name}`" in text
        section = text.split(f"### `{name}`")[1].split("\n### ")[0]
        if name in ("send_widget", "update_widget", "send_file"):
            section += text.split("### `send_message`")[1].split("\n### ")[0]  # which they refer to
        for argument in spec.tool.input_schema["properties"]:
            assert f"`{argument}`" in section
        assert spec.tool.output_schema is not None
        for field in spec.tool.output_schema["required"]:
            assert field in section
    for each in (*RESOURCES, PROMPT_NAME):
        assert f"`{each}`" in text


def test_every_tool_is_implemented() -> None:
    assert list(RUN) == list(TOOLS)
