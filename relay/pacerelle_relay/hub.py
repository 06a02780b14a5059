"""Who is connected right now. Lives on the event loop; what must not be lost lies in the database."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Protocol

REPLACED = 4000  # close codes of ours
REVOKED = 4001


class Receiver(Protocol):
    """One open connection."""

    def wake(self) -> None:
        """There may be something new in the mailbox."""

    def tell(self, frame: str) -> None:
        """Sends a frame that is worth nothing later, so it is stored nowhere."""

    def end(self, code: int, reason: str) -> None:
        """Begins to close the connection."""

    async def ended(self) -> None:
        """Returns when the connection is closed."""


class Hub:
    """At most one connection a mailbox (an agent's or a device's id): the newest."""

    def __init__(self) -> None:
        self._connected: dict[str, Receiver] = {}
        self._all: set[Receiver] = set()

    def attach(self, mailbox: str, receiver: Receiver) -> None:
        former = self._connected.get(mailbox)
        self._connected[mailbox] = receiver
        self._all.add(receiver)
        if former is not None:
            former.end(REPLACED, "a newer connection took over")

    def detach(self, mailbox: str, receiver: Receiver) -> None:
        self._all.discard(receiver)
        if self._connected.get(mailbox) is receiver:
            del self._connected[mailbox]

    def is_connected(self, mailbox: str) -> bool:
        return mailbox in self._connected

    def wake(self, mailboxes: Iterable[str]) -> None:
        for mailbox in mailboxes:
            if (receiver := self._connected.get(mailbox)) is not None:
                receiver.wake()

    def tell(self, mailboxes: Iterable[str], frame: str) -> None:
        for mailbox in mailboxes:
            if (receiver := self._connected.get(mailbox)) is not None:
                receiver.tell(frame)

    def revoke(self, mailbox: str) -> None:
        if (receiver := self._connected.get(mailbox)) is not None:
            receiver.end(REVOKED, "the token is no longer valid")

    async def close(self, code: int, reason: str) -> None:
        """Ends every connection and waits until they are closed."""
        receivers = list(self._all)
        for receiver in receivers:
            receiver.end(code, reason)
        await asyncio.gather(*(receiver.ended() for receiver in receivers))
