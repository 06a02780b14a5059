"""Who waits for requests, in order: a new request wakes one session, and goes round."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Waiter:
    """A session's call that waits. `woken` is set when there may be something for it."""

    conversation_id: str | None
    woken: asyncio.Event = field(default_factory=asyncio.Event)


class Waiting:
    """First come, first woken. A waiter that was woken for nothing keeps its place."""

    def __init__(self) -> None:
        self._waiters: deque[Waiter] = deque()

    @contextmanager
    def queue(self, conversation_id: str | None) -> Iterator[Waiter]:
        """While inside, the caller is in the queue. What woke it and was not used is passed on when it leaves."""
        waiter = Waiter(conversation_id)
        self._waiters.append(waiter)
        try:
            yield waiter
        except BaseException:
            waiter.woken.set()  # it may have been on its way to something
            raise
        finally:
            self._waiters.remove(waiter)
            if waiter.woken.is_set():
                self.wake_all()  # it is not known for which conversation: none may miss it

    def wake(self, conversation_id: str) -> None:
        """There is one more request, in this conversation."""
        for waiter in self._waiters:
            if not waiter.woken.is_set() and waiter.conversation_id in (None, conversation_id):
                waiter.woken.set()
                return

    def wake_all(self) -> None:
        """Claims ended or the state changed: everybody looks again."""
        for waiter in self._waiters:
            waiter.woken.set()
