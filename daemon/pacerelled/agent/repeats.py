"""A call that is made twice is carried out once.

A caller that cannot know whether its call arrived makes it again. What recognises it is the key that the caller gave,
which holds for the agent, whoever uses it; or else the session and the call's id, which a shim repeats after the daemon
was restarted. Keys live as long as the replies that were made under them. Calls that make no reply are kept apart,
with what they returned.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pacerelled.errors import InvalidArgument
from pacerelled.store import calls, replies
from pacerelled.store.database import Tx

MAX_KEY = 200  # characters


@dataclass(frozen=True, slots=True)
class Call:
    """`digest` tells whether two calls say the same."""

    key: str | None
    given: bool  # the key is the caller's own
    digest: str


def identify(session_id: str | None, call_id: str | None, idempotency_key: str | None, *said: Any) -> Call:
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
    return Call(None if None in (session_id, call_id) else f"{session_id}/{call_id}", False, digest)


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


def earlier(tx: Tx, agent_id: str, call: Call) -> Any:
    """What a call that makes no reply returned when it was made before; None if it is new."""
    found = calls.find(tx, agent_id, call.key) if call.key is not None else None
    return json.loads(found[1]) if found and found[0] == call.digest else None


def remember(tx: Tx, agent_id: str, call: Call, result: Any) -> None:
    """Notes what `earlier` is to return: `result`, as JSON can write it."""
    if call.key is not None:
        calls.save(tx, agent_id, call.key, call.digest, json.dumps(result))


def once(tx: Tx, agent_id: str, call: Call, work: Callable[[], Any]) -> Any:
    """What `work()` returns, in this transaction; for a repeated call what it returned the first time."""
    result = earlier(tx, agent_id, call)
    if result is None:
        result = work()
        remember(tx, agent_id, call, result)
    return result
