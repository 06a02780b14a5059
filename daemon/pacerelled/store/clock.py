"""The store's own time: how long it has lived, whatever the machine's clock is set to.

What is kept for a number of days must not be lost because a clock jumped by years, forward or back. While the store is
open its time goes with a clock that nobody sets. While it is closed only the wall clock tells, and is believed for a
week at most: of a longer pause the rest does not count, and what is kept stays a little longer.
"""

from __future__ import annotations

import time

DAY = 86400.0  # seconds
LONGEST_PAUSE = 7 * DAY

# Goes on while the machine sleeps, where there is such a clock.
_STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def steady() -> float:
    """Seconds since some moment, never set by anybody."""
    return time.clock_gettime(_STEADY)


class StoreClock:
    """`saved` is what was written last, as (seconds lived, wall clock then); None for a new store."""

    def __init__(self, saved: tuple[float, float] | None) -> None:
        lived, wall = saved or (0.0, time.time())
        self._lived = lived + min(max(time.time() - wall, 0.0), LONGEST_PAUSE)
        self._since = steady()

    @property
    def day(self) -> int:
        """Whole days lived."""
        return int(self.lived // DAY)

    def reading(self) -> tuple[float, float]:
        """What to write down."""
        return self.lived, time.time()

    @property
    def lived(self) -> float:
        """Seconds."""
        return self._lived + steady() - self._since
