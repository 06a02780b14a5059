"""`pacerelle paseo …`: the bridge to the coding agents that Paseo runs on this machine."""

from __future__ import annotations

from typing import Any

import click

from . import show
from .client import part
from .context import Cli, agent_option, command, json_option, pass_cli
from .text import escape, escape_lines, when

_TEST_TIMEOUT = 30.0  # seconds
_WIDTH = 40  # characters of a title


@click.group("paseo", epilog="\b\nExample:\n  pacerelle paseo status\n  pacerelle paseo agents --status running")
def paseo() -> None:
    """The coding agents that Paseo runs on this machine. Off until config.toml has a table [paseo] (docs/paseo.md)."""


@command("status", example="pacerelle paseo status\npacerelle paseo status --json")
@json_option
@pass_cli
def status(cli: Cli) -> None:
    """Is the bridge on, and is Paseo there? Exit code 1 if it is on and Paseo is not."""
    body = cli.daemon.get("/v1/paseo")
    if cli.json:
        show.as_json({"paseo": body})
    elif not body["on"]:
        click.echo("The bridge is off: config.toml has no table [paseo].")
    else:
        _show_status(body)
    if body["on"] and body["connection"] != "connected":
        raise SystemExit(1)


@command("agents", example="pacerelle paseo agents\npacerelle paseo agents --label origin=pacerelle --all --json")
@click.option("--status", help="Only these: initializing, idle, running, error or closed.")
@click.option("--label", metavar="NAME=VALUE", help="Only agents with this label.")
@click.option("--all", "archived", is_flag=True, help="Also archived agents.")
@click.option("--limit", type=click.IntRange(1, 500), default=100, show_default=True, help="At most so many.")
@json_option
@pass_cli
def agents(cli: Cli, status: str | None, label: str | None, archived: bool, limit: int) -> None:
    """The agents, the last changed first."""
    query: dict[str, Any] = {"status": status, "label": label, "limit": limit}
    query["archived"] = "true" if archived else None
    body = cli.daemon.get("/v1/paseo/agents", **query)
    if cli.json:
        show.as_json(body)
    elif body["agents"]:
        show.table(
            ["ID", "STATUS", "NEEDS YOU", "ACCOUNT", "CHANGED", "FOLDER", "TITLE"], [_row(a) for a in body["agents"]]
        )
    else:
        click.echo("There is no such agent.")


@command("timeline", example="pacerelle paseo timeline d9e7a7a9\npacerelle paseo timeline d9e7a7a9 --limit 200 --json")
@click.argument("agent_id")
@click.option("--limit", type=click.IntRange(1, 500), default=50, show_default=True, help="At most so many entries.")
@click.option("--before", metavar="CURSOR", help="Entries before older_cursor of an earlier result.")
@click.option("--thinking", is_flag=True, help="Also what the agent thought.")
@json_option
@pass_cli
def timeline(cli: Cli, agent_id: str, limit: int, before: str | None, thinking: bool) -> None:
    """The end of an agent's conversation. AGENT_ID may be a beginning of the id."""
    query: dict[str, Any] = {"limit": limit, "cursor": before, "thinking": "true" if thinking else None}
    body = cli.daemon.get(f"/v1/paseo/agents/{part(agent_id)}/timeline", **query)
    if cli.json:
        show.as_json(body)
        return
    for entry in body["entries"]:
        click.echo(click.style(f"{entry['who']}: ", bold=True), nl=False)
        click.echo("\n  ".join(escape_lines(entry["text"])))
    if not body["entries"]:
        click.echo("Nothing has been said yet.")
    elif body["older_cursor"]:
        click.echo(f"There is more before that: --before {body['older_cursor']}", err=True)


@command("test", example="pacerelle paseo test")
@json_option
@pass_cli
def test(cli: Cli) -> None:
    """Connect to Paseo once more, as the bridge does: how it signs in, what it can, how many agents there are."""
    _, body = cli.daemon.call("POST", "/v1/paseo/test", body={}, timeout=_TEST_TIMEOUT)
    if cli.json:
        show.as_json({"test": body})
        return
    credential = f" {body['credential']}" if body["credential"] else ""
    click.echo(f"{click.style('OK', fg='green')}  Paseo {escape(body['version'] or '?')} at {escape(body['url'])}")
    click.echo(f"Signed in: {body['sign_in']}{credential}, from {escape(body['sign_in_from'])}")
    click.echo(f"Agents: {body['agents']}")
    for name, words in (("steer", "put a message into a running turn"), ("environment", "use accounts")):
        click.echo(f"It can {words}: {_yes(body['can'][name])}")
    click.echo(f"Tools: {', '.join(body['tools'])}")


