"""A Paseo agent as the daemon describes it, with only what is of use here; fields that are odd or missing are empty."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .frames import text

STATUSES = ("initializing", "idle", "running", "error", "closed")
ACCOUNT_LABEL = "account"
ORIGIN_LABEL = "origin"
KEY_LABEL = "pacerelle-key"  # by which an agent is found again whose creation was cut off
_MAX_INPUT, _MAX_WORDS, _MAX_TITLE = 2_000, 1_000, 300  # characters of agents' words that are shown
_MAX_SHOWN = 5  # permissions, actions


@dataclass(frozen=True, slots=True)
class Action:
    """One of the answers that a permission request offers."""

    id: str
    label: str
    allows: bool


@dataclass(frozen=True, slots=True)
class Permission:
    """What an agent waits for. Everything but the id is the agent's words: data."""

    id: str
    name: str
    kind: str
    title: str | None = field(default=None, repr=False)
    description: str | None = field(default=None, repr=False)
    full_input: str | None = field(default=None, repr=False)  # JSON or text
    actions: tuple[Action, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "request_id": self.id,
            "name": self.name,
            "kind": self.kind,
            "title": cut(self.title, _MAX_TITLE),
            "description": cut(self.description, _MAX_WORDS),
            "input": cut(self.full_input, _MAX_INPUT),
            "actions": [
                {"id": a.id, "label": cut(a.label, _MAX_TITLE), "decision": "allow" if a.allows else "deny"}
                for a in self.actions[:_MAX_SHOWN]
            ],
        }


@dataclass(frozen=True, slots=True)
class Agent:
    """One snapshot. Times are the daemon's ISO 8601 words."""

    id: str
    provider: str
    status: str
    cwd: str
    title: str | None = field(default=None, repr=False)
    model: str | None = None
    mode: str | None = None
    thinking: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    created_at: str | None = None
    updated_at: str | None = None
    last_user_message_at: str | None = None
    turn: str | None = None  # of the turn that runs, where the daemon tells it
    archived_at: str | None = None
    requires_attention: bool = False
    attention_reason: str | None = None
    last_error: str | None = field(default=None, repr=False)
    permissions: tuple[Permission, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The JSON shape in docs/paseo.md."""
        return {
            **self.as_row(),
            "pending_permissions": [p.as_dict() for p in self.permissions[:_MAX_SHOWN]],
            "last_error": cut(self.last_error, _MAX_WORDS),
        }

    def as_row(self) -> dict[str, Any]:
        """The same for a list, without what agents ask for in detail."""
        return {
            "id": self.id,
            "title": cut(self.title, _MAX_TITLE),
            "status": self.status,
            "provider": self.provider,
            "model": self.model,
            "mode": self.mode,
            "thinking": self.thinking,
            "cwd": self.cwd,
            "account": self.labels.get(ACCOUNT_LABEL),
            "labels": self.labels,
            "requires_attention": self.requires_attention or bool(self.permissions),
            "attention_reason": "permission" if self.permissions else self.attention_reason,
            "pending_permissions": [
                {"request_id": p.id, "name": p.name, "kind": p.kind, "title": cut(p.title, _MAX_TITLE)}
                for p in self.permissions[:_MAX_SHOWN]
            ],
            "archived": self.archived_at is not None,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        }


def parse_agent(raw: Any) -> Agent | None:
    """None if there is no id in it."""
    if not isinstance(raw, Mapping) or text(raw.get("id")) is None:
        return None
    labels = raw.get("labels")
    pending, turn = raw.get("pendingPermissions"), raw.get("activeTurn")
    found = (parse_permission(each) for each in pending) if isinstance(pending, list) else ()
    return Agent(
        id=raw["id"],
        provider=text(raw.get("provider")) or "",
        status=text(raw.get("status")) or "unknown",
        cwd=text(raw.get("cwd")) or "",
        title=text(raw.get("title")),
        model=text(raw.get("model")),
        mode=text(raw.get("currentModeId")),
        thinking=text(raw.get("effectiveThinkingOptionId")) or text(raw.get("thinkingOptionId")),
        labels={k: v for k, v in labels.items() if isinstance(v, str)} if isinstance(labels, Mapping) else {},
        created_at=text(raw.get("createdAt")),
        updated_at=text(raw.get("updatedAt")),
        last_user_message_at=text(raw.get("lastUserMessageAt")),
        turn=text(turn.get("turnId")) or text(turn.get("startedAt")) if isinstance(turn, Mapping) else None,
        archived_at=text(raw.get("archivedAt")),
        requires_attention=raw.get("requiresAttention") is True,
        attention_reason=text(raw.get("attentionReason")),
        last_error=text(raw.get("lastError")),
        permissions=tuple(each for each in found if each is not None),
    )


def parse_permission(raw: Any) -> Permission | None:
    if not isinstance(raw, Mapping) or text(raw.get("id")) is None:
        return None
    actions = raw.get("actions")
    return Permission(
        id=raw["id"],
        name=text(raw.get("name")) or "",
        kind=text(raw.get("kind")) or "other",
        title=text(raw.get("title")),
        description=text(raw.get("description")),
        full_input=_shown(raw.get("input") or raw.get("detail")),
        actions=tuple(
            Action(each["id"], text(each.get("label")) or each["id"], each.get("behavior") == "allow")
            for each in (actions if isinstance(actions, list) else ())
            if isinstance(each, Mapping) and text(each.get("id")) and each.get("behavior") in ("allow", "deny")
        ),
    )


def _shown(value: Any) -> str | None:
    if value is None:
        return None
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cut(words: str | None, most: int) -> str | None:
    """At most so many characters."""
    return words if words is None or len(words) <= most else words[: most - 1] + "…"
