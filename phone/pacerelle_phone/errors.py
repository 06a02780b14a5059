"""The phone's exceptions.

::

    PhoneError               anything this package reports: `code` (stable), message (what), `hint` (what to do next)
    ├── HomeInUse            another process uses this home; has its pid
    ├── HomeUnusable         the home or its file cannot be read, written or trusted
    ├── NotPaired            this home has no device yet
    ├── AlreadyPaired        this home has a device already
    ├── InvalidArgument      the caller's request is wrong; names the argument
    ├── UnknownAgent         no such agent or conversation in this account
    ├── AgentNotReady        the agent has not published its keys: it never connected
    ├── IdentityChanged      the agent shows another identity key than the one trusted so far
    ├── KeyMissing           this device has no key for that group or attachment
    ├── WaitTimeout          what was waited for did not come
    └── RelayError           the relay
        ├── RelayUnreachable
        ├── TokenRefused     the device was removed or its token is wrong
        └── RelayRejected    4xx/5xx with `status`, the relay's own code, and `retry_after` (seconds)

Messages and hints never contain message text, tokens or keys.
"""

from __future__ import annotations


class PhoneError(Exception):
    """Base of everything here. `code` is stable, `hint` says what to do next."""

    code = "phone"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def as_dict(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


class HomeInUse(PhoneError):
    code = "home_in_use"

    def __init__(self, message: str, *, pid: int | None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.pid = pid


class HomeUnusable(PhoneError):
    code = "home_unusable"


class NotPaired(PhoneError):
    code = "not_paired"


class AlreadyPaired(PhoneError):
    code = "already_paired"


class InvalidArgument(PhoneError):
    code = "invalid_argument"

    def __init__(self, message: str, *, argument: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.argument = argument


class UnknownAgent(PhoneError):
    code = "unknown_agent"


class AgentNotReady(PhoneError):
    code = "no_prekeys"


class IdentityChanged(PhoneError):
    code = "identity_changed"


class KeyMissing(PhoneError):
    code = "key_missing"


class WaitTimeout(PhoneError):
    code = "timeout"


class RelayError(PhoneError):
    code = "relay"


class RelayUnreachable(RelayError):
    code = "relay_unreachable"


class TokenRefused(RelayError):
    code = "token_refused"


class RelayRejected(RelayError):
    code = "relay_rejected"

    def __init__(
        self, message: str, *, status: int, code: str, hint: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, hint=hint, code=code)
        self.status = status
        self.retry_after = retry_after

    @property
    def is_final(self) -> bool:
        """The same call would be refused again."""
        return 400 <= self.status < 500 and self.status not in (408, 429)
