"""How things are: the answer of GET /v1/status for people, and as an exit code."""

from __future__ import annotations

import sys
from typing import Any

from . import show
from .cli import Cli
from .errors import EXIT_CODES, FAILED, LOGIN_NEEDED, RELAY_OFFLINE
from .text import ago, duration, escape

_VERSION = 1  # of the answer that this program knows; what another lacks is shown as unknown
_UNKNOWN = "?"
_COUNTS = ("pending", "claimed", "uncertain", "queued", "quarantined")


def status(cli: Cli) -> int:
    """Asks the daemon and prints what it says; the exit code. Raises CliError."""
    body = cli.daemon.get("/v1/status")
    if cli.json:
        show.as_json(body)
    else:
        _health(body)
        for warning in body["health"].get("warnings", ()):
            about = f"{warning['agent_id']}: " if warning.get("agent_id") else ""
            print(f"Note: {escape(about + warning['message'])}")
            print(f"    {escape(warning['hint'])}")
        if body.get("agents"):
            print()
            agents_table(body["agents"])
        print()
        hosts_table(body.get("hosts", []))
        _http(body.get("http", {}))
    _say_which_is_older(body.get("version"))
    return exit_code(body)


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
        print(f"{show.coloured('OK', 'green')}  {running}")
        return
    noun = "problem" if len(problems) == 1 else "problems"
    print(f"{show.coloured(f'{len(problems)} {noun}', 'red')}  {running}")
    for problem in problems:
        about = f"{problem['agent_id']}: " if problem.get("agent_id") else ""
        print(f"  {escape(about + problem['message'])}")
        if problem["hint"]:
            print(f"    {escape(problem['hint'])}")


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
    print(f"Not all may be shown: {what}. Upgrade it: {do}", file=sys.stderr)


def _http(http: dict[str, Any]) -> None:
    """Where MCP over HTTP is, if it is on."""
    if http.get("url"):
        print(f"\nMCP over HTTP: {escape(http['url'])}")
    if http.get("warning"):
        print(show.coloured("Warning: ", "yellow") + escape(http["warning"]))


def hosts_table(hosts: list[dict[str, Any]]) -> None:
    if not hosts:
        print("No host is attached.")
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
