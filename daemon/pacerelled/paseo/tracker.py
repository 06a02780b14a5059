"""What happened to agents, made of what the daemon says, which is stale, repeated, out of order, and lost at times.

Pure. Turns begin and end with the events of the stream; a snapshot only tells that an agent is new, closed or archived,
which permissions it waits for, and, after a reconnection, what was missed. Whatever the source, each happening comes
out once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .frames import text
from .model import Agent, Permission, parse_permission

Outcome = Literal["finished", "error", "limit", "canceled"]

CREATED = "agent.created"
TURN_STARTED = "agent.turn_started"
TURN_ENDED = "agent.turn_ended"
PERMISSION_REQUESTED = "agent.permission_requested"
PERMISSION_RESOLVED = "agent.permission_resolved"
ARCHIVED = "agent.archived"
CLOSED = "agent.closed"
TYPES = (CREATED, TURN_STARTED, TURN_ENDED, PERMISSION_REQUESTED, PERMISSION_RESOLVED, ARCHIVED, CLOSED)

MAX_ERROR = 500  # characters
_ANSWERED = 20  # permissions of an agent that are remembered as answered
_LIMIT = re.compile(
    r"\b(usage|rate|session|weekly|daily|token|5-hour|spend\w*) limit|limit (reached|exceeded|hit)|rate.?limited"
    r"|too many requests|\b429\b|quota|out of (extra )?(usage|credits)|insufficient credits",
    re.IGNORECASE,
)
_CUT_OFF = "Paseo was stopped, or the agent closed, in the middle of the turn"


@dataclass(slots=True)
class Known:
    """What has been told of an agent so far. It is kept over restarts, so that nothing is told twice."""

    title: str | None = field(default=None, repr=False)
    status: str = "unknown"
    labels: dict[str, str] = field(default_factory=dict)
    running: bool = False
    turns: int = 0  # that were seen to begin
    turn: str | None = None  # the daemon's name of it, if it has one
    turn_at: str | None = None  # when the last turn began, if that was seen
    message_at: str | None = None  # when somebody wrote what the last turn answers: tells that a turn was missed
    outcome: Outcome | None = None  # of the last turn
    error: str | None = field(default=None, repr=False)
    permissions: dict[str, dict[str, str | None]] = field(default_factory=dict)  # that it waits for
    answered: dict[str, str | None] = field(default_factory=dict)  # how, of the last ones; None: it is not known
    closed: bool = False
    archived: bool = False
    attention: bool = False
    reason: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Happening:
    """One event. `data` holds no message of anybody, except the preview that the settings ask for."""

    type: str
    agent_id: str
    data: dict[str, Any] = field(repr=False)


class Tracker:
    def __init__(self, known: Mapping[str, Known] | None = None, *, preview_chars: int = 0) -> None:
        self.agents: dict[str, Known] = dict(known or {})
        self._preview_chars = preview_chars
        self._wrote: dict[str, str] = {}  # when somebody wrote what the turn that is about to begin answers
        self._said: dict[str, tuple[str, bool]] = {}  # the beginning of an agent's last message; whether it goes on

    # -- snapshots ---------------------------------------------------------------------------------------------

    def learn(self, agent: Agent, *, runs: bool) -> None:
        """Takes an agent for known without telling anything: what was there before we began to look."""
        known = self.agents[agent.id] = Known(
            running=runs,
            turn=agent.turn,
            message_at=agent.last_user_message_at,
            closed=agent.status == "closed",
            archived=agent.archived_at is not None,
            permissions={each.id: _about(each) for each in agent.permissions},
        )
        _describe(known, agent)

    def upsert(self, agent: Agent, *, source: str = "push") -> list[Happening]:
        """A snapshot that came by itself: it may be stale, and is no proof that a turn runs or ended."""
        known, found = self._known(agent.id, agent, source)
        _describe(known, agent)
        if agent.last_user_message_at is not None:
            if agent.status == "running" and not known.running:
                self._wrote[agent.id] = agent.last_user_message_at
            else:
                known.message_at = agent.last_user_message_at
        known.turn = agent.turn or known.turn
        for permission in agent.permissions:
            found += self._requested(agent.id, known, permission, source)
        if agent.archived_at is not None:
            found += self.archived(agent.id, source=source)
        else:
            known.archived = False
            if agent.status == "closed":
                found += self._closed(agent.id, known, source)
            else:
                known.closed = False
        return found

    def resync(self, agent: Agent, *, runs: bool) -> list[Happening]:
        """A snapshot that was asked for after a reconnection: what it shows has happened, whatever was missed.

        `runs`: whether a turn runs now.
        """
        before = self.agents.get(agent.id)
        wrote = before is not None and agent.last_user_message_at not in (None, before.message_at)
        if runs and before is not None and agent.turn is not None and agent.turn == before.turn:
            wrote = False  # into the turn that runs
        known, found = self._known(agent.id, agent, "resync")
        _describe(known, agent)
        still = {permission.id for permission in agent.permissions}
        for gone in [each for each in known.permissions if each not in still]:
            found += self._resolved(agent.id, known, gone, None, "resync")
        if known.running and (wrote or not runs):
            found += self._ended(agent.id, known, *_missed(agent), "resync")
        if not known.running and (runs or (wrote and before is not None)):
            found += self._started(agent.id, known, "resync")
            if not runs:
                found += self._ended(agent.id, known, *_missed(agent), "resync")
        return found + self.upsert(agent, source="resync")

    def archived(self, agent_id: str, *, source: str = "push") -> list[Happening]:
        known = self.agents.get(agent_id)
        if known is None or known.archived:
            return []
        known.archived = True
        found = self._let_go(agent_id, known, source)
        return [*found, self._tell(ARCHIVED, agent_id, known, source)]

    def gone(self, agent_id: str, *, source: str = "push") -> list[Happening]:
        """The agent was deleted."""
        known = self.agents.pop(agent_id, None)
        self._said.pop(agent_id, None)
        if known is None:
            return []
        known.status = "deleted"
        return self._closed(agent_id, known, source)

    # -- the stream --------------------------------------------------------------------------------------------

    def stream(self, agent_id: str, event: Mapping[str, Any], at: str | None = None) -> list[Happening]:
        """`at`: the daemon's time of the event."""
        known, found = self._known(agent_id, None, "push")
        match event.get("type"):
            case "turn_started":
                found += self._started(agent_id, known, "push")
                known.turn_at = at
                return found
            case "turn_completed":
                return found + self._ended(agent_id, known, "finished", None, "push")
            case "turn_failed":
                error = text(event.get("error")) or text(event.get("diagnostic")) or "It did not say why"
                outcome: Outcome = "limit" if _LIMIT.search(error) else "error"
                return found + self._ended(agent_id, known, outcome, error, "push")
            case "turn_canceled":
                return found + self._ended(agent_id, known, "canceled", text(event.get("reason")), "push")
            case "permission_requested" if permission := parse_permission(event.get("request")):
                return found + self._requested(agent_id, known, permission, "push")
            case "permission_resolved" if request_id := text(event.get("requestId")):
                return found + self._resolved(agent_id, known, request_id, _behavior(event.get("resolution")), "push")
            case "attention_required":
                known.attention, known.reason = True, text(event.get("reason"))
            case "timeline":
                self._listen(agent_id, event.get("item"))
        return found

    def permission_requested(self, agent_id: str, request: Any) -> list[Happening]:
        return self.stream(agent_id, {"type": "permission_requested", "request": request})

    def permission_resolved(self, agent_id: str, request_id: str, resolution: Any) -> list[Happening]:
        event = {"type": "permission_resolved", "requestId": request_id, "resolution": resolution}
        return self.stream(agent_id, event)

    # -- what comes out ----------------------------------------------------------------------------------------

    def _known(self, agent_id: str, agent: Agent | None, source: str) -> tuple[Known, list[Happening]]:
        known = self.agents.get(agent_id)
        if known is not None:
            return known, []
        known = self.agents[agent_id] = Known()
        if agent is not None:
            _describe(known, agent)
            known.message_at = agent.last_user_message_at
        return known, [self._tell(CREATED, agent_id, known, source)]

    def _started(self, agent_id: str, known: Known, source: str) -> list[Happening]:
        if known.running:
            return []
        known.running, known.closed, known.turn_at = True, False, None
        known.turns += 1
        known.message_at = self._wrote.pop(agent_id, known.message_at)
        known.outcome = known.error = None
        known.attention, known.reason = False, None
        self._said.pop(agent_id, None)
        return [self._tell(TURN_STARTED, agent_id, known, source)]

    def _ended(self, agent_id: str, known: Known, outcome: Outcome, error: str | None, source: str) -> list[Happening]:
        if not known.running:
            return []
        known.running, known.outcome, known.error = False, outcome, error[:MAX_ERROR] if error else None
        if outcome != "canceled":
            known.attention, known.reason = True, "finished" if outcome == "finished" else "error"
        more: dict[str, Any] = {"outcome": outcome, "error": known.error}
        if (said := self._said.pop(agent_id, None)) and self._preview_chars:
            more["preview"] = {"text": said[0], "untrusted": True}
        return [self._tell(TURN_ENDED, agent_id, known, source, **more)]

    def _requested(self, agent_id: str, known: Known, permission: Permission, source: str) -> list[Happening]:
        if permission.id in known.permissions or permission.id in known.answered:
            return []
        known.permissions[permission.id] = _about(permission)
        known.attention, known.reason = True, "permission"
        about = {"request_id": permission.id, **known.permissions[permission.id]}
        return [self._tell(PERMISSION_REQUESTED, agent_id, known, source, permission=about)]

    def _resolved(
        self, agent_id: str, known: Known, request_id: str, resolution: str | None, source: str
    ) -> list[Happening]:
        about = known.permissions.pop(request_id, None)
        if about is None:
            return []
        known.answered = dict([*known.answered.items(), (request_id, resolution)][-_ANSWERED:])
        if not known.permissions and known.reason == "permission":
            known.attention, known.reason = False, None
        more = {"permission": {"request_id": request_id, **about}, "resolution": resolution}
        return [self._tell(PERMISSION_RESOLVED, agent_id, known, source, **more)]

    def _closed(self, agent_id: str, known: Known, source: str) -> list[Happening]:
        if known.closed or known.archived:
            return []
        found = self._let_go(agent_id, known, source)
        known.closed = True
        return [*found, self._tell(CLOSED, agent_id, known, source)]

    def _let_go(self, agent_id: str, known: Known, source: str) -> list[Happening]:
        """What an agent that goes leaves open is over."""
        found: list[Happening] = []
        for request_id in list(known.permissions):
            found += self._resolved(agent_id, known, request_id, None, source)
        return found + self._ended(agent_id, known, "canceled", _CUT_OFF, source)

    def _tell(self, kind: str, agent_id: str, known: Known, source: str, **more: Any) -> Happening:
        data = {
            "agent_id": agent_id,
            "title": known.title,
            "status": known.status,
            "labels": known.labels,
            "requires_attention": known.attention,
            "attention_reason": known.reason,
            "needs_attention": _needs_attention(kind, more),
            "source": source,
            **more,
        }
        return Happening(kind, agent_id, data)

    def _listen(self, agent_id: str, item: Any) -> None:
        """Keeps the beginning of what the agent says last, if somebody wants to see it."""
        if not self._preview_chars or not isinstance(item, Mapping):
            return
        said, goes_on = self._said.get(agent_id, ("", False))
        if item.get("type") == "assistant_message":
            piece = text(item.get("text")) or ""
            said = (said + piece if goes_on else piece)[: self._preview_chars]
            self._said[agent_id] = (said, True)
        elif said:
            self._said[agent_id] = (said, False)


