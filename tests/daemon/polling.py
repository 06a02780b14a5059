"""Waiting for something to become true."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any

DEADLINE = 30.0  # seconds; generous, since the machine may be busy


async def until(condition: Callable[[], Any], what: str = "the condition", deadline: float = DEADLINE) -> Any:
    """Polls until `condition()` (which may be a coroutine function) is true; returns its value."""
    end = time.monotonic() + deadline
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < end, f"timed out waiting for {what}"
        await asyncio.sleep(0.01)
