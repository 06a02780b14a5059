"""Which events somebody wants to hear of. Pure: `Wanted.__call__` looks at one event."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pacerelled.store.events import Event

ATTENTION = frozenset(
    {
        "message.received",
        "widget.answered",
        "message.overdue",
        "message.quarantined",
        "widget.expired",
        "reply.uncertain",
        "reply.failed",
        "identity.changed",
        "webhook.paused",
        "wake.limited",
    }
)
"""Types after which somebody has to do something. Others say it of one event, by `needs_attention` in its data."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """All that is given must fit; of several values in one field, one. A type may end in `.*`.

    `agents` are those at the relay, or coding agents, which an event names by `data.agent_id`; `labels` (all of them)
    are those of coding agents. With `only_of`, events of other agents at the
    relay are not seen at all; with `only_coding`, nor are those of coding agents without these labels.
    """

    types: tuple[str, ...] = ()
    agents: tuple[str, ...] = ()
    conversations: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    needs_attention: bool = False
    only_of: str | None = None
    only_coding: Mapping[str, str] = field(default_factory=dict)

    def __call__(self, event: Event) -> bool:
        data = event["data"]
        return (
            self.only_of in (None, event["agent"] or self.only_of)
            and (not self.only_coding or "labels" not in data or _has(data["labels"], self.only_coding))
            and (not self.types or any(_fits(pattern, event["type"]) for pattern in self.types))
            and (not self.agents or event["agent"] in self.agents or data.get("agent_id") in self.agents)
            and (not self.conversations or data.get("conversation_id") in self.conversations)
            and (not self.labels or _has(data.get("labels"), self.labels))
            and (not self.needs_attention or event["type"] in ATTENTION or data.get("needs_attention") is True)
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "types": list(self.types),
            "agents": list(self.agents),
            "labels": dict(self.labels),
            "needs_attention": self.needs_attention,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Wanted:
        """What `as_dict` made."""
        return cls(tuple(fields["types"]), tuple(fields["agents"]), (), fields["labels"], fields["needs_attention"])


def _fits(pattern: str, type_: str) -> bool:
    return type_.startswith(pattern[:-1]) if pattern.endswith(".*") else type_ == pattern


def _has(labels: Any, wanted: Mapping[str, str]) -> bool:
    return isinstance(labels, Mapping) and all(labels.get(name) == value for name, value in wanted.items())
