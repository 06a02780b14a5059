"""`pacerelle events`: what happened, and what happens."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from . import show
from .client import ANSWER_TIMEOUT
from .context import Cli, command, json_option, pass_cli
from .errors import NotAnswering, NotRunning, Refused
from .text import escape, when

_WAIT = 25.0  # seconds that one question waits at the daemon
_AGAIN = 1.0  # seconds between attempts to reach a daemon that is being restarted
_TRANSIENT = ("stopping", "store_unavailable")
_IDS = ("message_id", "source_message_id", "user_id", "peer_id", "session", "webhook_id", "run_id", "agent_id")


@command("events", example="pacerelle events\npacerelle events --follow --type 'reply.*' --json")
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens from now on, until interrupted.")
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only these; `reply.*` fits all that begin so.")
@click.option("--conversation", "conversations", metavar="ID", multiple=True, help="Only of these conversations.")
@click.option("--agent", "agents", metavar="AGENT_ID", multiple=True, help="Only of these agents.")
@click.option("--attention", is_flag=True, help="Only those after which somebody has to do something.")
@click.option("--after", metavar="CURSOR", help="Those after this event's id (or `start`), instead of the newest.")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="At most so many before.")
@json_option
@pass_cli
def events(
    cli: Cli,
    follow: bool,
    types: tuple[str, ...],
    conversations: tuple[str, ...],
    agents: tuple[str, ...],
    attention: bool,
    after: str | None,
    limit: int,
) -> None:
    """What happened, oldest first: no texts, only what happened to which message.

    With --follow and --json, each event is a line. A daemon that is restarted is waited for; nothing is missed.
    """
    wanted = {
        "type": ",".join(types) or None,
        "conversation": ",".join(conversations) or None,
        "agent": ",".join(agents) or None,
        "needs_attention": attention or None,
    }
    where = {"last": limit} if after is None else {"cursor": after, "limit": limit}
    found = cli.daemon.get("/v1/events", **wanted, **where)
    if not follow:
        if cli.json:
            show.as_json(found)
        else:
            _print(found)
        return
    while True:
        if cli.json:
            for line in [{"gap": True, **found}] if found["gap"] else found["events"]:
                click.echo(json.dumps(line))
        else:
            _print(found)
        found = _next(cli, {**wanted, "cursor": found["next_cursor"], "wait_s": _WAIT})


def _next(cli: Cli, query: dict[str, Any]) -> dict[str, Any]:
    """What comes after, from this daemon or the next."""
    while True:
        try:
            return cli.daemon.call("GET", "/v1/events", query=query, timeout=ANSWER_TIMEOUT + _WAIT)[1]
        except (NotRunning, NotAnswering):
            time.sleep(_AGAIN)
        except Refused as error:
            if error.code not in _TRANSIENT:
                raise
            time.sleep(_AGAIN)


def _print(found: dict[str, Any]) -> None:
    if found["gap"]:
        click.echo("Events are missing here: they are not kept any more, or the store was restored.", err=True)
    for event in found["events"]:
        data = event["data"]
        ids = [f"{name}={data[name]}" for name in _IDS if data.get(name)]
        more = [
            f"{name}={value}"
            for name, value in data.items()
            if name not in (*_IDS, "conversation_id", "preview") and value is not None
        ]
        line = "  ".join([when(event["at"]), event["type"], *ids, *more])
        click.echo(escape(line))
