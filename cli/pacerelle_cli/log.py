"""`pacerelle log …`."""

from __future__ import annotations

import click

from . import show
from .context import Cli, command, json_option, pass_cli

_LEVELS = ("debug", "info", "warning", "error")


@click.group("log", epilog="\b\nExample:\n  pacerelle log level debug\n\nTo read it: pacerelle service logs")
def log() -> None:
    """How much the daemon logs."""


@command("level", example="pacerelle log level\npacerelle log level debug")
@click.argument("level", type=click.Choice(_LEVELS), required=False)
@json_option
@pass_cli
def level(cli: Cli, level: str | None) -> None:
    """Show how much is logged, or change it until the daemon ends.

    For good it is the setting log_level in config.toml.
    """
    found = cli.daemon.call("PUT", "/v1/log", body={"level": level})[1] if level else cli.daemon.get("/v1/log")
    if cli.json:
        show.as_json(found)
    else:
        click.echo(f"The daemon logs from {found['level']} on.")


log.add_command(level)
