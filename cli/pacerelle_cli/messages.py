"""`pacerelle inbox`, `history`, `done` and `release`."""

from __future__ import annotations

import json
from typing import Any

import click

from . import show
from .client import part
from .context import Cli, agent_option, command, json_option, pass_cli
from .text import escape, escape_lines, size, when

_limit = click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="At most so many.")


@command("inbox", example="pacerelle inbox\npacerelle inbox --all --limit 10")
@click.option("--all", "every", is_flag=True, help="Also those that were processed.")
@_limit
@agent_option
@json_option
@pass_cli
def inbox(cli: Cli, every: bool, limit: int, agent_id: str) -> None:
    """Requests that wait for work, newest last."""
    state = "all" if every else "pending"
    body = cli.daemon.get(f"/v1/agents/{part(agent_id)}/inbox", state=state, limit=limit)
    if cli.json:
        show.as_json(body)
        return
    if body["has_more"]:
        click.echo(f"(There are older ones: pacerelle inbox --limit {min(limit * 2, 500)})")
    for message in body["messages"]:
        _show_request(message)
    if not body["messages"]:
        click.echo("The inbox is empty." if every else "Nothing waits.")


@command("history", example="pacerelle history --limit 10\npacerelle history --conversation CONVERSATION_ID")
@click.option("--conversation", metavar="ID", help="Only this conversation.")
@_limit
@agent_option
@json_option
@pass_cli
def history(cli: Cli, conversation: str | None, limit: int, agent_id: str) -> None:
    """Recent requests and replies, oldest first; at most --limit of each."""
    body = cli.daemon.get(f"/v1/agents/{part(agent_id)}/history", conversation_id=conversation, limit=limit)
    if cli.json:
        show.as_json(body)
        return
    entries = [(row["received_at"], _show_request, row) for row in body["requests"]]
    entries += [(row["created_at"], _show_reply, row) for row in body["replies"]]
    for _, show_entry, row in sorted(entries, key=lambda entry: entry[0]):
        show_entry(row)
    if not entries:
        click.echo("No history yet.")


@command("done", example="pacerelle done MESSAGE_ID --note 'Answered by phone'")
@click.argument("message_id")
@click.option("--note", help="Why or how, for the history (at most 2,000 characters).")
@agent_option
@json_option
@pass_cli
def done(cli: Cli, message_id: str, note: str | None, agent_id: str) -> None:
    """Mark a request processed, so that no host gets it any more."""
    path = f"/v1/agents/{part(agent_id)}/inbox/{part(message_id)}/processed"
    _, body = cli.daemon.call("POST", path, body={"note": note})
    if cli.json:
        show.as_json({"request": body})
    else:
        click.echo(f"{escape(message_id)} is processed.")


@command("release", example="pacerelle release MESSAGE_ID")
@click.argument("message_id")
@agent_option
@json_option
@pass_cli
def release(cli: Cli, message_id: str, agent_id: str) -> None:
    """Take a request away from the host that holds it: the next one that waits gets it."""
    path = f"/v1/agents/{part(agent_id)}/inbox/{part(message_id)}/release"
    _, body = cli.daemon.call("POST", path, body={})
    if cli.json:
        show.as_json({"request": body})
    else:
        click.echo(f"{escape(message_id)} is free: the next host that waits gets it.")


def _show_request(row: dict[str, Any]) -> None:
    notes = []
    if row["claim"]:
        notes.append(f"held by {row['claim']['label']}")
    if row.get("processed_at"):
        notes.append(f"processed: {row['note']}" if row.get("note") else "processed")
    if row["sender"]["verified"]:
        notes.append("verified")
    if not row["sender"]["authorized"]:
        notes.append("NOT AUTHORIZED: no host gets it")
    if not row["encrypted"]:
        notes.append("NOT ENCRYPTED")
    place = f"group {row['conversation_id']}" if row["group"] else row["conversation_id"]
    _heading(row, f"from {row['from']} in {place}", row["received_at"], notes)
    for name in ("widget_response", "widget_update"):
        if row.get(name) is not None:
            click.echo(f"  {name.replace('_', ' ')}: {json.dumps(row[name])}")
    if row["text"] or row["kind"] == "text":
        _indented(row["text"])
    for file in row["attachments"]:
        about = f"{file['id']}  {file['name']} ({file['mime']}, {size(file['size'])})"
        click.echo(f"  attachment {escape(about)}")


def _show_reply(row: dict[str, Any]) -> None:
    state = row["state"] + (f": {row['reason']}" if row["reason"] else "")
    _heading(row, f"to {row['to']} in {row['conversation_id']}", row["created_at"], [state])
    if row["kind"] != "text":
        click.echo(f"  {row['kind'].replace('_', ' ')} {escape(row['widget_id'] or '')}".rstrip())
    if row["text"] or row["kind"] == "text":
        _indented(row["text"])


def _heading(row: dict[str, Any], who: str, stamp: str, notes: list[str]) -> None:
    parts = [click.style(escape(row["message_id"]), bold=True), escape(who), when(stamp), *map(escape, notes)]
    click.echo(" · ".join(parts))


def _indented(text: str) -> None:
    for line in escape_lines(text):
        click.echo(f"  {line}")
