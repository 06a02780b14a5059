"""`pacerelle allow …`: whose messages an agent takes."""

from __future__ import annotations

from typing import Any

import click

from . import show
from .client import part
from .context import Cli, agent_option, command, json_option, pass_cli
from .text import escape

_WAIT = 60.0  # seconds: what was held is taken before the answer


@click.group("allow", epilog="\b\nExample:\n  pacerelle allow list\n  pacerelle allow add USER_ID")
def allow() -> None:
    """The allow list: with one, only these people's messages become requests.

    Without one, everybody who reaches the agent is authorized. A relay lets in its owner and members of its groups.
    """


@command("list", example="pacerelle allow list")
@agent_option
@json_option
@pass_cli
def list_(cli: Cli, agent_id: str) -> None:
    """Who is on the list."""
    body = cli.daemon.get(f"/v1/agents/{part(agent_id)}/allow")
    if cli.json:
        show.as_json(body)
    else:
        _say(body)


@command("add", example="pacerelle allow add USER_ID")
@click.argument("user")
@agent_option
@json_option
@pass_cli
def add(cli: Cli, user: str, agent_id: str) -> None:
    """Allow a person; what they had written becomes requests, in order.

    The first one makes the list: from then on everybody else's messages wait in quarantine.
    """
    _change(cli, "PUT", f"/v1/agents/{part(agent_id)}/allow/{part(user)}")


@command("remove", example="pacerelle allow remove USER_ID")
@click.argument("user")
@agent_option
@json_option
@pass_cli
def remove(cli: Cli, user: str, agent_id: str) -> None:
    """Take a person off the list. It stays when nobody is left on it: then everybody waits."""
    _change(cli, "DELETE", f"/v1/agents/{part(agent_id)}/allow/{part(user)}")


@command("off", example="pacerelle allow off")
@agent_option
@json_option
@pass_cli
def off(cli: Cli, agent_id: str) -> None:
    """Remove the list: everybody is authorized, and what was held for want of it becomes requests."""
    _change(cli, "DELETE", f"/v1/agents/{part(agent_id)}/allow")


for _each in (list_, add, remove, off):
    allow.add_command(_each)


def _change(cli: Cli, method: str, path: str) -> None:
    _, body = cli.daemon.call(method, path, timeout=_WAIT)
    if cli.json:
        show.as_json(body)
        return
    _say(body)
    if body["accepted"]:
        click.echo(f"Messages that were held and are requests now: {body['accepted']}.")


def _say(body: dict[str, Any]) -> None:
    if not body["on"]:
        click.echo("There is no list: everybody who reaches the agent is authorized.")
    elif body["people"]:
        click.echo("Only these are authorized; what others write waits in quarantine:")
        for user in body["people"]:
            click.echo(f"  {escape(user)}")
    else:
        click.echo("The list is empty: what anybody writes waits in quarantine.")
