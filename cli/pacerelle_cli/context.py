"""What every command of click shares: how it fails, and the options that many of them take."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from .cli import Cli as Cli
from .errors import CliError

pass_cli = click.make_pass_decorator(Cli)


class Command(click.Command):
    """A command whose errors also appear as JSON on standard output when `--json` was given."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except CliError as error:
            cli = ctx.find_object(Cli)
            if cli is not None and cli.json:
                from .show import as_json

                as_json({"error": error.as_dict()})
            raise
        finally:
            sys.stdout.flush()


def command(name: str, *, example: str) -> Callable[[Callable[..., Any]], Command]:
    """A command whose help ends with `example` (lines of shell)."""
    lines = "\n".join(f"  {line}" for line in example.strip().splitlines())
    epilog = f"\b\nExample:\n{lines}"
    return click.command(name, cls=Command, epilog=epilog)


def _want_json(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        ctx.ensure_object(Cli).json = True


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_want_json,
    help="Print JSON with a version field instead of text.",
)

agent_option = click.option(
    "--agent",
    "agent_id",
    metavar="AGENT_ID",
    envvar="PACERELLE_AGENT_ID",
    default="-",
    help="Which agent; not needed when there is only one. [env: PACERELLE_AGENT_ID]",
)
