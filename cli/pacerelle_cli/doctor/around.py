"""What is around the daemon: the service, and the entries in the hosts' files."""

from __future__ import annotations

from typing import Any

from pacerelle_cli.context import Cli
from pacerelle_cli.errors import CliError
from pacerelle_cli.hosts.command import survey
from pacerelle_cli.service import record
from pacerelle_cli.service.commands import look

from .check import FAILED, NOTE, OK, SKIPPED, Check


def service(cli: Cli) -> list[Check]:
    """Whether it is installed and runs, its files are those of this version, and it outlives a logout."""
    if record.load(cli.paths.state) is None:
        return [Check("service", OK, "not installed: hosts start the daemon")]
    try:
        return judge_service(look(cli))
    except CliError as error:
        return [Check("service", SKIPPED, error.message, error.hint)]


def judge_service(found: dict[str, Any]) -> list[Check]:
    """Of what `pacerelle service status --json` shows."""
    if found["state"] in ("stopped", "failed"):
        checks = [Check("service", FAILED, f"{found['state']}", "Run `pacerelle service start`, then `service logs`.")]
    elif not found["enabled"]:
        checks = [Check("service", NOTE, f"{found['state']}, does not start by itself", "pacerelle service install")]
    else:
        checks = [Check("service", OK, f"{found['state']}, by {found['manager']}")]
    if not found["current"]:
        checks.append(Check("service files", NOTE, "not those of this version", "pacerelle service install"))
    else:
        checks.append(Check("service files", OK, "those of this version"))
    if found["linger"] is False:
        remedy = "To have it run from boot on: loginctl enable-linger"
        checks.append(Check("linger", NOTE, "off: the daemon ends when you log out", remedy))
    elif found["linger"]:
        checks.append(Check("linger", OK, "on: the daemon runs from boot on"))
    return checks


def hosts(cli: Cli) -> list[Check]:
    """The entries in the hosts' own files."""
    return judge_hosts(survey(cli))


def judge_hosts(rows: list[dict[str, Any]]) -> list[Check]:
    """Of what `pacerelle host list --json` shows. A host without an entry is none of our business."""
    checks = [each for row in rows if (each := _host(row)) is not None]
    return checks or [Check("host", NOTE, "no host has the entry", "pacerelle host install HOST")]


def _host(row: dict[str, Any]) -> Check | None:
    name, again = row["host"], f"pacerelle host install {row['host']}"
    if row["state"] == "current":
        return Check("host", OK, f"the entry in {row['file']}", about=name)
    if row["state"] == "outdated":
        return Check("host", NOTE, f"the entry in {row['file']} runs another installation", again, name)
    if row["state"] == "other command":
        return Check("host", NOTE, f"the entry in {row['file']} runs something else", again, name)
    if row["state"] == "unreadable":
        return Check("host", FAILED, row["reason"], "Mend the file by hand.", name)
    return None
