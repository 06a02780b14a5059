"""Waiting times between attempts to connect: full jitter, counted per stable time. Pure."""

from __future__ import annotations

import random

FIRST = 0.5  # seconds
STABLE = 10.0  # a connection that lasted so long starts the count anew


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
