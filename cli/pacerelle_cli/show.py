"""Tables and JSON on standard output. rich is imported only for a table on a terminal."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from .text import escape

JSON_VERSION: Final = 1
"""Grows when a field of `--json` changes its meaning or goes away; new fields do not count."""


def as_json(body: Mapping[str, Any]) -> None:
    """One object with `version`. Non-ASCII is escaped, so that nothing in it can reach a terminal as a command."""
    click.echo(json.dumps({"version": JSON_VERSION, **body}, indent=2))


def table(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Aligned columns; on a terminal that is too narrow for them, one block for each row."""
    cells = [[escape(str(cell)) for cell in row] for row in rows]
    if sys.stdout.isatty():
        _on_terminal(headers, cells)
    else:
        _plain([list(headers), *cells])


def wrapped(text: str) -> None:
    """A line; on a terminal as many as it takes, the later ones indented."""
    import textwrap

    width = os.get_terminal_size(sys.stdout.fileno()).columns if sys.stdout.isatty() else len(text)
    click.echo(textwrap.fill(text, max(width, 20), subsequent_indent="  "))


def _plain(lines: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        padded = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        click.echo("  ".join(padded).rstrip())


def _on_terminal(headers: Sequence[str], cells: Sequence[Sequence[str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    grid = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for header in headers:
        grid.add_column(header, no_wrap=True)
    for row in cells:
        grid.add_row(*map(Text, row))
    if console.measure(grid, options=console.options.update(max_width=100_000)).maximum <= console.width:
        console.print(grid)
        return
    for number, row in enumerate(cells):
        if number:
            console.print()
        for header, cell in zip(headers, row, strict=True):
            console.print(Text.assemble((f"{header.lower()}: ", "bold"), cell))
