"""Tables, colours and JSON on standard output.

Here and in what `pacerelle status` needs besides, click is not imported: it would be half of the time that takes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from .text import escape

JSON_VERSION: Final = 1
"""Grows when a field of `--json` changes its meaning or goes away; new fields do not count."""

_COLOURS: Final = {"red": 31, "green": 32, "yellow": 33}


def as_json(body: Mapping[str, Any]) -> None:
    """One object with `version`. Non-ASCII is escaped, so that nothing in it can reach a terminal as a command."""
    print(json.dumps({"version": JSON_VERSION, **body}, indent=2))


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns; on a terminal that is too narrow, texts are shortened, or each row becomes a block of lines."""
    from .layout import laid_out

    shown = [[escape(str(cell)) for cell in row] for row in rows]
    for line in laid_out(headers, shown, _width(), bold=_coloured()):
        print(line)


def wrapped(text: str) -> None:
    """A line; on a terminal as many as it takes, the later ones indented."""
    import textwrap

    print(textwrap.fill(text, max(_width() or len(text), 20), subsequent_indent="  "))


def coloured(text: str, colour: str) -> str:
    """In red, green or yellow, on a terminal whose user has nothing against it."""
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if _coloured() else text


def forgive() -> None:
    """A terminal need not know every character."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _coloured() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _width() -> int | None:
    """Of the terminal; None where standard output is none, or one that does not say."""
    if not sys.stdout.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    return int(told) if told.isdigit() and int(told) else os.get_terminal_size(sys.stdout.fileno()).columns or None
