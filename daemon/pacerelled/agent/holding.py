"""Who may work on a request that is named by its id: the session that holds it, or one that takes it over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pacerelled.errors import NotPossible
from pacerelled.store import claims, events, requests
from pacerelled.store.database import Tx

from . import shapes
from .model import Request, Session
from .sessions import Sessions


class Holding:
    """`on_change` is called on the store's thread when a request was taken over."""

    def __init__(self, agent_id: str, sessions: Sessions, *, on_change: Callable[[], None]) -> None:
        self._agent_id = agent_id
        self._sessions = sessions
        self._on_change = on_change

    def admit(self, tx: Tx, session: Session, message_id: str | None, *, take_over: bool) -> None:
        """Lets `session` do something about a request, if there is such a one and nobody else works on it.

        With `take_over` the request becomes its own. People (control.sock) may always. Raises NotPossible, code
        `claimed`.
        """
        row = requests.by_message_id(tx, self._agent_id, message_id) if message_id is not None else None
        if row is None or session.transport == "control":
            return
        request = shapes.request(row, session.id)
        if request.claim is not None and request.claim.mine:
            return
        if take_over:
            self._take_over(tx, session, request)
        elif request.claim is not None or claims.taken_from(tx, request.seq, session.id):
            raise self._refusal(tx, session, request)

    def _take_over(self, tx: Tx, session: Session, request: Request) -> None:
        if request.processed_at is not None:
            claims.reunite(tx, request.seq, session.id)  # nothing to hold any more
            return
        self._sessions.remember(tx, session)
        before = claims.take_over(tx, request.seq, session.id, session.label)
        taken: dict[str, Any] = {} if before is None else {"taken_from": before}
        about = {**requests.ids(tx, request.seq), "session": session.id, **taken}
        events.add(tx, self._agent_id, "message.claimed", **about)
        tx.after_commit(self._on_change)

    def _refusal(self, tx: Tx, session: Session, request: Request) -> NotPossible:
        taken = claims.taken_from(tx, request.seq, session.id)
        if taken is not None:
            what = f"Request {request.message_id} was taken over from this session by {taken[0]} at {taken[1]}"
            if request.processed_at is not None:
                what += ", and is processed"
            return NotPossible(
                what,
                hint="Do nothing more about it, unless the user wants you to: then call with takeOver: true.",
                code="claimed",
            )
        holder = request.claim
        assert holder is not None
        return NotPossible(
            f"Request {request.message_id} is being worked on by {holder.label}, since {holder.since}"
            f" ({self._sessions.whereabouts(holder.session)})",
            hint="Leave it to that session, or ask the user. To take it over, make this call with takeOver: true.",
            code="claimed",
        )
