"""A call to Paseo that is made again, by a host that lost us or its answer, is carried out once.

Before anything is sent, the call is written down under its key with a tag, by which what it made is found at Paseo
again: an agent by a label, a message by its id. So a call is recognised, too, that was cut off between the two.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakValueDictionary

from pacerelled.errors import InvalidArgument, NotPossible, PacerelledError, PaseoUnavailable, StoreError
from pacerelled.store import paseo as rows
from pacerelled.store.database import Store, Tx

MAX_KEY = 200  # characters


class Unsettled(NotPossible):
    """It is not known yet whether an earlier attempt was carried out."""

    code = "unsettled"


@dataclass(frozen=True, slots=True)
class Key:
    """What makes two calls the same. `given` by the caller, else made of its session and the call's id."""

    text: str
    given: bool


def key_of(session_id: str, call_id: str | None, given: str | None) -> Key:
    """Without a key and an id, as over HTTP, no other call is the same."""
    if given is not None:
        return Key(f"key/{given}", True)
    return Key(f"call/{session_id}/{call_id if call_id is not None else secrets.token_hex(8)}", False)


@dataclass(slots=True)
class Attempt:
    """`result`: the call was made before. `age`: seconds since it was begun; None for one that is begun now.

    The body sets `half_done` once there is something that a second attempt must find.
    """

    tag: str
    age: float | None = None
    half_done: bool = False
    result: dict[str, Any] | None = field(default=None, repr=False)


class Once:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._begun: dict[str, float] = {}  # unfinished calls: when this process first saw each, monotonic seconds

    @asynccontextmanager
    async def attempt(self, key: Key, *what: Any) -> AsyncIterator[Attempt]:
        """The call under this key; calls with the same key wait for each other. The body sets `result`.

        What raises without doubt about the outcome is forgotten, and may be tried again. Raises InvalidArgument for a
        key that was used for another call, and StoreError.
        """
        digest = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()
        lock = self._locks.setdefault(key.text, asyncio.Lock())
        async with lock:
            found = await self._store.run(lambda tx: self._begin(tx, key, digest))
            if found.result is not None:
                yield found
                return
            if found.age is not None:
                found.age = time.monotonic() - self._begun.setdefault(key.text, time.monotonic())
            else:
                self._begun[key.text] = time.monotonic()
            try:
                yield found
            except PacerelledError as error:
                if not _in_doubt(error, found):
                    await self._store.run(lambda tx: rows.forget_call(tx, key.text))
                    self._begun.pop(key.text, None)
                raise
            if (result := found.result) is not None:
                await self._store.run(lambda tx: rows.end_call(tx, key.text, result))
                self._begun.pop(key.text, None)

    def _begin(self, tx: Tx, key: Key, digest: str) -> Attempt:
        call = rows.call(tx, key.text)
        if call is not None and call.digest == digest:
            return Attempt(call.tag, 0.0, result=call.result)
        if call is not None and key.given:
            raise InvalidArgument(
                "`idempotency_key` was used before, for another call. Nothing was done",
                argument="idempotency_key",
                hint="A new call needs a new key. The same key is for making the very same call again.",
            )
        tag = secrets.token_hex(8)
        rows.begin_call(tx, key.text, digest, tag)
        return Attempt(tag)


def _in_doubt(error: PacerelledError, attempt: Attempt) -> bool:
    if isinstance(error, PaseoUnavailable):
        return error.sent or attempt.half_done or attempt.age is not None
    return isinstance(error, Unsettled | StoreError)
