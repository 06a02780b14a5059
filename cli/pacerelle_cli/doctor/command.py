"""`pacerelle doctor`."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Final

import click

from pacerelle_cli import show
from pacerelle_cli.context import Cli, command, json_option
from pacerelle_cli.errors import FAILED as EXIT_FAILED
from pacerelle_cli.text import escape

from .check import FAILED, NOTE, OK, SKIPPED, Check, any_failed
from .report import line

_COLOURS: Final = {OK: "green", NOTE: "yellow", FAILED: "red", SKIPPED: None}


@command("doctor", example="pacerelle doctor\npacerelle doctor --report report.txt")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write a file with the checks, settings and log, without secrets, to be posted.",
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, report: Path | None) -> None:
    """Look whether all is well, and say what to do where it is not.

    Works without a daemon, and with one that hangs. Reads the whole store, and has each relay answer. No token, key or
    message is shown, so the output can be posted. Exit code 1 if something failed.
    """
    from .examine import examine
    from .report import write

    cli = ctx.ensure_object(Cli)
    if sys.stderr.isatty():
        click.echo("Looking…", err=True)
    checks, status = examine(cli)
    if report:
        write(report, cli, checks, status)
    if cli.json:
        shown = [each.as_dict() for each in checks]
        show.as_json({"ok": not any_failed(checks), "checks": shown, "report": str(report) if report else None})
    else:
        for each in checks:
            _show(each)
        click.echo(_sum(checks))
        if report:
            click.echo(f"Written to {escape(str(report))}. Look through it before you post it.")
    ctx.exit(EXIT_FAILED if any_failed(checks) else 0)


def _show(each: Check) -> None:
    text = escape(line(each))
    state, rest = text[: len(each.state)], text[len(each.state) :]
    click.echo(click.style(state, fg=_COLOURS[each.state], bold=each.state == FAILED) + rest)
    if each.remedy and each.state != OK:
        click.echo(f"         {escape(each.remedy)}")


def _sum(checks: list[Check]) -> str:
    count = Counter(each.state for each in checks)
    if not count[FAILED]:
        return "\nAll is well." if not count[SKIPPED] else "\nNothing failed, but not all could be looked at."
    return f"\n{count[FAILED]} of {len(checks)} checks failed."
