"""The agents' events in the daemon's log, as callers see them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from pacerelled.store import events
from pacerelled.store.database import Tx

from .guard import Scope
from .tracker import TURN_ENDED, TYPES

Event = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which events a caller asks for; nothing asked for is everything."""

    scope: Scope
    agent_ids: Collection[str] = ()  # or beginnings of them
    labels: tuple[tuple[str, str], ...] = ()
    types: Collection[str] = ()
    only_needs_attention: bool = False

    def __call__(self, event: Event) -> bool:
        data = event["data"]
        if event["type"] not in (self.types or TYPES):
            return False
        labels = data.get("labels") or {}
        if not self.scope.sees(labels) or not all(labels.get(name) == value for name, value in self.labels):
            return False
        if self.agent_ids and not any(data["agent_id"].startswith(each) for each in self.agent_ids):
            return False
        return not self.only_needs_attention or data.get("needs_attention") is True


def shown(event: Event) -> Event:
    """The JSON shape in docs/paseo.md."""
    about = {name: event[name] for name in ("id", "epoch", "seq", "type", "at")}
    return {**about, **event["data"]}


def finish(tx: Tx, cursor: str, agent_id: str) -> Event | None:
    """The first turn of an agent that ended by itself after a cursor."""
    wanted = Wanted(Scope(), (agent_id,), types=(TURN_ENDED,))
    place: str | None = cursor
    while True:
        page = events.page(tx, place, lambda e: wanted(e) and e["data"].get("outcome") != "canceled", 1)
        if page.events:
            return page.events[0]
        if page.gap or not page.more:
            return None
        place = page.cursor
