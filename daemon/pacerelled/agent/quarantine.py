"""What a person can do about inbound messages in quarantine: look, have them tried again, drop them."""

from __future__ import annotations

from typing import Any

from pacerelle_protocol.errors import PayloadError
from pacerelle_protocol.payload import Text, open_plaintext
from pacerelled.errors import InvalidArgument, UnknownMessage
from pacerelled.store import events, quarantine
from pacerelled.store.database import Store, Tx
from pacerelled.store.quarantine import Chosen

from .crypto import AgentCrypto
from .inbox import Inbox
from .intake import Result


class Quarantine:
    """The part of `api.AgentApi` that is about quarantine."""

    def __init__(self, agent_id: str, store: Store, crypto: AgentCrypto, inbox: Inbox) -> None:
        self._agent_id = agent_id
        self._store = store
        self._crypto = crypto
        self._inbox = inbox

    async def select(self, *, reason: str | None = None) -> list[dict[str, Any]]:
        return await self._store.run(lambda tx: quarantine.select(tx, self._agent_id, _chosen(None, reason)))

    async def show(self, number: int, *, text: bool = False) -> dict[str, Any]:
        def job(tx: Tx) -> dict[str, Any]:
            row = quarantine.select(tx, self._agent_id, self._one(tx, number))[0]
            if text:
                plaintext = quarantine.content(tx, number).plaintext
                row["text"] = None if plaintext is None else _text_of(plaintext)
            return row

        return await self._store.run(job)

    async def retry(self, *, number: int | None = None, reason: str | None = None) -> dict[str, int]:
        def job(tx: Tx) -> tuple[list[int], list[Result]]:
            chosen = _chosen(number, reason) if number is None else self._one(tx, number)
            numbers = quarantine.numbers(tx, self._agent_id, chosen)
            return numbers, self.take(tx, chosen)

        numbers, results = await self._store.run(job)
        await self.taken(results)
        left = await self._store.run(lambda tx: quarantine.numbers(tx, self._agent_id, Chosen()))
        still = len(set(numbers) & set(left))
        return {"accepted": len(numbers) - still, "left": still}

    async def drop(
        self, *, number: int | None = None, reason: str | None = None, sender: str | None = None
    ) -> dict[str, int]:
        if number is None and reason is None and sender is None:
            raise InvalidArgument(
                "It is not said what to drop", argument="id", hint="Name one message, a reason or a sender."
            )

        def job(tx: Tx) -> int:
            chosen = _chosen(number, reason, sender) if number is None else self._one(tx, number)
            numbers = quarantine.numbers(tx, self._agent_id, chosen)
            for each in numbers:
                quarantine.drop(tx, each)
            if numbers:
                events.add(tx, self._agent_id, "quarantine.dropped", count=len(numbers))
            return len(numbers)

        return {"dropped": await self._store.run(job)}

    def take(self, tx: Tx, *chosen: Chosen) -> list[Result]:
        """Takes what is chosen once more, oldest first. After the commit: `taken`."""
        self._crypto.guard(tx)
        results = [result for each in chosen for result in self._inbox.retry(tx, each)]
        self._crypto.save(tx)
        return results

    async def taken(self, results: list[Result]) -> None:
        await self._inbox.finish(results)
        await self._inbox.fetch_missing_keys()

    def _one(self, tx: Tx, number: int) -> Chosen:
        chosen = Chosen(number)
        if not quarantine.numbers(tx, self._agent_id, chosen):
            raise UnknownMessage(
                f"There is no message {number} in quarantine", hint="`pacerelle quarantine list` shows them."
            )
        return chosen


def _chosen(number: int | None, reason: str | None, sender: str | None = None) -> Chosen:
    return Chosen(number, (reason,) if reason is not None else (), sender)


def _text_of(plaintext: bytes) -> str:
    """What a person would read; of what has no right form, all of it."""
    try:
        opened = open_plaintext(plaintext)
    except PayloadError:
        return plaintext.decode("utf-8", "replace")
    return opened.content.text if isinstance(opened.content, Text) else opened.body
