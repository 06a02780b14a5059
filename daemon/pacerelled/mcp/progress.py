"""Telling a host how far a long call is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from mcp.server import ServerRequestContext

PROGRESS_EVERY = 15.0  # seconds: well under the minute after which hosts give a silent call up


@contextmanager
def progress(
    context: ServerRequestContext[Any], every: float, state: Callable[[], tuple[float, float, str]]
) -> Iterator[None]:
    """Tells a host that asked for it how far its call is: done, total, and what it does.

    The SDK drops what the host did not ask for. Nothing is told twice: progress has to grow.
    """

    async def tell() -> None:
        told = 0.0
        while True:
            await asyncio.sleep(every)
            done, total, words = state()
            if done > told:
                await context.session.report_progress(done, total, words)
                told = done

    teller = asyncio.create_task(tell())
    try:
        yield
    finally:
        teller.cancel()
