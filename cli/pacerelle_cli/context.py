"""What every command shares: where the daemon is, whether JSON is wanted, and the options that many of them take."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from .errors import CliError

if TYPE_CHECKING:
    from pacerelle_protocol.local import LocalPaths

    from .client import Daemon


@dataclass
class Cli:
    """The global options. Created by the root group, found in click's context."""

    store_root: str | None = None
    socket: str | None = None
    json: bool = False

    @cached_property
    def paths(self) -> LocalPaths:
        from pacerelle_protocol.errors import LocalProtocolError
        from pacerelle_protocol.local import local_paths

        try:
            return local_paths(self.store_root, self.socket, env=os.environ, uid=os.getuid())
        except LocalProtocolError as error:
            raise CliError(str(error), hint="Check --store-root, --socket and HOME.") from error

    @cached_property
    def daemon(self) -> Daemon:
        from .client import Daemon

        return Daemon(self.paths)

    def started_daemon(self) -> Daemon:
        """The daemon; started first if it is not running, with a line on standard error that says so."""
        if not self.daemon.is_up():
            from .start import start_daemon

            pid = start_daemon(self.daemon, socket=self.socket)
            if pid is not None:
                click.echo(f"Started pacerelled (pid {pid}).", err=True)
        return self.daemon


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
