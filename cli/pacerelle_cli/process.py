"""`pacerelle stop`, `paths` and `version`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from typing import TYPE_CHECKING

import click

from . import show
from .context import Cli, command, json_option, pass_cli
from .errors import NotAnswering, NotRunning, Refused
from .service.asking import stop_service

if TYPE_CHECKING:
    from .client import Daemon

_STOP_WAIT = 15.0  # seconds; the daemon itself takes under 5
_STOP_POLL = 0.05


@command("stop", example="pacerelle stop")
@json_option
@pass_cli
def stop(cli: Cli) -> None:
    """Stop the daemon, and wait until it has ended. Hosts stay attached to nothing until it runs again.

    Where it is a service, the service is stopped.
    """
    pid = stop_daemon(cli)
    if cli.json:
        show.as_json({"stopped": pid is not None, "pid": pid})
    else:
        click.echo(f"pacerelled (pid {pid}) has ended." if pid else "pacerelled was not running.")


def stop_daemon(cli: Cli) -> int | None:
    """Returns when the daemon has ended, with the pid it had; None if there was none. Raises CliError."""
    daemon = cli.daemon
    of_service = daemon.owner()
    if stop_service(cli.paths.state) and daemon.owner() is None:
        return of_service
    owner = daemon.owner()
    try:
        _, body = daemon.call("POST", "/v1/stop", body={}, timeout=_STOP_WAIT)
    except NotRunning:
        if daemon.owner() is not None:
            raise
        pid = None
    except Refused as refusal:
        pid = _signal(daemon, refusal)
    else:
        pid = body.get("pid", owner)
    if pid is not None:
        until = time.monotonic() + _STOP_WAIT
        while daemon.owner() == pid:
            if time.monotonic() > until:
                raise NotAnswering(
                    f"pacerelled (pid {pid}) is still running after {_STOP_WAIT:g} seconds.",
                    hint=f"Its log is {cli.paths.log}. As a last resort: kill {pid}",
                )
            time.sleep(_STOP_POLL)
    return pid


def _signal(daemon: Daemon, refusal: Refused) -> int:
    """Asks a daemon that does not know the call, being of another version: SIGTERM stops all of them."""
    pid = daemon.owner()
    if pid is None:
        raise refusal
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    return pid


@command("paths", example="pacerelle paths\npacerelle --store-root /tmp/s paths --json")
@json_option
@pass_cli
def paths(cli: Cli) -> None:
    """Files and sockets that the daemon uses; it need not be running."""
    found = {field.name: os.fspath(getattr(cli.paths, field.name)) for field in dataclasses.fields(cli.paths)}
    if cli.json:
        show.as_json({"paths": found})
    else:
        width = max(map(len, found))
        for name, path in found.items():
            click.echo(f"{name:<{width}}  {path}")


@command("version", example="pacerelle version")
@json_option
@pass_cli
def version(cli: Cli) -> None:
    """This program's version. The daemon's own is in `pacerelle status`."""
    from importlib.metadata import version as installed

    number = installed("pacerelled")
    if cli.json:
        show.as_json({"pacerelle": number})
    else:
        click.echo(f"pacerelle {number}")
