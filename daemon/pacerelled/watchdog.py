"""Feeds the service manager's watchdog (sd_watchdog_enabled(3)), as a proof that the daemon does its work.

It is fed by the loop that serves hosts, each time after the store's thread has answered in its turn: every transaction
that was asked for before has ended then. So a hang of either is found. A full disk is none: it is answered at once.
Nothing is measured here, so neither a suspended machine nor a stopped process can be mistaken for a hang.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping

from .sd_notify import notify
from .store.database import Store

_SHARE = 3  # feedings in the time that the service manager allows


def interval(env: Mapping[str, str]) -> float | None:
    """Seconds between feedings; None where nobody watches this process."""
    allowed, pid = env.get("WATCHDOG_USEC", ""), env.get("WATCHDOG_PID", "")
    if not allowed.isdigit() or int(allowed) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(allowed) / 1e6 / _SHARE


async def feed(store: Store, env: Mapping[str, str]) -> None:
    """Until it is cancelled; returns at once where nobody watches."""
    pause = interval(env)
    while pause is not None:
        await store.settled()
        notify("WATCHDOG=1", env)
        await asyncio.sleep(pause)
