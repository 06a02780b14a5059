"""`pacerelle wake …`: the command that is started when a request waits and no session listens."""

from __future__ import annotations

import os
import shlex
import shutil
from typing import Any

import click

from . import show
from .client import ANSWER_TIMEOUT, part
from .context import Cli, agent_option, command, json_option, pass_cli
from .errors import CliError
from .text import duration, escape_lines, when

_PROMPT = (
    "A request waits in Pacerelle. Read get_status and get_checkpoints of the Pacerelle server, then call"
    " wait_for_messages and handle each request that you are handed: do the work, answer with its message_id as"
    " sourceMessageId, and call mark_processed. Wait again after each; stop when a wait of 25 seconds brings nothing."
)
RECIPES = {
    "claude-code": ["claude", "-p", _PROMPT, "--allowedTools", "mcp__pacerelle"],
    "codex": ["codex", "exec", "--skip-git-repo-check", _PROMPT],
    "paseo": ["paseo", "run", _PROMPT],
    "notification": ["notify-send", "Pacerelle", "A request waits, and no assistant listens."],
}
"""What `--recipe` sets; docs/wake.md says what each needs."""


@click.group("wake", epilog="\b\nExample:\n  pacerelle wake set --recipe claude-code\n  pacerelle wake off")
def wake() -> None:
    """Start a command when a request waits and no session listens. Off until you set one (docs/wake.md)."""


@command(
    "set",
    example="pacerelle wake set --recipe claude-code --cwd ~/work\n"
    "pacerelle wake set --after 60 --per-day 5 -- notify-send Pacerelle 'A request waits'",
)
@click.option("--recipe", type=click.Choice(list(RECIPES)), help="A ready-made command instead of one of your own.")
@click.option("--after", "after_s", type=click.FloatRange(0), metavar="SECONDS", help="How long it waits first (30).")
@click.option("--max", "max_s", type=click.FloatRange(1), metavar="SECONDS", help="How long a run may take (1800).")
@click.option("--cooldown", "cooldown_s", type=click.FloatRange(0), metavar="SECONDS", help="Between runs (60).")
@click.option("--per-day", type=click.IntRange(1), metavar="N", help="How many runs a day (20).")
@click.option(
    "--cwd", type=click.Path(exists=True, file_okay=False, resolve_path=True), help="Folder it runs in (home)."
)
@click.argument("words", metavar="-- COMMAND…", nargs=-1, type=click.UNPROCESSED)
@agent_option
@json_option
@pass_cli
def set_(cli: Cli, /, recipe: str | None, words: tuple[str, ...], agent_id: str, **limits: Any) -> None:
    """Set an agent's command, and turn it on. No shell is between: give the program and its arguments.

    It finds ids in its environment (PACERELLE_MESSAGE_ID and others), and never the text of a message.
    """
    if bool(recipe) == bool(words):
        raise CliError("Give a command after --, or --recipe.", hint="See: pacerelle wake set --help")
    argv = RECIPES[recipe] if recipe else list(words)
    program = shutil.which(argv[0])
    if program is None:
        raise CliError(f"The program {argv[0]} is not found.", hint="Give its whole path.")
    body = {"command": [os.path.abspath(program), *argv[1:]], "path": os.environ.get("PATH"), **limits}
    _, found = cli.daemon.call("PUT", f"/v1/agents/{part(agent_id)}/wake", body=body)
    _show(cli, found)


@command("show", example="pacerelle wake show")
@agent_option
@json_option
@pass_cli
def show_(cli: Cli, agent_id: str) -> None:
    """What is set."""
    _show(cli, cli.daemon.get(f"/v1/agents/{part(agent_id)}/wake"))


@command("on", example="pacerelle wake on")
@agent_option
@json_option
@pass_cli
def on(cli: Cli, agent_id: str) -> None:
    """Turn on again what is set."""
    _show(cli, cli.daemon.call("POST", f"/v1/agents/{part(agent_id)}/wake/on", body={})[1])


@command("off", example="pacerelle wake off")
@agent_option
@json_option
@pass_cli
def off(cli: Cli, agent_id: str) -> None:
    """Start nothing from now on. What runs is not ended."""
    _show(cli, cli.daemon.call("POST", f"/v1/agents/{part(agent_id)}/wake/off", body={})[1])


@command("remove", example="pacerelle wake remove")
@agent_option
@json_option
@pass_cli
def remove(cli: Cli, agent_id: str) -> None:
    """Forget the command."""
    cli.daemon.call("DELETE", f"/v1/agents/{part(agent_id)}/wake")
    _show(cli, {"wake": None})


@command("test", example="pacerelle wake test --wait 60")
@click.option(
    "--wait", type=click.FloatRange(0, 3600), default=30.0, show_default=True, help="Seconds to wait for its end."
)
@agent_option
@json_option
@pass_cli
def test(cli: Cli, wait: float, agent_id: str) -> None:
    """Start the command now, and show what came of it. Exit code 1 if it failed."""
    path = f"/v1/agents/{part(agent_id)}/wake/test"
    _, body = cli.daemon.call("POST", path, body={"wait_s": wait}, timeout=ANSWER_TIMEOUT + wait)
    _run(cli, body)
    run = body["run"]
    if run["state"] not in ("running", "exited") or run["exit_code"]:
        raise SystemExit(1)


@command("log", example="pacerelle wake log\npacerelle wake log RUN_ID")
@click.argument("run_id", required=False)
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="At most so many.")
@agent_option
@json_option
@pass_cli
def log(cli: Cli, run_id: str | None, limit: int, agent_id: str) -> None:
    """The last runs; or one of them, with the beginning of its output."""
    path = f"/v1/agents/{part(agent_id)}/wake/runs"
    if run_id is not None:
        _run(cli, cli.daemon.get(f"{path}/{part(run_id)}"))
        return
    body = cli.daemon.get(path, limit=limit)
    if cli.json:
        show.as_json(body)
    elif body["runs"]:
        show.table(
            ["RUN", "STARTED", "REASON", "STATE", "EXIT CODE", "TOOK"],
            [
                [
                    run["id"],
                    when(run["started_at"]),
                    run["reason"],
                    run["state"],
                    _code(run),
                    "" if run["duration_s"] is None else duration(run["duration_s"]),
                ]
                for run in body["runs"]
            ],
        )
    else:
        click.echo("The command has not run yet.")


for _each in (set_, show_, on, off, remove, test, log):
    wake.add_command(_each)


def _show(cli: Cli, body: dict[str, Any]) -> None:
    if cli.json:
        show.as_json(body)
    elif body["wake"] is None:
        click.echo("No command is set.")
    else:
        found = body["wake"]
        show.wrapped(f"{'On' if found['on'] else 'Off'}: {shlex.join(found['command'])}")
        click.echo(
            f"after {duration(found['after_s'])}, at most {duration(found['max_s'])},"
            f" {duration(found['cooldown_s'])} between runs, {found['per_day']} a day, in {found['cwd'] or 'the home'}"
        )


def _run(cli: Cli, body: dict[str, Any]) -> None:
    run = body["run"]
    if cli.json:
        show.as_json(body)
        return
    click.echo(f"{run['id']}: {run['state']}{f', exit code {_code(run)}' if _code(run) else ''}", err=True)
    for line in escape_lines(run["output"].rstrip("\n")):
        click.echo(line)


def _code(run: dict[str, Any]) -> str:
    if run["signal"] is not None:
        return f"signal {run['signal']}"
    return "" if run["exit_code"] is None else str(run["exit_code"])
