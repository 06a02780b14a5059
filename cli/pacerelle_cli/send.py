"""`pacerelle send`."""

from __future__ import annotations

import os
import stat
import sys
from typing import Any, BinaryIO

import click

from . import show
from .client import ANSWER_TIMEOUT, FILE_TIMEOUT, part
from .context import Cli, agent_option, command, json_option, pass_cli
from .errors import CliError
from .text import escape

_MAX_FILE = 64 * 1024 * 1024  # bytes; docs/local-protocol.md


wait_option = click.option(
    "--wait",
    metavar="SECONDS",
    type=click.FloatRange(0, 3600),
    default=5.0,
    show_default=True,
    help="How long to wait until the relay has it.",
)


@command(
    "send",
    example="pacerelle send 'Done: see the branch' --reply-to MESSAGE_ID\n"
    "git log -3 | pacerelle send - --to USER_ID\n"
    "pacerelle send 'The chart' --file chart.png --reply-to MESSAGE_ID\n"
    """pacerelle send --widget '{"kind": "confirm", "spec": {"prompt": "Deploy?"}}'""",
)
@click.argument("text", required=False)
@click.option("--reply-to", metavar="MESSAGE_ID", help="Answer this request: goes where it came from.")
@click.option("--conversation", metavar="ID", help="Send into this conversation.")
@click.option("--to", metavar="ID", help="Send to this person.")
@click.option("--file", "path", metavar="PATH", type=click.Path(exists=True, dir_okay=False), help="Send this file.")
@click.option("--widget", metavar="JSON", help="Send this widget instead of a text.")
@wait_option
@agent_option
@json_option
@pass_cli
def send(
    cli: Cli,
    text: str | None,
    reply_to: str | None,
    conversation: str | None,
    to: str | None,
    path: str | None,
    widget: str | None,
    wait: float,
    agent_id: str,
) -> None:
    """Send TEXT (`-`: standard input), a file, or a widget.

    What was stored is sent even if the relay is offline now: `queued` goes out later and is no failure. Exit code 1
    if it failed, or if its link ended before the relay confirmed it (`uncertain`). Starts the daemon if it is not
    running.
    """
    if widget is not None and (path or text is not None):
        raise click.UsageError("--widget goes without TEXT and --file.")
    if text is None and path is None and widget is None:
        raise click.UsageError("Give a TEXT, --file or --widget.")
    if text == "-":
        text = _standard_input()
    route = {"source_message_id": reply_to, "conversation_id": conversation, "to": to, "wait_s": wait}
    base = f"/v1/agents/{part(agent_id)}"
    daemon = cli.started_daemon()
    if path is not None:
        query = {"name": os.path.basename(path), "text": text, **route}
        with _file(path) as file:
            _, reply = daemon.call("POST", f"{base}/files", query=query, body=file, timeout=FILE_TIMEOUT + wait)
    else:
        content = {"text": text, "reply_to_message_id": reply_to} if widget is None else {"widget": widget}
        _, reply = daemon.call("POST", f"{base}/messages", body={**content, **route}, timeout=4 * ANSWER_TIMEOUT + wait)
    finish(cli, reply)


def finish(cli: Cli, reply: dict[str, Any]) -> None:
    """Shows what became of a reply. Raises CliError if nobody can be sure that it left."""
    if cli.json:
        show.as_json({"reply": reply})
    else:
        click.echo(_outcome(reply))
    if reply["state"] in ("failed", "uncertain"):
        raise CliError(
            f"{reply['message_id']} is {reply['state']}: {reply['reason'] or 'no reason given'}.",
            hint=f"To send it again: pacerelle outbox retry {reply['message_id']}",
        )


def _file(path: str) -> BinaryIO:
    file = open(path, "rb")  # noqa: SIM115 - the caller closes it
    about = os.fstat(file.fileno())
    if stat.S_ISREG(about.st_mode) and about.st_size <= _MAX_FILE:
        return file
    file.close()
    raise CliError(f"{path} is not a regular file of at most {_MAX_FILE >> 20} MiB.")


def _standard_input() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise CliError("Standard input is not UTF-8 text.", hint="Send it with --file.") from None


def _outcome(reply: dict[str, Any]) -> str:
    explained = {
        "queued": "queued; it goes out as soon as the relay is reachable",
        "sending": "on its way; the relay has not confirmed it yet",
        "submitted": "the relay has it",
    }
    widget = f" (widget {reply['widget_id']})" if reply["widget_id"] else ""
    return escape(f"{reply['message_id']}{widget} to {reply['to']}: {explained.get(reply['state'], reply['state'])}")
