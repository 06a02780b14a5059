"""The allow list: with one, everybody else's messages wait in quarantine for the user's decision.

Without one, everybody who reaches the agent is authorized: a relay lets in its owner and the members of its groups.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pacerelled.store import devices, events
from pacerelled.store.database import Store, Tx
from pacerelled.store.quarantine import Chosen

from .intake import Result
from .quarantine import Quarantine
from .rejected import NOT_ALLOWED


class AllowList:
    """The part of `api.AgentApi` that is about the list. `on_decided` is called after each change."""

    def __init__(self, agent_id: str, store: Store, quarantine: Quarantine, *, on_decided: Callable[[], None]) -> None:
        self._agent_id = agent_id
        self._store = store
        self._quarantine = quarantine
        self._on_decided = on_decided

    async def show(self) -> dict[str, Any]:
        return await self._store.run(self._show)

    async def add(self, user_id: str) -> dict[str, Any]:
        """Allows a person, and takes what they had written. The first one makes the list."""
        return await self._change(
            "allow.added", lambda tx: devices.allow(tx, self._agent_id, user_id), Chosen(sender=user_id), user_id
        )

    async def remove(self, user_id: str) -> dict[str, Any]:
        """Holds what this person writes from now on. The list stays, also empty."""
        return await self._change(
            "allow.removed", lambda tx: devices.disallow(tx, self._agent_id, user_id), None, user_id
        )

    async def off(self) -> dict[str, Any]:
        """Allows everybody, and takes all that was held for want of it."""
        return await self._change("allow.off", lambda tx: devices.no_allow_list(tx, self._agent_id), Chosen(), None)

    async def _change(
        self, event: str, change: Callable[[Tx], bool], whose: Chosen | None, user_id: str | None
    ) -> dict[str, Any]:
        def job(tx: Tx) -> tuple[dict[str, Any], list[Result]]:
            if change(tx):
                events.add(tx, self._agent_id, event, user_id=user_id)
            results: list[Result] = []
            if whose is not None:
                results = self._quarantine.take(tx, Chosen(reasons=(NOT_ALLOWED,), sender=whose.sender))
            return self._show(tx), results

        shown, results = await self._store.run(job)
        await self._quarantine.taken(results)
        self._on_decided()
        return {**shown, "accepted": sum(result.outcome == "accepted" for result in results)}

    def _show(self, tx: Tx) -> dict[str, Any]:
        people = devices.allow_list(tx, self._agent_id)
        return {"on": people is not None, "people": people or []}
