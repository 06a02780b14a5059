"""A page in the language of man(7). The same page is always the same text: there is no date in it."""

from __future__ import annotations

from collections.abc import Iterator

from .pages import Page

SECTION = "1"
EXIT_STATUS = (
    ("0", "done"),
    ("1", "failed"),
    ("2", "wrong usage"),
    ("3", "the daemon does not run, or does not answer"),
    ("4", "login needed"),
    ("5", "the relay is offline"),
)


def render(page: Page, version: str) -> str:
    """`version` is the program's."""
    return "\n".join(_lines(page, version)) + "\n"


def _lines(page: Page, version: str) -> Iterator[str]:
    yield f'.TH "{page.name.upper()}" "{SECTION}" "" "pacerelled {escape(version)}" "Pacerelle"'
    yield from (".SH NAME", f"{escape(page.name)} \\- {escape(page.summary)}")
    yield from (".SH SYNOPSIS", _bold(page.usage))
    yield ".SH DESCRIPTION"
    for number, paragraph in enumerate(page.about):
        if number:
            yield ".PP"
        yield from _literal(paragraph.split("\n")) if "\n" in paragraph else [escape(paragraph)]
    if page.options:
        yield ".SH OPTIONS"
        for names, text in page.options:
            yield from (".TP", _bold(names), escape(text) or "\\&")
    if page.commands:
        yield ".SH COMMANDS"
        for name, text in page.commands:
            yield from (".TP", f"\\fB{escape(name)}\\fR({SECTION})", escape(text))
    yield ".SH EXIT STATUS"
    for code, text in EXIT_STATUS:
        yield from (".TP", _bold(code), escape(text))
    if page.examples:
        yield ".SH EXAMPLES"
        yield from _literal(page.examples)
    if page.notes:
        yield ".SH NOTES"
        yield from map(escape, page.notes)
    if len(page.words) > 1:
        yield from (".SH SEE ALSO", f"\\fB{escape('-'.join(page.words[:-1]))}\\fR({SECTION})")


def escape(text: str) -> str:
    """One line that is shown as it is: no escape sequence, no request, and a hyphen that can be copied."""
    shown = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    return f"\\&{shown}" if shown.startswith((".", "\\(aq")) else shown


def _bold(text: str) -> str:
    return f"\\fB{escape(text)}\\fR"


def _literal(lines: list[str]) -> Iterator[str]:
    yield from (".RS 4", ".nf")
    yield from (escape(line) or "\\&" for line in lines)
    yield from (".fi", ".RE")
