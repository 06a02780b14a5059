"""One line of a checkup."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from pacerelled.errors import PacerelledError

State = Literal["ok", "note", "failed", "skipped"]
"""`note`: worth knowing, and nothing is broken. `skipped`: it could not be looked at, for the reason in the message."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`check` is a stable name, `about` which of several (an agent, a relay). No secrets, no whole ids."""

    check: str
    state: State
    message: str
    hint: str = ""
    about: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def failed(check: str, error: PacerelledError, about: str | None = None) -> Finding:
    return Finding(check, "failed", error.message, error.hint, about)