@click.group("approvals", epilog="\b\nExample:\n  pacerelle paseo approvals on CONVERSATION_ID")
def approvals() -> None:
    """Which conversations on the phone are asked when coding agents want a permission. None, until you choose one."""


@command("list", example="pacerelle paseo approvals list")
@json_option
@pass_cli
def list_(cli: Cli) -> None:
    """The conversations that are asked."""
    body = cli.daemon.get("/v1/paseo/approvals")
    if cli.json:
        show.as_json(body)
    elif body["conversations"]:
        rows = [[c["conversation_id"], c["agent_id"], _about(c)] for c in body["conversations"]]
        show.table(["CONVERSATION", "AGENT", "ASKED ABOUT"], rows)
    else:
        click.echo("No conversation is asked: permissions are answered in Paseo, or by an assistant that you told to.")


@command(
    "on",
    example="pacerelle paseo approvals on CONVERSATION_ID\npacerelle paseo approvals on C_ID --every-agent",
)
@click.argument("conversation_id")
@click.option("--every-agent", is_flag=True, help="About every agent, not only those that were started from there.")
@agent_option
@json_option
@pass_cli
def on(cli: Cli, conversation_id: str, every_agent: bool, agent_id: str) -> None:
    """Ask this conversation. It must be one with a single person: in a group, an answer proves nobody."""
    body: dict[str, Any] = {"agent_id": agent_id, "every_agent": every_agent}
    _, chosen = cli.daemon.call("PUT", f"/v1/paseo/approvals/{part(conversation_id)}", body=body)
    if cli.json:
        show.as_json({"conversation": chosen})
    else:
        click.echo(f"{escape(conversation_id)} is asked about {_about(chosen)}.")


@command("off", example="pacerelle paseo approvals off CONVERSATION_ID")
@click.argument("conversation_id")
@agent_option
@json_option
@pass_cli
def off(cli: Cli, conversation_id: str, agent_id: str) -> None:
    """Ask this conversation no more."""
    path = f"/v1/paseo/approvals/{part(conversation_id)}"
    _, body = cli.daemon.call("DELETE", path, query={"agent_id": agent_id})
    if cli.json:
        show.as_json(body)
    else:
        click.echo(f"{escape(conversation_id)} is not asked{' any more' if body['left'] else ', and was not'}.")


for subcommand in (list_, on, off):
    approvals.add_command(subcommand)
for each in (status, agents, timeline, test):
    paseo.add_command(each)
paseo.add_command(approvals)


def _show_status(body: dict[str, Any]) -> None:
    good = body["connection"] == "connected"
    version = f"Paseo {escape(body['version'])}" if body["version"] else "Paseo"
    click.echo(f"{click.style(body['connection'], fg='green' if good else 'red')}  {version} at {escape(body['url'])}")
    if body["problem"]:
        click.echo(f"  {escape(body['problem'])}")
        click.echo(f"    {escape(body['hint'])}")
    click.echo(f"Sign-in: {body['sign_in']} ({escape(body['sign_in_from'])})")
    click.echo(f"Agents may be started in: {escape(', '.join(body['allowed_roots'])) or 'no folder'}")
    if body["accounts"]:
        names = (f"{a['name']} (default)" if a["default"] else a["name"] for a in body["accounts"])
        click.echo(f"Accounts: {escape(', '.join(names))}")
    if body["read_only"]:
        click.echo("Read-only: assistants can look, and change nothing.")


def _row(agent: dict[str, Any]) -> list[object]:
    title = " ".join((agent["title"] or "").split())
    return [
        agent["id"][:8],
        "archived" if agent["archived"] else agent["status"],
        agent["attention_reason"] or "yes" if agent["requires_attention"] else "",
        agent["account"] or "",
        when(agent["updated_at"]) if agent["updated_at"] else "",
        agent["cwd"],
        title if len(title) <= _WIDTH else title[: _WIDTH - 1] + "…",
    ]


def _about(chosen: dict[str, Any]) -> str:
    return "every agent" if chosen["every_agent"] else "agents that were started from it"


def _yes(value: bool | None) -> str:
    return {True: "yes", False: "no, update Paseo for it", None: "not known"}[value]