def _needs_attention(kind: str, more: Mapping[str, Any]) -> bool:
    """A turn that ended, but not because somebody ended it; a permission that is asked for; an agent that is gone."""
    return kind in (PERMISSION_REQUESTED, CLOSED) or (kind == TURN_ENDED and more.get("outcome") != "canceled")


def _describe(known: Known, agent: Agent) -> None:
    known.title, known.status, known.labels = agent.title, agent.status, dict(agent.labels)
    if agent.requires_attention and not known.running:
        known.attention, known.reason = True, agent.attention_reason


def _missed(agent: Agent) -> tuple[Outcome, str | None]:
    """How a turn ended that nobody saw end."""
    if agent.status in ("closed", "running"):
        return "canceled", _CUT_OFF
    if agent.status == "error" or agent.attention_reason == "error":
        error = agent.last_error or "It did not say why"
        return "limit" if _LIMIT.search(error) else "error", error
    return "finished", None


def _about(permission: Permission) -> dict[str, str | None]:
    return {"name": permission.name, "title": permission.title, "kind": permission.kind}


def _behavior(resolution: Any) -> str | None:
    behavior = resolution.get("behavior") if isinstance(resolution, Mapping) else resolution
    return behavior if behavior in ("allow", "deny") else None


def restore(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Known]:
    """What `Known.as_dict` gave, by agent; fields that an older version did not have are as new."""
    names = Known.__slots__
    return {agent_id: Known(**{k: v for k, v in row.items() if k in names}) for agent_id, row in rows}
