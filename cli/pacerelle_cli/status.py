"""`pacerelle status` and `pacerelle hosts`."""

from __future__ import annotations

import click

from . import overview, show
from .context import Cli, command, json_option, pass_cli


@command("status", example="pacerelle status\npacerelle status --json | jq .health")
@json_option
@click.pass_context
def status(ctx: click.Context) -> None:
    """Health first, then agents and hosts.

    \b
    Exit code: 0 all is well, 1 another problem, 3 the daemon does not run or
    does not answer, 4 login needed, 5 relay offline.
    """
    ctx.exit(overview.status(ctx.ensure_object(Cli)))


@command("hosts", example="pacerelle hosts")
@json_option
@pass_cli
def hosts(cli: Cli) -> None:
    """MCP hosts that are attached, and how many requests each holds."""
    body = cli.daemon.get("/v1/hosts")
    if cli.json:
        show.as_json(body)
    else:
        overview.hosts_table(body["hosts"])
