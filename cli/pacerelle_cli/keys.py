"""`pacerelle login`, `logout`, `rekey` and `keys`: where secrets are, never what they are."""

from __future__ import annotations

import sys
import time
from typing import Any

import click

from . import show
from .agents import login_refused, once_settled, typed_token
from .client import part
from .context import Cli, command, json_option, pass_cli
from .errors import CliError, NotAnswering
from .offline import offline
from .text import escape

_CALL = 30.0  # seconds; a keyring may have to be waited for
_STOP_WAIT = 15.0
_POLL = 0.05


@command("login", example="pacerelle login AGENT_ID\npacerelle login AGENT_ID < token.txt")
@click.argument("agent_id", required=False)
@click.option("--base-url", metavar="URL", help="The relay's HTTP address, if the agent is new and it is another one.")
@json_option
@pass_cli
def login(cli: Cli, agent_id: str | None, base_url: str | None) -> None:
    """Give an agent its token, from a prompt that does not show it, or from standard input.

    An agent that is not known is added. The token is kept in the OS keyring, where there is one. Starts the daemon if
    it is not running.
    """
    token = typed_token() if sys.stdin.isatty() else sys.stdin.readline().strip()
    if not token:
        raise CliError("The token is empty.", hint="Copy it from where the agent was made.")
    daemon = cli.started_daemon()
    known = [row["agent_id"] for row in daemon.get("/v1/agents")["agents"]]
    if agent_id is None:
        agent_id = _only(known)
    if agent_id in known and base_url is None:
        daemon.call("PUT", f"/v1/agents/{part(agent_id)}/token", body={"token": token}, timeout=_CALL)
    else:
        body = {"agent_id": agent_id, "token": token, "base_url": base_url, "e2ee": True}
        daemon.call("POST", "/v1/agents", body=body, timeout=_CALL)
    row = next(row for row in daemon.get("/v1/agents")["agents"] if row["agent_id"] == agent_id)
    row = once_settled(daemon, row)
    if row["login"] == "refused":
        raise login_refused(agent_id)
    keys = daemon.call("GET", "/v1/keys", timeout=_CALL)[1]
    entry = next(each for each in keys["tokens"] if each["agent_id"] == agent_id)
    if cli.json:
        show.as_json({"agent": row, "token": entry, "keyring": keys["keyring"]})
        return
    click.echo(f"{escape(agent_id)}: {row['connection']}. The token is in {entry['place']}.")
    if entry["source"] == "given":
        click.echo(f"It is forgotten when the daemon ends. {keys['keyring']['message']}.")
        if keys["keyring"]["hint"]:
            click.echo(f"  {keys['keyring']['hint']}")


@command("logout", example="pacerelle logout AGENT_ID")
@click.argument("agent_id", required=False)
@json_option
@pass_cli
def logout(cli: Cli, agent_id: str | None) -> None:
    """Forget an agent's token, in memory and in the OS keyring, and disconnect. Its messages stay."""
    found = cli.daemon.call("DELETE", f"/v1/agents/{part(agent_id or '-')}/token", timeout=_CALL)[1]
    if cli.json:
        show.as_json(found)
        return
    click.echo(f"{escape(found['agent_id'])} is logged out.")
    if found["still_in"]:
        click.echo(f"Its token is still in {found['place']}: the next start of the daemon finds it there.")
    click.echo("A host that has the token in its settings logs in again when it starts.")


@command("rekey", example="pacerelle rekey")
@json_option
@pass_cli
def rekey(cli: Cli) -> None:
    """Give the store a new key. A running daemon is stopped for it, and started again.

    Needs room for a copy of the store. Whenever this is interrupted, the store opens.
    """
    stopped = False

    def stop() -> None:
        nonlocal stopped
        stopped = True
        _stop(cli)

    try:
        done = offline(cli, "rekey", on_waiting=stop)
    finally:
        if stopped:
            cli.started_daemon()
    if cli.json:
        show.as_json({"store_key": done["store_key"], "restarted": stopped})
    else:
        click.echo(f"The store has a new key, in {escape(done['store_key']['place'])}. The old one is gone.")


@click.group("keys", epilog="\b\nExample:\n  pacerelle keys status")
def keys() -> None:
    """Where the store's key and the tokens are."""


@command("status", example="pacerelle keys status\npacerelle keys status --json | jq .keyring.state")
@json_option
@pass_cli
def keys_status(cli: Cli) -> None:
    """Where the store's key and each token come from, and how the OS keyring is. Shows no secrets.

    Without a daemon it looks for itself, and cannot tell about tokens.
    """
    found = cli.daemon.call("GET", "/v1/keys", timeout=_CALL)[1] if cli.daemon.is_up() else offline(cli, "keys")
    if cli.json:
        show.as_json(found)
        return
    key = found["store_key"]
    rows: list[list[Any]] = [["store key", key["source"] or "none yet", key["place"] or ""]]
    for each in found["tokens"] or []:
        where = f"{each['place'] or ''}{' (others can see it: --token)' if each['visible'] else ''}"
        rows.append([f"token of {each['agent_id']}", each["source"] or f"none: login {each['login']}", where])
    show.table(["SECRET", "FROM", "PLACE"], rows)
    click.echo(f"{found['keyring']['message']}.")
    if found["keyring"]["hint"]:
        click.echo(f"  {found['keyring']['hint']}")
    if found["tokens"] is None:
        click.echo("Where tokens come from is known while the daemon runs.")


keys.add_command(keys_status)


def _only(known: list[str]) -> str:
    if len(known) == 1:
        return known[0]
    raise click.UsageError(f"Which agent? {'Known are: ' + ', '.join(known) if known else 'There is none yet'}.")


def _stop(cli: Cli) -> None:
    pid = cli.daemon.owner()
    cli.daemon.call("POST", "/v1/stop", body={})
    until = time.monotonic() + _STOP_WAIT
    while pid is not None and cli.daemon.owner() == pid:
        if time.monotonic() > until:
            raise NotAnswering(f"pacerelled (pid {pid}) does not end.", hint=f"Its log is {cli.paths.log}")
        time.sleep(_POLL)
