"""One line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from pacerelle_cli.errors import CliError

OK: Final = "ok"
NOTE: Final = "note"
"""Worth knowing, and nothing is broken."""
FAILED: Final = "failed"
SKIPPED: Final = "skipped"
"""It could not be looked at."""


@dataclass(frozen=True)
class Check:
    """`check` is a stable name, `about` which of several. No secrets, no whole ids."""

    check: str
    state: str
    message: str
    remedy: str = ""
    about: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def failed(check: str, error: CliError) -> Check:
    return Check(check, FAILED, error.message, error.hint)


def any_failed(checks: Iterable[Check]) -> bool:
    return any(each.state == FAILED for each in checks)
