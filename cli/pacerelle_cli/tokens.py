"""`pacerelle token …`: which hosts are let in over HTTP."""

from __future__ import annotations

from typing import Any

import click

from . import show
from .client import part
from .context import Cli, command, json_option, pass_cli
from .text import escape, when


@click.group("token", epilog="\b\nExample:\n  pacerelle token create laptop\n  pacerelle token revoke laptop")
def token() -> None:
    """Access tokens: a host that speaks HTTP needs one. HTTP is off until you set `http` (docs/http.md)."""


@command("create", example="pacerelle token create laptop\npacerelle token create watcher --scope read")
@click.argument("label")
@click.option(
    "--scope",
    type=click.Choice(["read", "full"]),
    default="full",
    show_default=True,
    help="read: only the tools that look; it is handed no requests.",
)
@click.option("--agent", "agents", metavar="AGENT_ID", multiple=True, help="Only this agent; may be repeated.")
@click.option(
    "--only", "labels", metavar="NAME=VALUE", multiple=True, help="Of coding agents, only those with this label."
)
@json_option
@pass_cli
def create(cli: Cli, label: str, scope: str, agents: tuple[str, ...], labels: tuple[str, ...]) -> None:
    """Make a token for one host and show it, this once. LABEL is your name for the host."""
    only = dict(each.partition("=")[::2] for each in labels)
    if "" in only or not all("=" in each for each in labels):
        raise click.UsageError("Write --only NAME=VALUE, e.g. --only origin=hermes.")
    body = {"label": label, "scope": scope, "agents": list(agents), "labels": only}
    _, made = cli.daemon.call("POST", "/v1/tokens", body=body)
    if cli.json:
        show.as_json(made)
        return
    click.echo(made["secret"])
    click.echo("It is not shown again. Send it with each request, as: Authorization: Bearer TOKEN", err=True)
    http = cli.daemon.get("/v1/status")["http"]
    if http["url"]:
        click.echo(f"The address is {http['url']}", err=True)
    elif http["on"]:
        click.echo("HTTP is not reached now; `pacerelle status` says why.", err=True)
    else:
        click.echo("HTTP is off: write `http = true` into config.toml, then run `pacerelle stop`.", err=True)


@command("list", example="pacerelle token list")
@json_option
@pass_cli
def list_(cli: Cli) -> None:
    """Who may come in, and when each token was last used."""
    body = cli.daemon.get("/v1/tokens")
    if cli.json:
        show.as_json(body)
    elif body["tokens"]:
        show.table(["LABEL", "ID", "SCOPE", "AGENTS", "MADE", "LAST USED"], [_row(each) for each in body["tokens"]])
    else:
        click.echo("There is no token. Make one with: pacerelle token create LABEL")


@command("revoke", example="pacerelle token revoke laptop")
@click.argument("label")
@json_option
@pass_cli
def revoke(cli: Cli, label: str) -> None:
    """End a token and its sessions at once. LABEL may be its id as well."""
    _, body = cli.daemon.call("DELETE", f"/v1/tokens/{part(label)}")
    if cli.json:
        show.as_json(body)
    else:
        click.echo(f"Revoked {escape(body['token']['label'])}. Whoever uses it is let in no more.")


for _each in (create, list_, revoke):
    token.add_command(_each)


def _row(each: dict[str, Any]) -> list[str]:
    used = each["last_used_at"]
    return [
        each["label"],
        each["id"],
        each["scope"],
        ", ".join(each["agents"]) or "all",
        when(each["created_at"]),
        when(used) if used else "never",
    ]
