"""What a command can end with.

::

    CliError               message (what happened) and hint (what to do next); exit code 1
    ├── NotRunning         3: nobody listens at the daemon's socket
    ├── NotAnswering       3: somebody does, and does not answer in time
    └── Refused            the daemon's own error, with its code
        ├── LoginNeeded    4
        └── RelayOffline   5

Wrong usage is click's `UsageError`, exit code 2. These here are none of click's, so that `pacerelle status` can do
without it; `root` shows them.
"""

from __future__ import annotations

import sys
from typing import Final

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


class CliError(Exception):
    code = "failed"
    exit_code = FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def as_dict(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}

    def show(self) -> None:
        """On standard error."""
        print(f"Error: {escape(self.message)}", file=sys.stderr)
        if self.hint:
            print(f"  {escape(self.hint)}", file=sys.stderr)


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
