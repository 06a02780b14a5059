"""`pacerelle service …`."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import click

from pacerelle_cli import show
from pacerelle_cli.context import Cli, command, json_option, pass_cli
from pacerelle_cli.errors import NOT_RUNNING, CliError
from pacerelle_cli.process import stop_daemon
from pacerelle_cli.text import escape

from . import record
from .manager import Manager, Status, find_manager, tail_command
from .record import Record
from .render import Daemon

_WELL: Final = ("running", "starting", "waiting")
_ENVIRONMENT: Final = frozenset(
    {"SSL_CERT_FILE", "SSL_CERT_DIR", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"}
)  # what a service manager does not know, of what a daemon started by a host would get


@click.group("service", epilog="\b\nExample:\n  pacerelle service install\n  pacerelle service status")
def service() -> None:
    """The daemon as a service: always there, from login on. By systemd on Linux, launchd on macOS."""


@command("install", example="pacerelle service install\npacerelle service install --linger")
@click.option("--linger", is_flag=True, help="Also have it run while you are not logged in (Linux).")
@json_option
@pass_cli
def install(cli: Cli, linger: bool) -> None:
    """Install the service and start it; a daemon that runs already gives way to it.

    May be repeated: what is right is left alone. The proxies, certificates and PACERELLED_… settings of this terminal
    become the service's.
    """
    manager = find_manager(os.environ)
    before = record.load(cli.paths.state)
    environment = {k: v for k, v in os.environ.items() if k.upper() in _ENVIRONMENT or k.startswith("PACERELLED_")}
    files = manager.files(_description(cli, environment))
    _refuse_other_store(cli, files)
    changed = [path for path, text in files.items() if _text(path) != text]
    mine = Record(manager.name, list(manager.start_command), bool(before and before.linger_set), environment)
    try:
        for path in changed:
            record.replace(path, files[path])
        record.save(cli.paths.state, mine)
    except OSError as error:
        raise CliError(f"{error.filename} cannot be written: {error.strerror}.") from error
    manager.prepare()
    if changed or cli.daemon.owner() not in (None, manager.status().pid):
        stop_daemon(cli)
    manager.start()
    status = manager.status()
    if linger and not status.linger:
        manager.set_linger(True)
        record.save(cli.paths.state, replace(mine, linger_set=True))
        status = manager.status()
    if cli.json:
        show.as_json({"service": _as_dict(manager, status, files, current=True), "changed": bool(changed)})
        return
    click.echo("The service is installed." if changed else "The service was installed already.")
    _print(manager, status)


@command("uninstall", example="pacerelle service uninstall")
@json_option
@pass_cli
def uninstall(cli: Cli) -> None:
    """Stop the service and remove it; the store stays. Hosts then start the daemon by themselves."""
    manager = find_manager(os.environ)
    known = record.load(cli.paths.state)
    files = manager.files(_description(cli, {}))
    found = [path for path in files if path.exists()]
    if not found and known is None:
        _done(cli, "The service was not installed.", uninstalled=False)
        return
    _refuse_other_store(cli, files)
    record.remove(cli.paths.state)  # first: hosts that call meanwhile must not ask for the service
    try:
        if found:
            manager.deactivate()
        for path in found:
            path.unlink()
        manager.forget()
    except BaseException:
        if known:
            record.save(cli.paths.state, known)
        raise
    if known and known.linger_set:
        try:
            manager.set_linger(False)
        except CliError as error:
            raise CliError(f"The service is uninstalled. {error.message}", hint=error.hint) from error
    _done(cli, "The service is uninstalled.", uninstalled=True)


@command("start", example="pacerelle service start")
@json_option
@pass_cli
def start(cli: Cli) -> None:
    """Start the service, and wait until it serves."""
    manager = _installed(cli)
    manager.start()
    _report(cli, manager)


@command("stop", example="pacerelle service stop")
@json_option
@pass_cli
def stop(cli: Cli) -> None:
    """Stop the service until a host calls, you log in again, or `pacerelle service start`."""
    manager = _installed(cli)
    manager.stop()
    _report(cli, manager)


@command("restart", example="pacerelle service restart")
@json_option
@pass_cli
def restart(cli: Cli) -> None:
    """Start the daemon anew, after an upgrade for instance. Hosts that are attached stay attached."""
    manager = _installed(cli)
    manager.restart()
    _report(cli, manager)


@command("status", example="pacerelle service status\npacerelle service status --json | jq .service.state")
@json_option
@click.pass_context
def status(ctx: click.Context) -> None:
    """Is the service installed, does it run, will it start by itself?

    \b
    Exit code: 0 it runs or waits for the first call, 1 it is not installed,
    3 it is installed and does not run.
    """
    cli = ctx.ensure_object(Cli)
    manager, found, files, current = _seen(cli)
    if cli.json:
        show.as_json({"service": _as_dict(manager, found, files, current=current)})
    else:
        _print(manager, found)
        if not current:
            click.echo("Its files are not those of this version: pacerelle service install")
    ctx.exit(0 if found.state in _WELL else NOT_RUNNING)


@command("logs", example="pacerelle service logs\npacerelle service logs --follow --lines 20")
@click.option("--lines", metavar="N", type=click.IntRange(0), default=100, show_default=True, help="The last N lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what is new, until Ctrl-C.")
@pass_cli
def logs(cli: Cli, lines: int, follow: bool) -> None:
    """What the daemon has logged: of the service, or without one, its log file."""
    if record.load(cli.paths.state):
        shown = find_manager(os.environ).log_command(cli.paths.log, lines, follow)
    elif cli.paths.log.exists():
        shown = tail_command(cli.paths.log, lines, follow)
    else:
        raise CliError("There is no log yet.", hint="It begins when the daemon starts: pacerelle service install")
    try:
        code = subprocess.run(shown, check=False).returncode
    except FileNotFoundError as error:
        raise CliError(f"There is no `{shown[0]}` here to show the log with.") from error
    except KeyboardInterrupt:
        code = 0
    if code:
        raise CliError(f"`{' '.join(shown)}` ended with exit code {code}.")


for each in (install, uninstall, start, stop, restart, status, logs):
    service.add_command(each)


def look(cli: Cli) -> dict[str, Any]:
    """What `service status --json` shows. Raises CliError: it is not installed, or cannot be asked."""
    manager, found, files, current = _seen(cli)
    return _as_dict(manager, found, files, current=current)


def _seen(cli: Cli) -> tuple[Manager, Status, dict[Path, str], bool]:
    """The installed service, how it is, its files, and whether these are those of this version."""
    manager = _installed(cli)
    known = record.load(cli.paths.state)
    files = manager.files(_description(cli, known.environment if known else {}))
    return manager, manager.status(), files, all(_text(path) == text for path, text in files.items())


def _description(cli: Cli, environment: dict[str, str]) -> Daemon:
    words = [sys.executable, "-I", "-m", "pacerelled", "--store-root", os.fspath(cli.paths.state.parent)]
    if cli.socket:
        words += ["--socket", os.fspath(cli.paths.mcp_sock)]
    return Daemon(words, cli.paths.mcp_sock, cli.paths.control_sock, cli.paths.log, environment)


def _installed(cli: Cli) -> Manager:
    manager = find_manager(os.environ)
    files = manager.files(_description(cli, {}))
    if not any(path.exists() for path in files):
        raise CliError("The service is not installed.", hint="Install it with: pacerelle service install")
    _refuse_other_store(cli, files)
    return manager


def _refuse_other_store(cli: Cli, files: dict[Path, str]) -> None:
    """There is one service for each user; the sockets in its files tell whose store it serves."""
    for path, text in files.items():
        mine = [line for line in text.splitlines() if "control.sock" in line]
        there = _text(path)
        if there is not None and any(line not in there.splitlines() for line in mine):
            raise CliError(
                f"The service in {path} serves another store than {cli.paths.state.parent}.",
                hint="Uninstall it first, with the --store-root (and --socket) that it was installed with.",
            )


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _as_dict(manager: Manager, status: Status, files: dict[Path, str], *, current: bool) -> dict[str, Any]:
    return {"manager": manager.name, **asdict(status), "current": current, "files": [os.fspath(path) for path in files]}


def _report(cli: Cli, manager: Manager) -> None:
    found = manager.status()
    if cli.json:
        show.as_json({"service": {"manager": manager.name, **asdict(found)}})
    else:
        _print(manager, found)


def _print(manager: Manager, status: Status) -> None:
    parts = [status.state]
    if status.pid:
        parts.append(f"pid {status.pid}")
    if status.restarts:
        parts.append(f"restarted after a failure {status.restarts} times")
    when = "at boot" if status.linger else "at login"
    parts.append(f"starts {when}, by {manager.name}" if status.enabled else "does not start by itself")
    click.echo(f"pacerelled: {', '.join(parts)}")
    if status.linger is False:
        click.echo("It ends when you log out. To have it run from boot on, logged in or not: loginctl enable-linger")
        click.echo("(`pacerelle service install --linger` does that, and `uninstall` undoes it then).")


def _done(cli: Cli, text: str, **result: bool) -> None:
    if cli.json:
        show.as_json(result)
    else:
        click.echo(escape(text))
