"""docs/promises.md names the tests that hold it to its word: they must exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

TESTS = Path(__file__).parent
NAMED = re.compile(r"`(\w+/test_\w+\.py)::(test_\w+)`")


def functions(file: Path) -> set[str]:
    found = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
    return {node.name for node in found if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_that_the_promises_name_exists() -> None:
    named = NAMED.findall((TESTS.parent / "docs" / "promises.md").read_text(encoding="utf-8"))
    assert len(named) >= 13
    assert [f"{file}::{test}" for file, test in named if test not in functions(TESTS / file)] == []
