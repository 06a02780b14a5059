"""`pacerelle store …`: what can be done about the store while no daemon runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import click

from . import show
from .context import Cli, command, json_option, pass_cli
from .errors import CliError, refused
from .text import escape


@click.group("store", epilog="\b\nExample:\n  pacerelle store move-aside")
def store() -> None:
    """The daemon's store, when something is wrong with it."""


@command("move-aside", example="pacerelle store move-aside\npacerelle store move-aside --yes --json")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@pass_cli
def move_aside(cli: Cli, yes: bool) -> None:
    """Move a damaged store aside, so that the daemon starts with an empty one.

    Says what is lost, and asks. The daemon must not run. A store that can be used stays where it is.
    """
    if not yes:
        _ask(_ask_daemon(cli))
    done = _ask_daemon(cli, "--move")
    if cli.json:
        show.as_json(done)
    else:
        click.echo(f"Moved to {escape(done['moved_to'])}.")
        click.echo("The daemon starts with an empty store. Add agents that no host brings with `pacerelle agent add`;")
        click.echo("then let people write first, and compare safety codes.")


store.add_command(move_aside)


def _ask(found: dict[str, Any]) -> None:
    """Goes on if the user agrees."""
    click.echo(f"The store cannot be used: {escape(found['reason']['message'])}", err=True)
    click.echo("A backup may help: store.db, store.json and store.key belong together.", err=True)
    click.echo("With an empty store in its place, this is lost:", err=True)
    for what in found["lost"]:
        click.echo(f"- {what}", err=True)
    click.confirm("Move it aside?", abort=True, err=True)


def _ask_daemon(cli: Cli, *more: str) -> dict[str, Any]:
    """What the daemon's own program finds about its store; only that knows it. Raises CliError if it is well."""
    program = [sys.executable, "-I", "-m", "pacerelled.move_aside", "--store-root", os.fspath(cli.paths.state.parent)]
    done = subprocess.run([*program, *more], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        raise CliError(f"The store could not be looked at: {words[-1] if words else 'no answer'}") from error
    if problem := answer.get("error"):
        raise refused(problem["code"], problem["message"], hint=problem["hint"])
    if answer["reason"] is None:
        raise refused("not_possible", "The store can be used: it stays where it is.", hint="Start the daemon.")
    return answer
