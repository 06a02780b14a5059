"""Who waits for requests, in order: new requests go round, one for each that waits before anybody gets a second."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count

from .model import Session


@dataclass(slots=True, eq=False)
class Waiter:
    """A session's call that waits. `woken` is set when there may be something for it.

    `share` is how many requests came for it since it looked; `had`, how many had come when it did.
    """

    session: Session
    conversation_id: str | None
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    share: int = 0
    had: int = 0
    looked: bool = False


class Waiting:
    """The session that got something longest ago comes first, so that nobody loses its turn between two calls."""

    def __init__(self) -> None:
        self._waiters: deque[Waiter] = deque()
        self._turns = count(1)

    @contextmanager
    def queue(self, session: Session, conversation_id: str | None) -> Iterator[Waiter]:
        """While inside, the caller is in the queue. What woke it and was not used is passed on when it leaves."""
        waiter = Waiter(session, conversation_id)
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

    def turn(self, waiter: Waiter) -> int | None:
        """How many new requests this waiter may take now, before it looks; None: as many as it likes."""
        first, waiter.looked = not waiter.looked, True
        waiter.had, waiter.share = waiter.share, 0
        waiter.woken.clear()
        others = [other for other in self._waiters if other is not waiter]
        if waiter.had or not others:
            return waiter.had or None
        if any(other.share for other in others):
            return 0  # what there is came for them; they pass on what they leave
        return None if first else 1

    def took(self, waiter: Waiter, number: int, *, left: bool) -> None:
        """It took so many; `left`: there are others that it left. They may be something for the others who wait."""
        if number:
            waiter.session.served = next(self._turns)
        if waiter.had > number or (number and left):
            for other in self._waiters:
                if other is not waiter:
                    other.woken.set()

    def wake(self, conversation_id: str) -> None:
        """There is one more request, in this conversation."""
        fitting = (w for w in self._waiters if w.conversation_id in (None, conversation_id))
        if (waiter := min(fitting, key=lambda w: (w.share, w.session.served), default=None)) is not None:
            waiter.share += 1
            waiter.woken.set()

    def wake_all(self) -> None:
        """Claims ended or the state changed: everybody looks again."""
        for waiter in self._waiters:
            waiter.woken.set()
