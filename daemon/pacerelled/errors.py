"""The daemon's exceptions.

::

    PacerelledError            anything this daemon reports: `code` (stable), message (what), `hint` (what to do next)
    ├── ConfigError            a setting is wrong; names its key and where it came from
    ├── AlreadyRunning         another daemon holds the lock; has its pid
    ├── SocketPathError        the socket's path is taken by something that is not ours, or too long
    ├── StoreError             the database or its key cannot be used
    │   ├── StoreKeyError      missing or wrong key
    │   ├── StoreCorrupt       damaged, truncated, not ours
    │   ├── StoreTooNew        written by a newer version
    │   ├── StoreUnavailable   disk full or I/O error: passes, nothing was written
    │   └── StoreExists        there is one where another is to be restored
    ├── BackupError            a file that was to be restored
    │   ├── BackupDamaged      cut off, changed, or no backup
    │   └── WrongPassphrase
    ├── LinkError              the relay: unreachable, refused, answered nonsense
    │   ├── RelayUnreachable
    │   │   ├── NotConnected   there was no connection: nothing has left
    │   │   └── FrameRefused   the relay ended the connection because a frame of ours was too large for it
    │   ├── TokenRefused
    │   └── RelayRejected      4xx/5xx with the status
    ├── PaseoError             the Paseo daemon on this machine
    │   ├── PaseoUnavailable   not there, not connected, or no answer in time
    │   └── PaseoRefused       it said no, in its own words
    └── AgentError             a caller asked for something that cannot be done
        ├── UnknownAgent, NoAgent, AgentExists
        ├── UnknownMessage     no such request or reply
        ├── UnknownToken       no such access token
        ├── UnknownWebhook
        ├── InvalidArgument    names the argument
        └── NotPossible        right question, wrong moment (e.g. already processed by …)

Messages and hints are shown to people and assistants. They never contain message text, tokens or keys.
"""

from __future__ import annotations

import traceback


def place_of(error: BaseException) -> str:
    """Kind and place of an error of ours, for the log: its text may quote what people wrote, or an address."""
    frames = reversed(traceback.extract_tb(error.__traceback__))
    return f"{type(error).__name__} at {' < '.join(f'{f.filename}:{f.lineno} {f.name}' for f in frames)}"


class PacerelledError(Exception):
    """Base of everything here. `code` is stable, `hint` says what to do next."""

    code = "error"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code

    def as_dict(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


class ConfigError(PacerelledError):
    code = "config"


class AlreadyRunning(PacerelledError):
    code = "already_running"

    def __init__(self, message: str, *, pid: int | None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.pid = pid


class SocketPathError(PacerelledError):
    code = "socket_path"


class StoreError(PacerelledError):
    code = "store"


class StoreKeyError(StoreError):
    code = "store_key"


class StoreCorrupt(StoreError):
    code = "store_corrupt"


class StoreTooNew(StoreError):
    code = "store_too_new"


class StoreUnavailable(StoreError):
    code = "store_unavailable"


class StoreExists(StoreError):
    code = "store_exists"


class BackupError(PacerelledError):
    code = "backup"


class BackupDamaged(BackupError):
    code = "backup_damaged"


class WrongPassphrase(BackupError):
    code = "wrong_passphrase"


class LinkError(PacerelledError):
    code = "link"


class RelayUnreachable(LinkError):
    code = "relay_unreachable"


class NotConnected(RelayUnreachable):
    code = "not_connected"


class FrameRefused(RelayUnreachable):
    code = "frame_refused"


class TokenRefused(LinkError):
    code = "token_refused"


class RelayRejected(LinkError):
    code = "relay_rejected"

    def __init__(self, message: str, *, status: int, hint: str = "", retry_after: float = 0.0) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.retry_after = retry_after  # seconds that the relay asks for


class PaseoError(PacerelledError):
    code = "paseo"


class PaseoUnavailable(PaseoError):
    code = "paseo_unavailable"

    def __init__(self, message: str, *, hint: str = "", sent: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.sent = sent  # the request left: it may have been carried out


class PaseoRefused(PaseoError):
    code = "paseo_refused"

    def __init__(self, message: str, *, hint: str = "", reason: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.reason = reason  # the daemon's own code


class AgentError(PacerelledError):
    code = "agent"


class UnknownAgent(AgentError):
    code = "unknown_agent"


class NoAgent(AgentError):
    code = "no_agent"


class AgentExists(AgentError):
    code = "agent_exists"


class UnknownMessage(AgentError):
    code = "unknown_message"


class UnknownToken(AgentError):
    code = "unknown_token"


class UnknownWebhook(AgentError):
    code = "unknown_webhook"


class InvalidArgument(AgentError):
    code = "invalid_argument"

    def __init__(self, message: str, *, argument: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.argument = argument


class NotPossible(AgentError):
    code = "not_possible"
