"""`pacerelle` itself: the global options, and a list of commands that are imported when they are called.

The list has each command's one line of help, so that `pacerelle --help` imports none of them.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, Final

import click

from .context import Cli
from .errors import CliError
from .show import forgive

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS: Final = {
    "status": ("pacerelle_cli.status:status", "Is everything well? Agents, connections, hosts."),
    "agent": ("pacerelle_cli.agents:agent", "Add, list and remove agents; set their tokens."),
    "inbox": ("pacerelle_cli.messages:inbox", "Requests that wait for work."),
    "history": ("pacerelle_cli.messages:history", "Recent requests and replies."),
    "send": ("pacerelle_cli.send:send", "Send a message, a file or a widget."),
    "outbox": ("pacerelle_cli.outbox:outbox", "Replies that are not through: list, retry, drop."),
    "done": ("pacerelle_cli.messages:done", "Mark a request processed."),
    "release": ("pacerelle_cli.messages:release", "Take a request away from the host that holds it."),
    "save": ("pacerelle_cli.save:save", "Save a request's attachments to a folder."),
    "host": ("pacerelle_cli.hosts:host", "Put Pacerelle into a host's settings, and try it there."),
    "hosts": ("pacerelle_cli.status:hosts", "MCP hosts that are attached now."),
    "token": ("pacerelle_cli.tokens:token", "Who is let in over HTTP: create, list, revoke."),
    "devices": ("pacerelle_cli.devices:devices", "People's devices: compare codes, trust, block."),
    "allow": ("pacerelle_cli.allow:allow", "Whose messages an agent takes."),
    "quarantine": ("pacerelle_cli.quarantine:quarantine", "Inbound messages that could not be accepted."),
    "login": ("pacerelle_cli.keys:login", "Give an agent its token."),
    "logout": ("pacerelle_cli.keys:logout", "Forget an agent's token, and disconnect."),
    "keys": ("pacerelle_cli.keys:keys", "Where the store's key and the tokens are."),
    "rekey": ("pacerelle_cli.keys:rekey", "Give the store a new key."),
    "backup": ("pacerelle_cli.backup:backup", "Write the store to one file, sealed with a passphrase."),
    "restore": ("pacerelle_cli.backup:restore", "Put the store of a backup into place."),
    "export": ("pacerelle_cli.export:export", "Write all messages as JSON Lines."),
    "paseo": ("pacerelle_cli.paseo:paseo", "The coding agents that Paseo runs on this machine."),
    "store": ("pacerelle_cli.store:store", "The store, when something is wrong with it."),
    "service": ("pacerelle_cli.service.commands:service", "The daemon as a service: install, start, stop, logs."),
    "events": ("pacerelle_cli.events:events", "What happened, and what happens."),
    "wake": ("pacerelle_cli.wake:wake", "A command that wakes your assistant."),
    "webhook": ("pacerelle_cli.webhooks:webhook", "Events as signed POSTs to a program of yours."),
    "doctor": ("pacerelle_cli.doctor.command:doctor", "Look whether all is well, and what to do where not."),
    "log": ("pacerelle_cli.log:log", "How much the daemon logs."),
    "stop": ("pacerelle_cli.process:stop", "Stop the daemon."),
    "paths": ("pacerelle_cli.process:paths", "Files and sockets of the daemon."),
    "chat": ("pacerelle_phone.cli:chat", "A person's device in this terminal."),
    "relay": ("pacerelle_relay.cli:relay", "Run a relay of your own."),
    "demo": ("pacerelle_cli.demo:demo", "Show a message go from a phone to a host and back."),
    "completion": ("pacerelle_cli.completion:completion", "Completion of commands in your shell."),
    "man": ("pacerelle_cli.man.command:man", "Write the manual pages."),
    "version": ("pacerelle_cli.process:version", "This program's version."),
}


class LazyGroup(click.Group):
    def invoke(self, ctx: click.Context) -> Any:
        """As click's, with our errors among those that are shown."""
        try:
            return super().invoke(ctx)
        except CliError as error:
            error.show()
            return ctx.exit(error.exit_code)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, name = COMMANDS[cmd_name][0].partition(":")
        try:
            found: click.Command = getattr(importlib.import_module(module), name)
        except ModuleNotFoundError as error:
            if error.name is None or not module.startswith(error.name):
                raise
            raise CliError(f"`pacerelle {cmd_name}` is not part of this installation.") from error
        return found

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the list, since click would import every command for its help."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=text) for name, (_, text) in COMMANDS.items() if name.startswith(incomplete)
        ]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nExample:\n  pacerelle status\n  pacerelle send 'On my way' --reply-to MESSAGE_ID",
)
@click.option(
    "--store-root",
    metavar="FOLDER",
    help="Where the daemon keeps its store. [env: PACERELLE_STORE_ROOT; default: ~/.pacerelle/mcp]",
)
@click.option("--socket", metavar="PATH", help="The daemon's mcp.sock, if it is not in the store's folder.")
@click.option("--json", is_flag=True, help="Print JSON with a version field instead of text.")
@click.version_option(package_name="pacerelled", prog_name="pacerelle", message="%(prog)s %(version)s")
@click.pass_context
def root(ctx: click.Context, store_root: str | None, socket: str | None, json: bool) -> None:
    """Talk to pacerelled: hand work to your AI assistant, see what waits, answer."""
    ctx.obj = Cli(store_root, socket, json)
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    forgive()
