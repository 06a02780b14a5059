"""`pacerelle agent …`: the identities at the relay."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import click

from . import show
from .client import Daemon, part
from .context import Cli, command, json_option, pass_cli
from .errors import CliError, LoginNeeded
from .overview import agents_table
from .text import escape

_LOGIN_WAIT = 5.0  # seconds until `agent add` no longer waits for the relay's answer
_LOGIN_POLL = 0.1

_token = click.option("--token", help="The token. Others on this machine can see it: prefer --token-stdin.")
_token_stdin = click.option("--token-stdin", is_flag=True, help="Read the token from standard input.")


@click.group("agent", epilog="\b\nExample:\n  pacerelle agent add AGENT_ID\n  pacerelle agent list")
def agent() -> None:
    """Add, list and remove agents; set their tokens."""


@command("add", example="pacerelle agent add AGENT_ID\npacerelle agent add AGENT_ID --token-stdin < token.txt")
@click.argument("agent_id")
@click.option("--base-url", metavar="URL", help="The relay's HTTP address, if it is not the hosted one.")
@click.option("--ws-url", metavar="URL", help="The relay's WebSocket address, if it does not follow from it.")
@click.option("--no-e2ee", is_flag=True, help="Without encryption: only to debug the transport.")
@_token
@_token_stdin
@json_option
@pass_cli
def add(
    cli: Cli,
    agent_id: str,
    base_url: str | None,
    ws_url: str | None,
    no_e2ee: bool,
    token: str | None,
    token_stdin: bool,
) -> None:
    """Add an agent, or give a known one a new token.

    The token comes from --token-stdin, from PACERELLE_AGENT_TOKEN, or from a prompt. Starts the daemon if it is
    not running.
    """
    secret = _read_token(token, token_stdin)
    daemon = cli.started_daemon()
    status, row = daemon.call(
        "POST",
        "/v1/agents",
        body={
            "agent_id": agent_id,
            "token": secret,
            "base_url": base_url,
            "ws_url": ws_url,
            "e2ee": not no_e2ee,
        },
        timeout=30.0,
    )
    row = once_settled(daemon, row)
    refused = row["login"] == "refused"
    if cli.json and not refused:  # one object: with an error it is the error
        show.as_json({"agent": row, "added": status == 201})
    elif not cli.json:
        what = "Added" if status == 201 else "Replaced the token of"
        click.echo(f"{what} {escape(agent_id)}: {row['connection']}.")
    if refused:
        raise login_refused(agent_id)


@command("list", example="pacerelle agent list")
@json_option
@pass_cli
def list_(cli: Cli) -> None:
    """Agents with their connections, counts and safety codes, to compare with what the phone shows."""
    body = cli.daemon.get("/v1/agents")
    if cli.json:
        show.as_json(body)
    elif body["agents"]:
        agents_table(body["agents"])
        for row in body["agents"]:
            if row["safety_code"]:
                show.wrapped(f"Safety code of {escape(row['agent_id'])}: {row['safety_code']}")
    else:
        click.echo("No agent yet. Add one with: pacerelle agent add AGENT_ID")


@command("remove", example="pacerelle agent remove AGENT_ID\npacerelle agent remove AGENT_ID --purge --yes")
@click.argument("agent_id")
@click.option("--purge", is_flag=True, help="Also delete its messages and its encryption state. For ever.")
@click.option("--yes", is_flag=True, help="Do not ask before a purge.")
@json_option
@pass_cli
def remove(cli: Cli, agent_id: str, purge: bool, yes: bool) -> None:
    """Remove an agent. Its messages stay in the store unless --purge is given."""
    if purge and not yes:
        click.confirm(f"Delete every message and key of {escape(agent_id)}?", abort=True, err=True)
    cli.daemon.call("DELETE", f"/v1/agents/{part(agent_id)}", query={"purge": purge}, timeout=30.0)
    if cli.json:
        show.as_json({"removed": agent_id, "purged": purge})
    else:
        click.echo(f"Removed {escape(agent_id)}{' and purged its messages' if purge else ''}.")


@command("token", example="pacerelle agent token AGENT_ID\npacerelle agent token AGENT_ID --token-stdin < token.txt")
@click.argument("agent_id")
@_token
@_token_stdin
@json_option
@pass_cli
def set_token(cli: Cli, agent_id: str, token: str | None, token_stdin: bool) -> None:
    """Give an agent a new token."""
    secret = _read_token(token, token_stdin)
    cli.daemon.call("PUT", f"/v1/agents/{part(agent_id)}/token", body={"token": secret}, timeout=30.0)
    if cli.json:
        show.as_json({"agent_id": agent_id})
    else:
        click.echo(f"{escape(agent_id)} has a new token.")


agent.add_command(add)
agent.add_command(list_)
agent.add_command(remove)
agent.add_command(set_token)


def _read_token(token: str | None, from_stdin: bool) -> str:
    if token is not None and from_stdin:
        raise click.UsageError("--token and --token-stdin exclude each other.")
    if token is not None:
        click.echo("Warning: others on this machine can see --token. Prefer --token-stdin.", err=True)
    elif from_stdin:
        token = sys.stdin.readline()
    elif not (token := os.environ.get("PACERELLE_AGENT_TOKEN")):
        if not sys.stdin.isatty():
            raise click.UsageError("No token: use --token-stdin or PACERELLE_AGENT_TOKEN.")
        token = typed_token()
    token = str(token).strip()
    if not token:
        raise CliError("The token is empty.", hint="Copy it from where the agent was made.")
    return token


def typed_token() -> str:
    """From a prompt that does not show it."""
    return str(click.prompt("Agent token", hide_input=True, err=True)).strip()


def login_refused(agent_id: str) -> LoginNeeded:
    return LoginNeeded(
        "token_refused", "The relay refused the token.", hint=f"Copy it again, then: pacerelle login {agent_id}"
    )


def once_settled(daemon: Daemon, row: dict[str, Any]) -> dict[str, Any]:
    """The agent's row once the relay has taken or refused the token, or as it is after a while."""
    until = time.monotonic() + _LOGIN_WAIT
    while row["login"] == "ok" and row["connection"] != "connected" and time.monotonic() < until:
        time.sleep(_LOGIN_POLL)
        rows = daemon.get("/v1/agents")["agents"]
        row = next((each for each in rows if each["agent_id"] == row["agent_id"]), row)
    return row
