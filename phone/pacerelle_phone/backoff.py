"""Waiting between attempts: full jitter, so that many devices do not come back to a restarted relay in step."""

from __future__ import annotations

import random

FIRST = 0.5  # seconds
LONGEST = 30.0  # seconds


def delay(attempt: int) -> float:
    """Seconds to wait after the failed attempt number `attempt` (from 0)."""
    return random.uniform(0, min(LONGEST, FIRST * 2 ** min(attempt, 16)))
