"""A call that is made twice is carried out once.

A caller that cannot know whether its call arrived makes it again. What recognises it is the key that the caller gave,
which holds for the agent, whoever uses it; or else the session and the call's id, which a shim repeats after the daemon
was restarted. Keys live as long as the replies that were made under them.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from pacerelled.errors import InvalidArgument
from pacerelled.store import replies
from pacerelled.store.database import Tx

MAX_KEY = 200  # characters


@dataclass(frozen=True, slots=True)
class Call:
    """`digest` tells whether two calls say the same."""

    key: str | None
    given: bool  # the key is the caller's own
    digest: str


def identify(session_id: str, call_id: str | None, idempotency_key: str | None, *said: Any) -> Call:
    """`said` is everything that the call says, as JSON can write it. Raises InvalidArgument."""
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
    if idempotency_key is not None:
        if not 0 < len(idempotency_key) <= MAX_KEY:
            raise InvalidArgument(
                f"`idempotencyKey` must have 1 to {MAX_KEY} characters",
                argument="idempotencyKey",
                hint="Use a name of the task, or a random one.",
            )
        return Call(f"key:{idempotency_key}", True, digest)
    return Call(None if call_id is None else f"{session_id}/{call_id}", False, digest)


def first_result(tx: Tx, agent_id: str, call: Call) -> Any:
    """The row of the reply that this call made before; None if it is new.

    A caller's own key that was used for something else raises InvalidArgument. A host that gives two calls the same id
    is only careless: both are carried out.
    """
    found = replies.by_call(tx, agent_id, call.key) if call.key is not None else None
    if found is None or call.key is None:
        return None
    row, digest = found
    if digest == call.digest:
        return row
    if call.given:
        raise InvalidArgument(
            f"`idempotencyKey` was used before, for another content or target (reply {row[1]}). Nothing was sent",
            argument="idempotencyKey",
            hint="A new reply needs a new key. The same key is for making the very same call again.",
        )
    replies.forget_call(tx, agent_id, call.key)
    return None
