"""How much of everything one caller may have, and how long things are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

MIB = 1024 * 1024
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes, ages in seconds; counts are per account unless the name says otherwise."""

    json_bytes: int = 4 * MIB
    frame_bytes: int = 4 * MIB
    blob_bytes: int = 64 * MIB
    account_blob_bytes: int = 2048 * MIB
    agents: int = 100
    devices: int = 50
    conversations: int = 1_000
    pending_per_mailbox: int = 10_000  # frames that an agent or a device has not acknowledged
    pending_bytes_per_mailbox: int = 256 * MIB
    one_time_prekeys_per_agent: int = 1_000  # beyond it the oldest are discarded
    group_keys_per_conversation: int = 2_000
    sends_per_minute: int = 12_000  # POST /messages; also how many may come at once
    open_failures_per_minute: int = 30  # wrong invites and link codes, all callers together
    link_code_s: float = 600.0
    acknowledged_s: float = 7 * DAY_S  # how long a delivered message is kept to recognise a repetition
    unacknowledged_s: float = 90 * DAY_S
    blob_s: float = 90 * DAY_S


class Bucket:
    """A token bucket: `per_minute` at once, and as many again each minute."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._size = float(per_minute)
        self._rate = per_minute / 60.0
        self._clock = clock  # monotonic seconds
        self._level = self._size
        self._at = clock()

    def wait(self) -> float:
        """Seconds until one may be taken; 0 if now."""
        now = self._clock()
        self._level = min(self._size, self._level + (now - self._at) * self._rate)
        self._at = now
        return max(0.0, (1.0 - self._level) / self._rate)

    def take(self) -> float:
        """Takes one if there is one. Returns `wait()` as it was before: 0 means taken."""
        delay = self.wait()
        if delay == 0.0:
            self._level -= 1.0
        return delay
