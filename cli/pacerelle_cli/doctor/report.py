"""A file with the checks, the settings and the log, to be posted with a question."""

from __future__ import annotations

import getpass
import os
import platform
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from pacerelle_cli.context import Cli
from pacerelle_cli.errors import CliError
from pacerelle_cli.service import record

from .check import Check
from .redact import redacted, settings

LINES: Final = 500  # of the log
_MAX_LOG: Final = 1024 * 1024  # bytes read of it
_PATIENCE: Final = 20.0  # seconds for the journal


def write(path: Path, cli: Cli, checks: Iterable[Check], status: Mapping[str, Any] | None) -> None:
    """Raises CliError: the file exists, or cannot be written."""
    text = redacted("\n".join(_text(cli, checks)), _names(status))
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}.", hint="Choose another name.") from error
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def line(check: Check) -> str:
    """For a report, and for the terminal without colours."""
    about = f" {check.about}" if check.about else ""
    return f"{check.state:<8} {check.check}{about}: {check.message}"


def _text(cli: Cli, checks: Iterable[Check]) -> Iterable[str]:
    yield "Report of `pacerelle doctor`. Tokens, keys, agents and your name are left out; look through it all the same."
    yield f"System: {platform.platform()}, {platform.python_implementation()} {platform.python_version()}"
    yield "\n# Checks\n"
    for check in checks:
        yield line(check)
        if check.remedy:
            yield f"         {check.remedy}"
    yield "\n# Settings (config.toml)\n"
    try:
        yield from settings(cli.paths.config.read_bytes())
    except OSError:
        yield "(none)"
    yield f"\n# The last {LINES} lines of the log\n"
    yield from _log(cli)
    yield ""


def _log(cli: Cli) -> list[str]:
    if record.load(cli.paths.state):
        from pacerelle_cli.service.manager import NoManager, find_manager

        try:
            command = find_manager(os.environ).log_command(cli.paths.log, LINES, False)
            done = subprocess.run(command, capture_output=True, check=False, timeout=_PATIENCE)
            return done.stdout.decode(errors="replace").splitlines()
        except (NoManager, OSError, subprocess.TimeoutExpired):
            pass  # the file may have something
    try:
        with cli.paths.log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _MAX_LOG))
            return file.read().decode(errors="replace").splitlines()[-LINES:]
    except OSError:
        return ["(none)"]


def _names(status: Mapping[str, Any] | None) -> dict[str, str]:
    """Who and where somebody is, and instead of what it is replaced."""
    agents = [agent["agent_id"] for agent in (status or {}).get("agents", ())]
    return {
        os.path.expanduser("~"): "~",
        getpass.getuser(): "USER",
        socket.gethostname(): "HOST",
        **{agent: f"AGENT-{number}" for number, agent in enumerate(agents, 1)},
    }
