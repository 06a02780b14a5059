"""An agent's messages for other programs: all of them, page by page."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Literal

from pacerelled.errors import InvalidArgument
from pacerelled.store import export
from pacerelled.store.database import Store

from . import shapes


class Export:
    """The part of `api.AgentApi` with which everything can be read out."""

    def __init__(self, agent_id: str, store: Store) -> None:
        self._agent_id = agent_id
        self._store = store

    async def page(
        self,
        kind: Literal["requests", "replies"],
        *,
        after: int = 0,
        conversation_id: str | None = None,
        since: str | None = None,
        limit: int = 100,
    ) -> dict[str, Any]:
        """{"messages": oldest first, "next": what to give as `after` for the next page, or None}.

        `since`: an ISO 8601 time; without a zone it is UTC. Raises InvalidArgument.
        """
        moment = _utc(since) if since is not None else None
        select = export.requests_after if kind == "requests" else export.replies_after
        rows = await self._store.run(
            lambda tx: select(tx, self._agent_id, after, conversation_id=conversation_id, since=moment, limit=limit + 1)
        )
        shape = shapes.request if kind == "requests" else shapes.reply
        found = [shape(row) for row in rows[:limit]]
        return {
            "messages": [each.as_dict() for each in found],
            "next": found[-1].seq if len(rows) > limit else None,
        }


def _utc(text: str) -> str:
    """As the store writes times."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidArgument(
            "`since` is no time", argument="since", hint="Write it like 2031-05-06 or 2031-05-06T07:08:09Z."
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
