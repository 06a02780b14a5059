"""The command: plays the story, then stays up for a real host if there is a person to use it."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import sys
from pathlib import Path

import click

from pacerelle_cli.context import command
from pacerelle_cli.errors import CliError
from pacerelle_cli.text import escape

from .errors import DemoFailed
from .screen import Screen
from .stage import Stage, stage
from .story import Running, play

INTERRUPTED = 130  # exit code, as of a shell's command that Ctrl-C ended


@command("demo", example="pacerelle demo\npacerelle demo --once")
@click.option("--once", is_flag=True, envvar="ONCE", help="Exit after the checks, also on a terminal. [env: ONCE]")
@click.pass_context
def demo(ctx: click.Context, once: bool) -> None:
    """Show a message go from a phone to a host and back.

    Starts a relay, a daemon, a phone and two hosts in a temporary home, on this machine alone. Exits with 0 if and only
    if all of it happened. On a terminal it then stays up, so that a real host can be attached.
    """
    stay = not once and sys.stdin.isatty() and sys.stdout.isatty()
    screen = Screen()
    if not asyncio.run(_on_stage(screen, stay=stay)):
        click.echo("Interrupted. Everything is stopped and removed.", err=True)
        ctx.exit(INTERRUPTED)
    screen.passed("Everything is stopped, and the temporary home is gone.")
    click.echo(f"\n{screen.checks} checks, and all of them passed.")


async def _on_stage(screen: Screen, *, stay: bool) -> bool:
    """Whether the story came to its end. Raises DemoFailed."""
    async with stage() as scene:
        showing = asyncio.create_task(_show(scene, screen, stay=stay))
        # A signal ends what is shown, in order; the cleaning up after it is not to be hindered by another.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, showing.cancel)
        await asyncio.wait([showing])
    return not showing.cancelled() and showing.result()


async def _show(scene: Stage, screen: Screen, *, stay: bool) -> bool:
    try:
        running = await play(scene, screen)
        explain(screen, running, stay=stay)
        if stay:
            await _until_ctrl_c(running)
    except DemoFailed:
        _show_logs(scene)
        raise
    return True


async def _until_ctrl_c(running: Running) -> None:
    """Raises DemoFailed if the relay ends before."""
    try:
        await running.relay.wait()
    except asyncio.CancelledError:
        click.echo()
        return
    raise DemoFailed("The relay has ended.")


def _show_logs(scene: Stage) -> None:
    for line in scene.last_words():
        click.echo(escape(line), err=True)


def explain(screen: Screen, running: Running, *, stay: bool) -> None:
    screen.heading("5. With a real host")
    if stay:
        screen.note("This agent lives until you press Ctrl-C here. To put into a host's configuration meanwhile:")
        env = running.host_env
    else:
        screen.note(
            "Run `pacerelle relay`, make an agent with `pacerelle chat`, and put this into a host's configuration with"
            " what that shows you (docs/hosts.md has each host's file):"
        )
        env = {
            "PACERELLE_AGENT_ID": "<the agent's id>",
            "PACERELLE_AGENT_TOKEN": "<the agent's token>",
            "PACERELLE_BASE_URL": "http://127.0.0.1:8787",
        }
    entry = {"mcpServers": {"pacerelle": {"command": _beside_python("pacerelle-mcp"), "args": [], "env": env}}}
    screen.verbatim(f"\n{json.dumps(entry, indent=2, ensure_ascii=False)}\n")
    if stay:
        pacerelle = shlex.quote(_beside_python("pacerelle"))
        screen.note("Ask the assistant to “start pacerelle” (its prompt), and write to it from the phone:")
        screen.verbatim(f"\n  {pacerelle} chat --home {shlex.quote(str(running.phone.home))}\n")
        screen.note("How the daemon is:")
        root = shlex.quote(running.host_env["PACERELLE_STORE_ROOT"])
        screen.verbatim(f"\n  {pacerelle} --store-root {root} status\n")
        screen.note("Ctrl-C ends it all and removes it; take the entry out of the host's configuration then.")


def _beside_python(name: str) -> str:
    """The absolute path of one of our commands. Raises CliError."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise CliError(f"`{name}` is not part of this installation.")
    return str(path)
