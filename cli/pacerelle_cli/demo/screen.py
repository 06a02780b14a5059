"""The transcript: what was said by whom, and the checks, wrapped to the terminal's width."""

from __future__ import annotations

import shutil
import sys
import textwrap

import click

from pacerelle_cli.text import escape

_WIDEST = 100  # columns; longer lines are hard to read
_NARROWEST = 30
_LABEL = 14  # columns of who says something, with the space after it


class Screen:
    """Prints the demo's lines and counts its checks. Colour is click's business, and so is NO_COLOR."""

    def __init__(self) -> None:
        self.checks = 0
        self._tick = "✓" if _can_show("✓") else "ok"

    def heading(self, text: str) -> None:
        click.echo()
        self._wrapped(text, bold=True)

    def note(self, text: str) -> None:
        self._wrapped(text, indent="  ")

    def said(self, who: str, text: str) -> None:
        """A line of the transcript; `text` may come from anywhere."""
        label = click.style(who.ljust(_LABEL - 1), fg="cyan")
        self._wrapped(escape(text), first=f"  {label} ", indent=" " * (_LABEL + 2))

    def passed(self, what: str) -> None:
        self.checks += 1
        tick = click.style(self._tick, fg="green")
        self._wrapped(what, first=f"  {tick} ", indent=" " * (len(self._tick) + 3))

    def verbatim(self, text: str) -> None:
        """To be copied: never wrapped."""
        click.echo(text)

    def _wrapped(self, text: str, *, first: str | None = None, indent: str = "", bold: bool = False) -> None:
        """`first` takes as many columns as `indent`, which begins all other lines."""
        columns = max(_NARROWEST, min(shutil.get_terminal_size().columns - 1, _WIDEST))
        lines = textwrap.wrap(text, columns - len(indent)) or [""]
        for number, line in enumerate(lines):
            lead = first if first is not None and number == 0 else indent
            click.echo(lead + (click.style(line, bold=True) if bold else line))


def _can_show(character: str) -> bool:
    try:
        character.encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
