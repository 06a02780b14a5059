"""What every request handler needs."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from .blobs import BlobStore
from .database import Database
from .errors import OverQuota
from .hub import Hub
from .limits import Bucket, Limits


@dataclass(slots=True)
class Services:
    """The parts of one running relay."""

    database: Database
    blobs: BlobStore
    hub: Hub
    limits: Limits
    invite: str | None
    _sends: dict[str, Bucket] = field(default_factory=dict)
    _open_failures: Bucket = field(init=False)

    def __post_init__(self) -> None:
        self._open_failures = Bucket(self.limits.open_failures_per_minute, time.monotonic)

    def now(self) -> float:
        """Unix seconds."""
        return time.time()

    def count_send(self, account_id: str) -> None:
        """Raises OverQuota when the account sends too often."""
        bucket = self._sends.get(account_id)
        if bucket is None:
            bucket = self._sends[account_id] = Bucket(self.limits.sends_per_minute, time.monotonic)
        if (delay := bucket.take()) > 0:
            raise OverQuota("too many messages in a minute", code="rate", retry_after=delay)

    def check_open_call(self) -> None:
        """Raises OverQuota while somebody is guessing invites or link codes."""
        if (delay := self._open_failures.wait()) > 0:
            raise OverQuota("too many wrong codes: wait a moment", code="rate", retry_after=delay)

    def count_open_failure(self) -> None:
        self._open_failures.take()
