"""`pacerelle status` and `pacerelle hosts`."""

from __future__ import annotations

from typing import Any

import click

from . import show
from .context import Cli, command, json_option, pass_cli
from .errors import EXIT_CODES, FAILED, LOGIN_NEEDED, RELAY_OFFLINE
from .text import ago, duration, escape

_VERSION = 1  # of the answer that this program knows; what another lacks is shown as unknown
_UNKNOWN = "?"
_COUNTS = ("pending", "claimed", "uncertain", "queued", "quarantined")


@command("status", example="pacerelle status\npacerelle status --json | jq .health")
@json_option
@click.pass_context
def status(ctx: click.Context) -> None:
    """Health first, then agents and hosts.

    \b
    Exit code: 0 all is well, 1 another problem, 3 the daemon does not run or
    does not answer, 4 login needed, 5 relay offline.
    """
    cli = ctx.ensure_object(Cli)
    body = cli.daemon.get("/v1/status")
    if cli.json:
        show.as_json(body)
    else:
        _health(body)
        for warning in body["health"].get("warnings", ()):
            about = f"{warning['agent_id']}: " if warning.get("agent_id") else ""
            click.echo(f"Note: {escape(about + warning['message'])}")
            click.echo(f"    {escape(warning['hint'])}")
        if body.get("agents"):
            click.echo()
            agents_table(body["agents"])
        click.echo()
        _hosts_table(body.get("hosts", []))
        _http(body.get("http", {}))
    _say_which_is_older(body.get("version"))
    ctx.exit(exit_code(body))


@command("hosts", example="pacerelle hosts")
@json_option
@pass_cli
def hosts(cli: Cli) -> None:
    """MCP hosts that are attached, and how many requests each holds."""
    body = cli.daemon.get("/v1/hosts")
    if cli.json:
        show.as_json(body)
    else:
        _hosts_table(body["hosts"])


def exit_code(body: dict[str, Any]) -> int:
    """The worst thing in an answer of GET /v1/status: a missing login before an unreachable relay before the rest."""
    agents = body.get("agents", [])
    codes = {EXIT_CODES.get(problem["code"], FAILED) for problem in body["health"]["problems"]}
    codes |= {LOGIN_NEEDED for agent in agents if agent.get("login", "ok") != "ok"}
    codes |= {RELAY_OFFLINE for agent in agents if agent.get("connection", "connected") != "connected"}
    return next((code for code in (LOGIN_NEEDED, RELAY_OFFLINE, FAILED) if code in codes), 0)


def agents_table(agents: list[dict[str, Any]]) -> None:
    show.table(
        ["AGENT", "CONNECTION", "LOGIN", "RELAY TRAFFIC", *(name.upper() for name in _COUNTS)],
        [
            [
                agent.get("agent_id", _UNKNOWN),
                agent.get("connection", _UNKNOWN),
                agent.get("login", _UNKNOWN),
                ago(agent["last_traffic_age_s"]) if "last_traffic_age_s" in agent else _UNKNOWN,
                *(agent.get(name, _UNKNOWN) for name in _COUNTS),
            ]
            for agent in agents
        ],
    )


def _health(body: dict[str, Any]) -> None:
    daemon, problems = body["daemon"], body["health"]["problems"]
    running = f"pacerelled {daemon['version']}, pid {daemon['pid']}"
    if "uptime_s" in daemon:
        running += f", up {duration(daemon['uptime_s'])}"
    if not problems:
        click.echo(f"{click.style('OK', fg='green')}  {running}")
        return
    noun = "problem" if len(problems) == 1 else "problems"
    click.echo(f"{click.style(f'{len(problems)} {noun}', fg='red')}  {running}")
    for problem in problems:
        about = f"{problem['agent_id']}: " if problem.get("agent_id") else ""
        click.echo(f"  {escape(about + problem['message'])}")
        if problem["hint"]:
            click.echo(f"    {escape(problem['hint'])}")


def _say_which_is_older(version: object) -> None:
    """After a status of another version, on standard error."""
    if version == _VERSION:
        return
    if isinstance(version, int) and version > _VERSION:
        what, do = "this pacerelle is older than the daemon", "pip install --upgrade pacerelled"
    else:
        what, do = (
            "the daemon is older than this pacerelle",
            "pacerelle stop  (the next call of a host starts the new one)",
        )
    click.echo(f"Not all may be shown: {what}. Upgrade it: {do}", err=True)


def _http(http: dict[str, Any]) -> None:
    """Where MCP over HTTP is, if it is on."""
    if http.get("url"):
        click.echo(f"\nMCP over HTTP: {escape(http['url'])}")
    if http.get("warning"):
        click.echo(click.style("Warning: ", fg="yellow") + escape(http["warning"]))


def _hosts_table(hosts: list[dict[str, Any]]) -> None:
    if not hosts:
        click.echo("No host is attached.")
        return
    show.table(
        ["HOST", "AGENT", "CONNECTED", "LAST ACTIVE", "REQUESTS HELD"],
        [
            [
                host.get("label", _UNKNOWN),
                host.get("agent_id") or "",
                duration(host["connected_s"]) if host.get("connected") and "connected_s" in host else "no",
                ago(host["idle_s"]) if "idle_s" in host else _UNKNOWN,
                host.get("claims", _UNKNOWN),
            ]
            for host in hosts
        ],
    )
