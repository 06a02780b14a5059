"""Runs the daemon so that it kills itself at one point of its work: `crashing.py POINT NTH [the daemon's arguments]`.

The daemon knows nothing of it: its functions are wrapped here, before it starts, and the NTH time that it passes the
point, SIGKILL ends it there.
"""

from __future__ import annotations

import functools
import itertools
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pacerelled.__main__ import main
from pacerelled.agent.crypto import AgentCrypto
from pacerelled.agent.inbox import Inbox
from pacerelled.link.connection import RelayConnection
from pacerelled.store import replies, requests

Die = Callable[[], None]


def before(owner: Any, name: str, die: Die) -> None:
    """Instead of the call."""
    wrapped = getattr(owner, name)

    @functools.wraps(wrapped)
    def dying(*args: Any, **kwargs: Any) -> Any:
        die()
        return wrapped(*args, **kwargs)

    setattr(owner, name, dying)


def after(owner: Any, name: str, die: Die) -> None:
    """When the call has returned."""
    wrapped = getattr(owner, name)

    @functools.wraps(wrapped)
    def dying(*args: Any, **kwargs: Any) -> Any:
        result = wrapped(*args, **kwargs)
        die()
        return result

    setattr(owner, name, dying)


def after_await(owner: Any, name: str, die: Die, only: str = "") -> None:
    """When the coroutine has returned; `only` where its first argument contains this."""
    wrapped = getattr(owner, name)

    @functools.wraps(wrapped)
    async def dying(self: Any, *args: Any) -> Any:
        result = await wrapped(self, *args)
        if not only or only in args[0]:
            die()
        return result

    setattr(owner, name, dying)


def committed(owner: Any, name: str, die: Die, when: Callable[[Any, Any], bool] = lambda result, args: True) -> None:
    """When the transaction in which this was called is on the disk."""
    wrapped = getattr(owner, name)

    @functools.wraps(wrapped)
    def dying(tx: Any, *args: Any, **kwargs: Any) -> Any:
        result = wrapped(tx, *args, **kwargs)
        if when(result, args):
            tx.after_commit(die)
        return result

    setattr(owner, name, dying)


POINTS: dict[str, Callable[[Die], None]] = {
    "request received": lambda die: before(Inbox, "accept", die),
    "request decrypted": lambda die: after(AgentCrypto, "decrypt", die),
    "request committed": lambda die: committed(requests, "insert_request", die),
    "request acknowledged": lambda die: after_await(RelayConnection, "send", die, only='"ACK_READ"'),
    # The claim is on the disk, the answer is not written.
    "request handed out": lambda die: committed(requests, "take", die, when=lambda result, _: bool(result.fresh)),
    "request processed": lambda die: committed(requests, "mark_processed", die),
    "reply encrypted": lambda die: after(AgentCrypto, "seal", die),
    "reply committed": lambda die: committed(replies, "insert_reply", die),
    "reply about to be sent": lambda die: committed(replies, "begin_sending", die, when=lambda result, _: bool(result)),
    "reply sent": lambda die: after_await(RelayConnection, "send", die, only='"MSG"'),
    "reply confirmed": lambda die: after_await(RelayConnection, "flushed", die),
    "reply submitted": lambda die: committed(replies, "set_state", die, when=lambda _, args: "submitted" in args),
}


def arm(point: str, nth: int) -> None:
    """Lets this process die the `nth` time that it passes the point."""
    passing = itertools.count(1)

    def die() -> None:
        if next(passing) >= nth:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()

    POINTS[point](die)


if __name__ == "__main__":
    point, nth, *arguments = sys.argv[1:]
    arm(point, int(nth))
    main(arguments)
