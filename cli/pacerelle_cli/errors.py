"""What a command can end with.

::

    CliError               message (what happened) and hint (what to do next); exit code 1
    ├── NotRunning         3: nobody listens at the daemon's socket
    ├── NotAnswering       3: somebody does, and does not answer in time
    └── Refused            the daemon's own error, with its code
        ├── LoginNeeded    4
        └── RelayOffline   5

Wrong usage is click's `UsageError`, exit code 2.
"""

from __future__ import annotations

from typing import IO, Any, Final

import click

from .text import escape

FAILED: Final = 1
NOT_RUNNING: Final = 3
LOGIN_NEEDED: Final = 4
RELAY_OFFLINE: Final = 5

EXIT_CODES: Final = {
    "no_agent": LOGIN_NEEDED,
    "token_missing": LOGIN_NEEDED,
    "token_refused": LOGIN_NEEDED,
    "relay_offline": RELAY_OFFLINE,
    "relay_unreachable": RELAY_OFFLINE,
}
"""Exit codes for the daemon's error and problem codes; all others are 1."""


class CliError(click.ClickException):
    code = "failed"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    def as_dict(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"Error: {escape(self.message)}", err=True)
        if self.hint:
            click.echo(f"  {escape(self.hint)}", err=True)


class NotRunning(CliError):
    code = "not_running"
    exit_code = NOT_RUNNING


class NotAnswering(CliError):
    code = "not_answering"
    exit_code = NOT_RUNNING


class Refused(CliError):
    def __init__(self, code: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class LoginNeeded(Refused):
    exit_code = LOGIN_NEEDED


class RelayOffline(Refused):
    exit_code = RELAY_OFFLINE


def refused(code: str, message: str, *, hint: str = "") -> Refused:
    """The error for one of the daemon's codes."""
    kinds = {LOGIN_NEEDED: LoginNeeded, RELAY_OFFLINE: RelayOffline}
    return kinds.get(EXIT_CODES.get(code, FAILED), Refused)(code, message, hint=hint)
