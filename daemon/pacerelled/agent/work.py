"""Work that blocks, out of the loop's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def in_thread[**P, T](work: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs `work` in asyncio's pool, and does not end before it has ended, also if the caller is cancelled.

    So whoever cleans up afterwards has the files to itself.
    """
    task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # it is known now, and the cancellation goes before it
        raise cancelled
    return task.result()
