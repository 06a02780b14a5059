"""`pacerelle webhook …`: events as signed POSTs to a program of yours."""

from __future__ import annotations

from typing import Any

import click

from . import show
from .client import ANSWER_TIMEOUT, part
from .context import Cli, command, json_option, pass_cli
from .errors import CliError
from .text import escape, when

_TEST_TIMEOUT = 15.0  # seconds, a little more than the daemon gives an attempt


@click.group(
    "webhook", epilog="\b\nExample:\n  pacerelle webhook add https://example.org/hook\n  pacerelle webhook list"
)
def webhook() -> None:
    """Endpoints that are told of events, as they happen (docs/webhooks.md)."""


@command(
    "add",
    example="pacerelle webhook add https://example.org/hook --attention\n"
    "pacerelle webhook add http://127.0.0.1:8000/ --type 'reply.*' --bundle 10",
)
@click.argument("url")
@click.option("--type", "types", metavar="TYPE", multiple=True, help="Only these; `reply.*` fits all that begin so.")
@click.option("--agent", "agents", metavar="AGENT_ID", multiple=True, help="Only of these agents.")
@click.option("--label", "labels", metavar="NAME=VALUE", multiple=True, help="Only of coding agents with this label.")
@click.option("--attention", is_flag=True, help="Only those after which somebody has to do something.")
@click.option(
    "--bundle",
    metavar="SECONDS",
    type=click.FloatRange(0, 300),
    default=0.0,
    help="Collect for so long, then send all.",
)
@json_option
@pass_cli
def add(
    cli: Cli,
    url: str,
    types: tuple[str, ...],
    agents: tuple[str, ...],
    labels: tuple[str, ...],
    attention: bool,
    bundle: float,
) -> None:
    """Send events to URL from now on, and show the secret that signs them, this once."""
    named = dict(each.partition("=")[::2] for each in labels)
    body = {
        "url": url,
        "types": list(types),
        "agents": list(agents),
        "labels": named,
        "needs_attention": attention,
        "bundle_s": bundle,
    }
    _secret(cli, cli.daemon.call("POST", "/v1/webhooks", body=body)[1])


@command("list", example="pacerelle webhook list\npacerelle webhook list --json")
@json_option
@pass_cli
def list_(cli: Cli) -> None:
    """The endpoints, and how they are."""
    body = cli.daemon.get("/v1/webhooks")
    if cli.json:
        show.as_json(body)
    elif body["webhooks"]:
        show.table(
            ["ID", "URL", "STATE", "WANTS", "FAILED IN A ROW", "SKIPPED"],
            [
                [each["id"], each["url"], _state(each), _wants(each["wanted"]), each["failures"], each["skipped"]]
                for each in body["webhooks"]
            ],
        )
    else:
        click.echo("There is no webhook. Add one with: pacerelle webhook add URL")


@command("deliveries", example="pacerelle webhook deliveries WEBHOOK_ID --limit 5")
@click.argument("webhook_id")
@click.option("--limit", type=click.IntRange(1, 100), default=20, show_default=True, help="At most so many.")
@json_option
@pass_cli
def deliveries(cli: Cli, webhook_id: str, limit: int) -> None:
    """The last deliveries to an endpoint: what came of them, after how many attempts."""
    body = cli.daemon.get(f"/v1/webhooks/{part(webhook_id)}/deliveries", limit=limit)
    if cli.json:
        show.as_json(body)
    elif body["deliveries"]:
        show.table(
            ["DELIVERY", "MADE", "EVENTS", "STATE", "ATTEMPTS", "CODE", "ERROR"],
            [
                [
                    each["id"],
                    when(each["created_at"]),
                    each["events"],
                    each["state"],
                    each["attempts"],
                    "" if each["code"] is None else each["code"],
                    each["error"] or "",
                ]
                for each in body["deliveries"]
            ],
        )
    else:
        click.echo("Nothing has been sent there yet.")


@command("test", example="pacerelle webhook test WEBHOOK_ID")
@click.argument("webhook_id")
@json_option
@pass_cli
def test(cli: Cli, webhook_id: str) -> None:
    """Send an event `webhook.test` now, once. Exit code 1 if it was not taken."""
    path = f"/v1/webhooks/{part(webhook_id)}/test"
    _, found = cli.daemon.call("POST", path, body={}, timeout=ANSWER_TIMEOUT + _TEST_TIMEOUT)
    what = f"HTTP {found['code']}" if found["code"] is not None else found["error"]
    if not found["delivered"] and not cli.json:
        raise CliError(f"It was not taken: {what}", hint="Wanted is an answer with a status of 2xx within 10 s.")
    if cli.json:
        show.as_json(found)
    else:
        click.echo(f"Taken: {escape(str(what))}, {found['duration_s']} s")
    if not found["delivered"]:
        raise SystemExit(1)


@command("pause", example="pacerelle webhook pause WEBHOOK_ID")
@click.argument("webhook_id")
@json_option
@pass_cli
def pause(cli: Cli, webhook_id: str) -> None:
    """Send nothing for now; what would have been sent is counted and skipped."""
    _changed(cli, webhook_id, "pause")


@command("resume", example="pacerelle webhook resume WEBHOOK_ID")
@click.argument("webhook_id")
@json_option
@pass_cli
def resume(cli: Cli, webhook_id: str) -> None:
    """Go on with what happens from now on, also after failures had paused it."""
    _changed(cli, webhook_id, "resume")


@command("rotate", example="pacerelle webhook rotate WEBHOOK_ID")
@click.argument("webhook_id")
@json_option
@pass_cli
def rotate(cli: Cli, webhook_id: str) -> None:
    """Make a new secret and show it, this once. The old one signs nothing any more."""
    _secret(cli, cli.daemon.call("POST", f"/v1/webhooks/{part(webhook_id)}/rotate", body={})[1])


@command("remove", example="pacerelle webhook remove WEBHOOK_ID")
@click.argument("webhook_id")
@json_option
@pass_cli
def remove(cli: Cli, webhook_id: str) -> None:
    """Forget an endpoint, with what was still to be sent there."""
    cli.daemon.call("DELETE", f"/v1/webhooks/{part(webhook_id)}")
    if cli.json:
        show.as_json({"removed": webhook_id})
    else:
        click.echo(f"Removed {escape(webhook_id)}.")


for _each in (add, list_, deliveries, test, pause, resume, rotate, remove):
    webhook.add_command(_each)


def _changed(cli: Cli, webhook_id: str, what: str) -> None:
    _, body = cli.daemon.call("POST", f"/v1/webhooks/{part(webhook_id)}/{what}", body={})
    if cli.json:
        show.as_json(body)
    else:
        click.echo(f"{escape(webhook_id)}: {_state(body['webhook'])}, {body['webhook']['skipped']} skipped so far")


def _secret(cli: Cli, body: dict[str, Any]) -> None:
    if cli.json:
        show.as_json(body)
        return
    click.echo(body["secret"])
    click.echo(f"That is the secret of {body['webhook']['id']}. It is not shown again.", err=True)


def _state(each: dict[str, Any]) -> str:
    return f"{each['state']} ({each['reason']})" if each["reason"] else str(each["state"])


def _wants(wanted: dict[str, Any]) -> str:
    found = [*wanted["types"], *wanted["agents"], *(f"{name}={value}" for name, value in wanted["labels"].items())]
    return ", ".join(found + (["attention"] if wanted["needs_attention"] else [])) or "everything"
