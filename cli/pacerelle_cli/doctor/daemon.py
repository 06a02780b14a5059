"""What a daemon that runs says of itself; what its program finds where none runs."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import urlsplit

from pacerelle_cli.context import Cli
from pacerelle_cli.errors import CliError, NotRunning, Refused
from pacerelle_cli.offline import offline
from pacerelle_cli.text import duration

from .check import FAILED, NOTE, OK, SKIPPED, Check, failed

_PATIENCE: Final = 90.0  # seconds for a checkup, which reads the whole store and asks each relay
_ON_THEIR_OWN: Final = ("token_missing", "token_refused", "http", "restart_due", "webhook_paused")
"""Problems that have a line of their own."""


def ask(cli: Cli) -> tuple[dict[str, Any] | None, CliError | None]:
    """GET /v1/status, or why there is no answer."""
    try:
        found = cli.daemon.get("/v1/status")
    except CliError as error:
        return None, error
    if not isinstance(found.get("daemon"), dict) or not isinstance(found.get("health"), dict):
        return None, CliError("What answers at the daemon's socket is no daemon.", hint="Run `pacerelle stop`.")
    return found, None


def daemon(status: dict[str, Any] | None, error: CliError | None) -> Check:
    """Whether it runs and answers. Not running is no failure: the next call starts it."""
    if status is not None:
        found = status["daemon"]
        up = f", up {duration(found['uptime_s'])}" if "uptime_s" in found else ""
        return Check("daemon", OK, f"{found['version']}, pid {found['pid']}{up}")
    assert error is not None
    if isinstance(error, NotRunning):
        return Check("daemon", NOTE, error.message, error.hint)
    return failed("daemon", error)


def health(status: dict[str, Any]) -> list[Check]:
    """The problems and warnings that it has itself, as far as no other check is about them."""
    found = status["health"]
    lines = [(NOTE if each["code"] == "no_agent" else FAILED, each) for each in found["problems"]]
    lines += [(NOTE, each) for each in found.get("warnings", ())]
    return [
        Check("health", state, each["message"], each["hint"], _short(each.get("agent_id")))
        for state, each in lines
        if each["code"] not in _ON_THEIR_OWN
    ] or [Check("health", OK, "no problem")]


def http(status: dict[str, Any]) -> Check:
    found = status.get("http") or {}
    if found.get("problem"):
        return Check("http", FAILED, found["problem"], "Choose another `http_port`, or end what is there.")
    if found.get("warning"):
        return Check("http", NOTE, found["warning"], "Set `http_host` to 127.0.0.1 unless this is meant.")
    return Check("http", OK, found.get("url") or "off")


def checkup(cli: Cli, status: dict[str, Any] | None, error: CliError | None) -> list[Check]:
    """What only the daemon's own program can find out: libraries, store, keys, relays."""
    if status is None and not isinstance(error, NotRunning):
        return [Check("checkup", SKIPPED, "store, keys and relays: the daemon does not answer")]
    try:
        if status is not None:
            found = cli.daemon.call("GET", "/v1/checkup", timeout=_PATIENCE)[1]["findings"]
        else:
            found = offline(cli, "checkup")
    except Refused as refusal:
        if status is not None and refusal.code == "not_found":
            what = f"store, keys and relays: a daemon of version {status['daemon']['version']} cannot say"
            return [Check("checkup", SKIPPED, what, "Run `pacerelle stop`: the next call starts the installed one.")]
        name = "settings" if refusal.code == "config" else "checkup"
        return [failed(name, refusal)]
    except CliError as problem:
        return [failed("checkup", problem)]
    return [Check(f["check"], f["state"], f["message"], f["hint"], f["about"]) for f in found]


def webhooks(cli: Cli) -> list[Check]:
    """Whether the endpoints take what is sent to them; one that needs no look has no line of its own."""
    try:
        found = cli.daemon.get("/v1/webhooks")["webhooks"]
    except CliError:
        return []  # a daemon of a version without them
    return judge_webhooks(found)


def judge_webhooks(found: list[dict[str, Any]]) -> list[Check]:
    """Of what `pacerelle webhook list --json` shows. Of an address only the host: the rest may be a secret."""
    checks = []
    for each in found:
        about, again = urlsplit(each["url"]).hostname, f"pacerelle webhook test {each['id']}"
        if each["failures"]:
            checks.append(Check("webhook", FAILED, f"the last {each['failures']} attempts failed", again, about))
        elif each["state"] != "active":
            remedy = f"pacerelle webhook resume {each['id']}"
            checks.append(Check("webhook", NOTE, f"{each['state']}", remedy, about))
    return checks or [Check("webhook", OK, f"{len(found)} take what is sent" if found else "none")]


def _short(agent_id: str | None) -> str | None:
    return f"…{agent_id[-4:]}" if agent_id else None
