"""The relay's exceptions.

::

    RelayError                 `code` (stable), `message`, `status` (HTTP), `retry_after` (seconds or None)
    ├── Malformed        400   the caller's bytes are not what the protocol says; names the field
    ├── Unauthorized     401   no token, or not one of ours
    ├── Forbidden        403   it exists and is somebody else's
    ├── NotFound         404
    ├── Conflict         409   the id is taken, or the state does not allow it
    ├── TooLarge         413
    ├── OverQuota        429
    └── StorageFailed    503   our fault: disk full, I/O error. Nothing was written
    DataError                  the data directory cannot be used: in use, written by a newer version, damaged

Messages are shown to people and go into logs: they never contain tokens or payloads.
"""

from __future__ import annotations


class RelayError(Exception):
    """An answer to a caller other than the one hoped for."""

    status = 500
    code = "error"

    def __init__(self, message: str, *, code: str | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after  # seconds
        if code is not None:
            self.code = code

    def as_dict(self) -> dict[str, dict[str, str]]:
        return {"error": {"code": self.code, "message": self.message}}


class Malformed(RelayError):
    status = 400
    code = "malformed"


class Unauthorized(RelayError):
    status = 401
    code = "token"


class Forbidden(RelayError):
    status = 403
    code = "forbidden"


class NotFound(RelayError):
    status = 404
    code = "not_found"


class Conflict(RelayError):
    status = 409
    code = "conflict"


class TooLarge(RelayError):
    status = 413
    code = "too_large"


class OverQuota(RelayError):
    status = 429
    code = "quota"


class StorageFailed(RelayError):
    status = 503
    code = "storage"


class DataError(Exception):
    """The data directory cannot be used; the message says why and what to do."""
