"""`pacerelle quarantine …`: inbound messages that could not be accepted, or wait for a decision."""

from __future__ import annotations

import click

from . import show
from .client import part
from .context import Cli, agent_option, command, json_option, pass_cli
from .text import escape, escape_lines, size, when

_WAIT = 60.0  # seconds: a retry may ask the relay for the keys of groups

_reason = click.option("--reason", metavar="REASON", help="Those with this reason.")
_number = click.argument("number", metavar="[ID]", type=click.IntRange(1), required=False)


@click.group("quarantine", epilog="\b\nExample:\n  pacerelle quarantine list\n  pacerelle quarantine show 7")
def quarantine() -> None:
    """Inbound messages that could not be accepted, or wait for your decision, with the reason."""


@command("list", example="pacerelle quarantine list\npacerelle quarantine list --reason not_allowed")
@_reason
@agent_option
@json_option
@pass_cli
def list_(cli: Cli, reason: str | None, agent_id: str) -> None:
    """What is in quarantine, oldest first."""
    body = cli.daemon.get(f"/v1/agents/{part(agent_id)}/quarantine", reason=reason)
    if cli.json:
        show.as_json(body)
        return
    if not body["quarantine"]:
        click.echo("Nothing is in quarantine.")
        return
    show.table(
        ["ID", "ARRIVED", "REASON", "DETAIL", "FROM", "MESSAGE", "SIZE"],
        [
            [
                row["id"],
                when(row["at"]),
                row["reason"],
                row["detail"] or "",
                row.get("sender") or "",
                row.get("message_id") or "",
                size(row["size"]),
            ]
            for row in body["quarantine"]
        ],
    )


@command("show", example="pacerelle quarantine show 7\npacerelle quarantine show 7 --text")
@click.argument("number", metavar="ID", type=click.IntRange(1))
@click.option("--text", is_flag=True, help="Also what it says, if it was decrypted.")
@agent_option
@json_option
@pass_cli
def show_(cli: Cli, number: int, text: bool, agent_id: str) -> None:
    """Reason and routing of one message."""
    body = cli.daemon.get(f"/v1/agents/{part(agent_id)}/quarantine/{number}", text=text)
    if cli.json:
        show.as_json({"message": body})
        return
    for name, value in (
        ("reason", body["reason"]),
        ("detail", body["detail"]),
        ("from", body["sender"]),
        ("device", body["device_id"]),
        ("conversation", body["conversation_id"]),
        ("message", body["message_id"]),
        ("arrived", when(body["at"])),
        ("came", f"{body['times']} times" if body["times"] > 1 else "once"),
        ("size", size(body["size"])),
        ("decrypted", "yes" if body["decrypted"] else "no"),
    ):
        click.echo(f"{name}: {escape(str(value)) if value else '-'}")
    if text:
        click.echo()
        for line in escape_lines(body["text"]) if body["text"] is not None else ["(It was not decrypted.)"]:
            click.echo(f"  {line}")


@command("retry", example="pacerelle quarantine retry 7\npacerelle quarantine retry --all")
@_number
@_reason
@click.option("--all", "every", is_flag=True, help="All of them.")
@agent_option
@json_option
@pass_cli
def retry(cli: Cli, number: int | None, reason: str | None, every: bool, agent_id: str) -> None:
    """Try again to accept messages, oldest first. Those that are accepted become requests."""
    if sum((number is not None, reason is not None, every)) != 1:
        raise click.UsageError("Name one message, or --reason, or --all.")
    fields = {"id": number, "reason": reason}
    _, body = cli.daemon.call("POST", f"/v1/agents/{part(agent_id)}/quarantine/retry", body=fields, timeout=_WAIT)
    if cli.json:
        show.as_json(body)
    else:
        click.echo(f"Requests now: {body['accepted']}. Still in quarantine: {body['left']}.")


@command("drop", example="pacerelle quarantine drop 7\npacerelle quarantine drop --from USER_ID --yes")
@_number
@_reason
@click.option("--from", "sender", metavar="USER", help="Those of this person.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@agent_option
@json_option
@pass_cli
def drop(cli: Cli, number: int | None, reason: str | None, sender: str | None, yes: bool, agent_id: str) -> None:
    """Delete messages from quarantine, for ever; the relay does not bring them again."""
    if (number is None) == (reason is None and sender is None):
        raise click.UsageError("Name one message, or --reason or --from (or both).")
    if not yes:
        which = f"message {number}" if number is not None else "these messages"
        click.confirm(f"Delete {which} from quarantine for ever?", abort=True, err=True)
    fields = {"id": number, "reason": reason, "sender": sender}
    _, body = cli.daemon.call("POST", f"/v1/agents/{part(agent_id)}/quarantine/drop", body=fields)
    if cli.json:
        show.as_json(body)
    else:
        click.echo(f"Dropped: {body['dropped']}.")


for _each in (list_, show_, retry, drop):
    quarantine.add_command(_each)
