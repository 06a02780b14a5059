"""`pacerelle host …`: the entry in a host's own file. Which hosts are attached now, `pacerelle hosts` shows."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from pacerelle_cli import show
from pacerelle_cli.context import Cli, command, json_option, pass_cli
from pacerelle_cli.errors import CliError, NotRunning
from pacerelle_cli.text import escape

from . import entry, formats
from .catalogue import HOSTS, Host
from .entry import Wanted
from .errors import BadHostFile, HostFailed
from .settings import Settings

CHANNEL_COMMAND = "claude --dangerously-load-development-channels server:pacerelle"

_name = click.argument("name", metavar="HOST", type=click.Choice(list(HOSTS)))
_file = click.option(
    "--file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Another file of this host, such as a project's.",
)


@click.group(
    "host",
    epilog="\b\nExample:\n  pacerelle host install claude-code\n  pacerelle host list\n\n"
    f"Hosts: {', '.join(HOSTS)}. Those that are attached now: pacerelle hosts",
)
def host() -> None:
    """Put Pacerelle into an MCP host's settings, see which have it, and try it there."""


@command("install", example="pacerelle host install claude-code\npacerelle host install codex --agent AGENT_ID --print")
@_name
@click.option("--agent", "agent_id", metavar="AGENT_ID", help="Which agent; not needed when there is only one.")
@_file
@click.option("--channel", is_flag=True, help="Claude Code only: push requests into its session (docs/events.md).")
@click.option("--print", "only_print", is_flag=True, help="Show the entry and the file, and write nothing.")
@click.option("--uninstall", is_flag=True, help="Take the entry out again.")
@json_option
@pass_cli
def install(
    cli: Cli, name: str, agent_id: str | None, file: Path | None, channel: bool, only_print: bool, uninstall: bool
) -> None:
    """Write the entry that starts Pacerelle into a host's own file.

    HOST is one of claude-desktop, claude-code, codex, cursor, vscode, zed, gemini, goose. All else in the file stays as
    it is, and a copy of it is kept beside it. The entry has no token: the daemon has it.
    """
    if uninstall and (only_print or agent_id or channel):
        raise click.UsageError("--uninstall goes with neither --print nor --agent nor --channel.")
    if channel and name != "claude-code":
        raise click.UsageError("--channel is for claude-code: other hosts have no channels.")
    chosen = HOSTS[name]
    path = _path(chosen, file)
    wanted = _wanted(cli, agent_id, ("--channel",) if channel else ())
    if only_print:
        _print(cli, chosen, path, wanted)
    elif uninstall:
        _uninstall(cli, chosen, path)
    else:
        _install(cli, chosen, path, wanted, agent_id)


@command("list", example="pacerelle host list\npacerelle host list --json")
@json_option
@pass_cli
def list_(cli: Cli) -> None:
    """Which hosts have the entry, in which file.

    \b
    current        it runs this installation
    outdated       it runs another installation: install it again
    other command  an entry of this name runs something else
    absent         there is none
    unreadable     the file cannot be read; the reason is below the table
    """
    rows = survey(cli)
    if cli.json:
        show.as_json({"hosts": rows})
        return
    show.table(
        ["HOST", "ENTRY", "INSTALLED", "FILE"],
        [[row["host"], row["state"], "yes" if row["installed"] else "not seen", row["file"]] for row in rows],
    )
    for row in rows:
        if row["reason"]:
            show.wrapped(escape(row["reason"]))


@command("test", example="pacerelle host test claude-code")
@_name
@_file
@json_option
@pass_cli
def test(cli: Cli, name: str, file: Path | None) -> None:
    """Start a host's entry as the host does, and list its tools.

    It gets as little of your environment as from the host. Like the host, this starts the daemon if none runs.
    """
    from . import trial

    chosen = HOSTS[name]
    path = _path(chosen, file)
    found = Settings(chosen, path).found
    words = entry.command_line(chosen, found)
    if not words:
        raise HostFailed(
            f"{chosen.title} has no entry {'that runs a command ' if found is not None else ''}in {path}.",
            hint=f"Write it with: pacerelle host install {name}",
        )
    done = trial.run(words, chosen.environment(os.environ) | entry.environment(chosen, found))
    if cli.json:
        show.as_json(
            {
                "host": name,
                "file": str(path),
                "server": done.server,
                "tools": [tool.get("name") for tool in done.tools],
                "initialize_s": round(done.initialized, 3),
                "tools_list_s": round(done.listed, 3),
            }
        )
        return
    server = " ".join(str(done.server.get(field, "")) for field in ("name", "version"))
    click.echo(f"{escape(server)} answered after {done.initialized:.2f} s, with its tools after {done.listed:.2f} s:")
    show.table(["TOOL", "TITLE"], [[tool.get("name", ""), tool.get("title") or ""] for tool in done.tools])


