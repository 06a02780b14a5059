"""`pacerelle devices …`: whose identity key is known how well, and deciding about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from . import show
from .client import part
from .context import Cli, agent_option, command, json_option, pass_cli
from .errors import CliError
from .text import escape, when

_WAIT = 60.0  # seconds: what was held is taken before the answer, which may mean asking the relay for a group's keys

_user = click.argument("user")
_device = click.argument("device", required=False)
_code = click.option("--code", metavar="CODE", help="The safety code that you compared; then nothing is asked.")


@click.group("devices", epilog="\b\nExample:\n  pacerelle devices list\n  pacerelle devices verify USER_ID")
def devices() -> None:
    """People's devices, with the safety codes of their identity keys."""


@command("list", example="pacerelle devices list")
@agent_option
@json_option
@pass_cli
def list_(cli: Cli, agent_id: str) -> None:
    """Each person's devices with their safety codes, to compare with what the devices show."""
    body = cli.daemon.get(f"/v1/agents/{part(agent_id)}/devices")
    if cli.json:
        show.as_json(body)
        return
    if not body["devices"]:
        click.echo("Nobody has written yet.")
        return
    show.table(
        ["PERSON", "DEVICE", "STATE", "HELD", "FIRST SEEN", "LAST SEEN"],
        [
            [row["user_id"], row["device_id"] or "-", row["state"], row["held"], *map(when, _seen(row))]
            for row in body["devices"]
        ],
    )
    for row in body["devices"]:
        show.wrapped(f"Safety code of {_name(row)}: {row['safety_code'] or 'not known'}")
        if row["changed_code"]:
            show.wrapped(f"It has shown another key since, with the code: {row['changed_code']}")
        if row["noticed_at"]:
            show.wrapped(
                f"The relay said that a key of {escape(row['user_id'])} has changed: {when(row['noticed_at'])}"
            )


@command("verify", example="pacerelle devices verify USER_ID\npacerelle devices verify USER_ID DEVICE_ID --code CODE")
@_user
@_device
@_code
@agent_option
@json_option
@pass_cli
def verify(cli: Cli, user: str, device: str | None, code: str | None, agent_id: str) -> None:
    """Note that a device is who it says, after comparing its safety code with what it shows itself."""
    _decide(cli, "verify", user, device, code, agent_id, which=lambda row: row["safety_code"])


@command("trust", example="pacerelle devices trust USER_ID\npacerelle devices trust USER_ID DEVICE_ID --code CODE")
@_user
@_device
@_code
@agent_option
@json_option
@pass_cli
def trust(cli: Cli, user: str, device: str | None, code: str | None, agent_id: str) -> None:
    """Accept a device's changed key, or unblock it. What was held of it is taken, in its order.

    The key is the one that the device has shown since; else, of a blocked device, its own; else one that was refused.
    """
    _decide(
        cli, "trust", user, device, code, agent_id,
        which=lambda row: (
            row["changed_code"] or (row["safety_code"] if row["state"] == "blocked" else row["refused_code"])
        ),
    )  # fmt: skip


@command("refuse", example="pacerelle devices refuse USER_ID\npacerelle devices refuse USER_ID DEVICE_ID --code CODE")
@_user
@_device
@_code
@agent_option
@json_option
@pass_cli
def refuse(cli: Cli, user: str, device: str | None, code: str | None, agent_id: str) -> None:
    """Stay with a device's known key. What comes with the other one stays in quarantine, and holds up nothing else."""
    _decide(cli, "refuse", user, device, code, agent_id, which=lambda row: row["changed_code"])


@command("block", example="pacerelle devices block USER_ID\npacerelle devices block USER_ID DEVICE_ID")
@_user
@_device
@agent_option
@json_option
@pass_cli
def block(cli: Cli, user: str, device: str | None, agent_id: str) -> None:
    """Hold everything of a device, such as a lost one, until you trust it again."""
    _send(cli, "block", _find(cli, agent_id, user, device), None, agent_id)


for _each in (list_, verify, trust, refuse, block):
    devices.add_command(_each)

_QUESTIONS = {
    "verify": "Does the device show this code",
    "trust": "Does the device show this code, and do you want its messages",
    "refuse": "Is this the code of a key that is not that device's",
}
_DONE = {
    "verify": "is verified",
    "trust": "is trusted",
    "refuse": "stays with its known key",
    "block": "is blocked",
}


def _decide(
    cli: Cli,
    action: str,
    user: str,
    device: str | None,
    code: str | None,
    agent_id: str,
    *,
    which: Callable[[dict[str, Any]], str | None],
) -> None:
    """`which`: the safety code that is to be compared."""
    row = _find(cli, agent_id, user, device)
    if code is None:
        code = which(row)
        if code is None:
            raise CliError(
                f"There is nothing to {action} about {_name(row)}.",
                hint="What is known of each device: pacerelle devices list",
            )
        click.echo(f"Safety code of {_name(row)}:\n  {code}", err=True)
        click.confirm(f"{_QUESTIONS[action]}?", abort=True, err=True)
    _send(cli, action, row, code, agent_id)


def _send(cli: Cli, action: str, row: dict[str, Any], code: str | None, agent_id: str) -> None:
    fields = {"user_id": row["user_id"], "device_id": row["device_id"]}
    if code is not None:
        fields["safety_code"] = code
    _, body = cli.daemon.call("POST", f"/v1/agents/{part(agent_id)}/devices/{action}", body=fields, timeout=_WAIT)
    if cli.json:
        show.as_json(body)
        return
    click.echo(f"{_name(row)} {_DONE[action]}.")
    if body["accepted"]:
        click.echo(f"Messages that were held and are requests now: {body['accepted']}.")
    if body["device"]["held"]:
        click.echo(f"Messages in quarantine: {body['device']['held']}. See: pacerelle quarantine list")


def _find(cli: Cli, agent_id: str, user: str, device: str | None) -> dict[str, Any]:
    """The device that is meant; without its id, the only one of this person."""
    rows: list[dict[str, Any]] = cli.daemon.get(f"/v1/agents/{part(agent_id)}/devices")["devices"]
    found = [row for row in rows if row["user_id"] == user and device in (None, row["device_id"] or "-")]
    if len(found) == 1:
        return found[0]
    if found:
        ids = ", ".join(row["device_id"] or "-" for row in found)
        raise CliError(f"{escape(user)} has several devices.", hint=f"Name one of them: {escape(ids)}")
    raise CliError(f"No such device of {escape(user)} has written yet.", hint="Those that have: pacerelle devices list")


def _seen(row: dict[str, Any]) -> tuple[str, str]:
    return row["first_seen"], row["last_seen"]


def _name(row: dict[str, Any]) -> str:
    device = f"device {row['device_id']}" if row["device_id"] else "the client without a device id"
    return escape(f"{row['user_id']}, {device}")
