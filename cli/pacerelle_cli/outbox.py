"""`pacerelle outbox …`: replies that are not through, and what to do about them."""

from __future__ import annotations

from typing import Any

import click

from . import show
from .client import ANSWER_TIMEOUT, part
from .context import Cli, agent_option, command, json_option, pass_cli
from .send import finish, wait_option
from .text import escape, when

_TEXT = 40  # characters of a reply's text in the list


@click.group("outbox", epilog="\b\nExample:\n  pacerelle outbox list\n  pacerelle outbox retry MESSAGE_ID")
def outbox() -> None:
    """Replies that are queued, uncertain or failed: list them, send them again, give them up."""


@command("list", example="pacerelle outbox list\npacerelle outbox list --state uncertain --json")
@click.option(
    "--state",
    type=click.Choice(["queued", "sending", "uncertain", "failed", "dropped"]),
    help="Only these; else all that are neither submitted nor dropped.",
)
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="At most so many.")
@agent_option
@json_option
@pass_cli
def list_(cli: Cli, state: str | None, limit: int, agent_id: str) -> None:
    """Replies that are not through, oldest first."""
    body = cli.daemon.get(f"/v1/agents/{part(agent_id)}/replies", state=state or "open", limit=limit)
    if cli.json:
        show.as_json(body)
    elif body["replies"]:
        show.table(
            ["MESSAGE", "MADE", "STATE", "TRIED", "TO", "TEXT", "REASON"],
            [
                [
                    row["message_id"],
                    when(row["created_at"]),
                    row["state"],
                    row["attempts"],
                    row["to"],
                    _short(row["text"]),
                    row["reason"] or "",
                ]
                for row in body["replies"]
            ],
        )
    else:
        click.echo("The outbox is empty.")


@command("retry", example="pacerelle outbox retry MESSAGE_ID\npacerelle outbox retry MESSAGE_ID --wait 30")
@click.argument("message_id")
@wait_option
@agent_option
@json_option
@pass_cli
def retry(cli: Cli, message_id: str, wait: float, agent_id: str) -> None:
    """Send an uncertain or failed reply again: the same bytes under the same id, which a receiver takes once.

    One that is on its way, or that the relay has, stays as it is. Exit code 1 if it is failed or uncertain again.
    """
    finish(cli, _change(cli, agent_id, message_id, "retry", {"wait_s": wait}, wait))


@command("drop", example="pacerelle outbox drop MESSAGE_ID")
@click.argument("message_id")
@agent_option
@json_option
@pass_cli
def drop(cli: Cli, message_id: str, agent_id: str) -> None:
    """Give up a queued, uncertain or failed reply. A queued one is never sent; an uncertain one may have arrived."""
    reply = _change(cli, agent_id, message_id, "drop", {}, 0)
    if cli.json:
        show.as_json({"reply": reply})
    else:
        click.echo(f"{escape(message_id)}: {escape(reply['reason'])}")


outbox.add_command(list_)
outbox.add_command(retry)
outbox.add_command(drop)


def _change(cli: Cli, agent_id: str, message_id: str, what: str, body: dict[str, Any], wait: float) -> dict[str, Any]:
    path = f"/v1/agents/{part(agent_id)}/replies/{part(message_id)}/{what}"
    reply: dict[str, Any]
    _, reply = cli.daemon.call("POST", path, body=body, timeout=ANSWER_TIMEOUT + wait)
    return reply


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TEXT else line[: _TEXT - 1] + "…"