host.add_command(install)
host.add_command(list_)
host.add_command(test)


def survey(cli: Cli) -> list[dict[str, Any]]:
    """What `host list --json` shows of each host."""
    wanted = _wanted(cli, None)
    return [_row(each, wanted) for each in HOSTS.values()]


def _wanted(cli: Cli, agent_id: str | None, flags: tuple[str, ...] = ()) -> Wanted:
    """With the places that this command line was given, since hosts do not pass on the variables of a terminal."""
    root = cli.store_root or os.environ.get("PACERELLE_STORE_ROOT")
    return Wanted.here(
        agent_id=agent_id,
        store_root=str(cli.paths.state.parent) if root else None,
        socket=str(cli.paths.mcp_sock) if cli.socket else None,
        flags=flags,
    )


def _path(chosen: Host, file: Path | None) -> Path:
    return Path(os.path.abspath(file)) if file else chosen.file(os.environ)


def _row(chosen: Host, wanted: Wanted) -> dict[str, Any]:
    path = chosen.file(os.environ)
    try:
        state, reason = entry.state(chosen, Settings(chosen, path).found, wanted), ""
    except BadHostFile as error:
        state, reason = "unreadable", error.message
    installed = chosen.is_installed(os.environ)
    return {"host": chosen.key, "file": str(path), "state": state, "installed": installed, "reason": reason}


def _print(cli: Cli, chosen: Host, path: Path, wanted: Wanted) -> None:
    text = formats.put(chosen.format, "", chosen.where, entry.fresh(chosen, wanted))
    if cli.json:
        show.as_json({"host": chosen.key, "file": str(path), "text": text})
    else:
        click.echo(f"For {escape(str(path))}:", err=True)
        click.echo(text, nl=False)


def _uninstall(cli: Cli, chosen: Host, path: Path) -> None:
    settings = Settings(chosen, path)
    there = settings.found is not None
    backup = settings.uninstall() if there else None
    if cli.json:
        show.as_json({"host": chosen.key, "file": str(path), "changed": there, "backup": _text(backup)})
    elif not there:
        click.echo(f"{chosen.title} has no entry in {escape(str(path))}: there is nothing to remove.")
    else:
        click.echo(f"Removed the entry from {escape(str(path))}.")
        click.echo(f"The file as it was: {escape(str(backup))}")
        click.echo(chosen.restart)


def _install(cli: Cli, chosen: Host, path: Path, wanted: Wanted, agent_id: str | None) -> None:
    settings = Settings(chosen, path)
    before = entry.state(chosen, settings.found, wanted)
    installed = chosen.is_installed(os.environ)
    backup = settings.install(wanted) if before != entry.CURRENT else None
    advice = _advice(cli, agent_id or entry.agent_of(chosen, settings.found))
    if wanted.flags:
        advice.append(f"Start it with its channel: {CHANNEL_COMMAND}")
    if cli.json:
        show.as_json(
            {
                "host": chosen.key,
                "file": str(path),
                "changed": before != entry.CURRENT,
                "before": before,
                "backup": _text(backup),
                "installed": installed,
                "restart": chosen.restart,
                "advice": advice,
            }
        )
        return
    shown = escape(str(path))
    if before == entry.CURRENT:
        click.echo(f"{chosen.title} has the entry already: {shown} was not changed.")
    else:
        click.echo(f"{'Added the entry to' if before == entry.ABSENT else 'Updated the entry in'} {shown}.")
    if backup:
        click.echo(f"The file as it was: {escape(str(backup))}")
    if not installed:
        click.echo(f"{chosen.title} was not found on this machine; it will find the entry there.")
    for line in (chosen.restart, f"Try it first with: pacerelle host test {chosen.key}", *advice):
        click.echo(escape(line))


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _advice(cli: Cli, agent_id: str | None) -> list[str]:
    """What is still to be done about the agent, as far as a running daemon can tell."""
    wanted = agent_id or "AGENT_ID"
    try:
        agents = cli.daemon.get("/v1/agents")["agents"]
    except NotRunning:
        return [f"The daemon does not run, so it cannot be told whether it has the agent: pacerelle agent add {wanted}"]
    except CliError as error:
        return [f"It could not be told whether the daemon has the agent: {error.message}"]
    known = [row for row in agents if agent_id in (None, row["agent_id"])]
    if not known:
        return [
            f"The daemon does not know {'the agent' if agent_id else 'any agent'} yet: pacerelle agent add {wanted}"
        ]
    if len(known) > 1:
        return ["The daemon has several agents: say which one this host is for, with --agent AGENT_ID."]
    if known[0]["login"] != "ok":
        return [f"The daemon needs the agent's token: pacerelle agent token {known[0]['agent_id']}"]
    return []
