"""Asks everybody, in the order in which one thing stands on the other."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from pacerelle_cli.context import Cli

from . import around, daemon, local
from .check import Check


def examine(cli: Cli) -> tuple[list[Check], dict[str, Any] | None]:
    """All checks, and the daemon's status if it gave one. Takes up to two minutes where networks are slow."""
    status, error = daemon.ask(cli)
    uid, running = os.getuid(), status is not None
    shims = [host["shim"] for host in (status or {}).get("hosts", ()) if host.get("shim")]
    checks = [
        local.python(),
        local.versions(version("pacerelled"), status["daemon"]["version"] if status else None, shims),
        local.folder(cli.paths.state, uid),
        local.lock(cli.daemon.owner(), cli.paths.lock),
        *local.sockets(cli.paths, uid, running=running),
        daemon.daemon(status, error),
        *daemon.checkup(cli, status, error),
    ]
    if status is not None:
        checks += [*daemon.health(status), daemon.http(status), *daemon.webhooks(cli)]
    return [*_without_home([*checks, *around.service(cli), *around.hosts(cli)], os.path.expanduser("~"))], status


def _without_home(checks: Iterable[Check], home: str) -> Iterable[Check]:
    """`~` instead of the home, whose path has the user's name: the lines are there to be posted."""
    for each in checks:
        yield replace(each, message=_tilde(each.message, home), remedy=_tilde(each.remedy, home))


def _tilde(text: str, home: str) -> str:
    return text.replace(f"{home}/", "~/") if home not in ("", "/") else text
