"""What is on the manual page of a command: what its help says."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, field

import click


@dataclass(frozen=True)
class Page:
    """`words` are the command, such as ("pacerelle", "host", "install"). `about` has paragraphs; one with line breaks
    is shown as it is."""

    words: tuple[str, ...]
    summary: str
    usage: str
    about: list[str] = field(default_factory=list)
    options: list[tuple[str, str]] = field(default_factory=list)
    commands: list[tuple[str, str]] = field(default_factory=list)
    examples: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # after the examples

    @property
    def name(self) -> str:
        return "-".join(self.words)


def pages(command: click.Command, words: tuple[str, ...], parent: click.Context | None = None) -> Iterator[Page]:
    """The command's page, then those of its own commands, in their order."""
    context = click.Context(command, parent, info_name=words[-1], terminal_width=200, **command.context_settings)
    below = _below(command, context)
    paragraphs = _paragraphs(command.help or "")
    examples, notes = _epilog(command.epilog or "")
    yield Page(
        words,
        summary=paragraphs[0].split(". ")[0].rstrip(".") if paragraphs else words[-1],
        usage=" ".join([*words, *command.collect_usage_pieces(context)]),
        about=paragraphs,
        options=_options(command, context),
        commands=[("-".join([*words, name]), each.get_short_help_str(200)) for name, each in below],
        examples=examples,
        notes=notes,
    )
    for name, each in below:
        yield from pages(each, (*words, name), context)


def _below(command: click.Command, context: click.Context) -> list[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        return []
    found = ((name, command.get_command(context, name)) for name in command.list_commands(context))
    return [(name, each) for name, each in found if each is not None]


def _options(command: click.Command, context: click.Context) -> list[tuple[str, str]]:
    options = [param for param in command.get_params(context) if isinstance(param, click.Option)]
    return [record for option in options if (record := option.get_help_record(context))]


def _paragraphs(text: str) -> list[str]:
    """As click understands them: a paragraph that begins with a line of `\\b` keeps its line breaks."""
    found = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        kept = paragraph.startswith("\b\n")
        lines = paragraph.removeprefix("\b\n").split("\n")
        found.append("\n".join(lines) if kept else " ".join(line.strip() for line in lines))
    return [paragraph for paragraph in found if paragraph]


def _epilog(text: str) -> tuple[list[str], list[str]]:
    """Lines of shell, and what is said after them."""
    first, *rest = _paragraphs(text) or [""]
    lines = first.split("\n")
    if not lines[0].startswith("Example"):
        return [], [each for each in (first, *rest) if each]
    return [line.removeprefix("  ") for line in lines[1:]], rest
