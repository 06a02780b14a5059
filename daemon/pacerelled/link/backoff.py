"""When to try again to connect: full jitter, counted per stable time, and never too often. Pure."""

from __future__ import annotations

import random
from collections import deque
from email.utils import parsedate_to_datetime

FIRST = 0.5  # seconds
STABLE = 10.0  # a connection that lasted so long starts the count anew
ATTEMPTS = 6  # of a `Pace`
LONGEST_RETRY_AFTER = 600.0  # seconds


class Backoff:
    """`next()` gives the seconds to wait before the next attempt, up to `maximum`.

    Full jitter (a random share of a doubling ceiling), so that a thousand daemons do not return in step. A relay
    that accepts and closes at once does not count as a success: only a connection that lasted `STABLE` seconds
    resets the count.
    """

    def __init__(self, maximum: float = 30.0, rng: random.Random | None = None) -> None:
        self._maximum = maximum
        self._failures = 0
        self._random = rng or random.Random()

    def next(self, *, lasted: float = 0.0, at_least: float = 0.0) -> float:
        """`lasted`: how long the last connection stood; `at_least`: what the relay asked for (Retry-After)."""
        if lasted >= STABLE:
            self._failures = 0
        ceiling = min(self._maximum, FIRST * 2 ** min(self._failures, 16))
        self._failures += 1
        return max(at_least, self._random.uniform(0.0, ceiling))

    def reset(self) -> None:
        self._failures = 0


class Pace:
    """At most `ATTEMPTS` in any `period` seconds, which jitter alone does not promise. Times are monotonic seconds."""

    def __init__(self, period: float) -> None:
        self._period = period
        self._attempts: deque[float] = deque(maxlen=ATTEMPTS)

    def attempt(self, now: float) -> None:
        """One is being made."""
        self._attempts.append(now)

    def wait(self, now: float) -> float:
        """Seconds until the next is allowed."""
        if len(self._attempts) < ATTEMPTS:
            return 0.0
        return max(0.0, self._attempts[0] + self._period - now)

    def reset(self) -> None:
        self._attempts.clear()


def retry_after(value: str | None, date: str | None) -> float:
    """Seconds that a Retry-After header asks for; 0 if it does not say.

    Its form with a time is measured from the answer's own Date, not by this machine's clock.
    """
    if not value:
        return 0.0
    if value.isascii() and value.isdigit():
        return min(float(value[:9]), LONGEST_RETRY_AFTER)
    try:
        seconds = (parsedate_to_datetime(value) - parsedate_to_datetime(date or "")).total_seconds()
    except (ValueError, TypeError):
        return 0.0
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)
