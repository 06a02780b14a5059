"""Access tokens: what a host that speaks HTTP shows to be let in.

A token is `pcl_` and 32 random bytes, shown once, when it is made. What is kept of it is its SHA-256: nobody guesses 32
random bytes, so no slow hash is needed.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from pacerelled.errors import InvalidArgument, NotPossible, StoreError, UnknownToken
from pacerelled.store import access
from pacerelled.store.access import AccessRow
from pacerelled.store.database import Store, now

log = logging.getLogger(__name__)

Scope = Literal["read", "full"]

PREFIX: Final = "pcl_"
SCOPES: Final = ("read", "full")
MAX_TOKENS: Final = 100
MAX_LABEL: Final = 100  # characters
MAX_LABELS: Final = 10
USE_WRITTEN: Final = 60.0  # seconds: a token's last use is written at most so often


@dataclass(slots=True)
class AccessToken:
    """What is known of a token. `agents` are the ones that it is for; none: all of them.

    Of coding agents it sees only those with all of `labels`.
    """

    id: str
    label: str
    scope: Scope
    agents: tuple[str, ...]
    created_at: str
    last_used_at: str | None = None
    labels: dict[str, str] = field(default_factory=dict)

    @property
    def read_only(self) -> bool:
        return self.scope == "read"

    def as_dict(self) -> dict[str, Any]:
        """The JSON shape in docs/local-protocol.md."""
        return {
            "id": self.id,
            "label": self.label,
            "scope": self.scope,
            "agents": list(self.agents),
            "labels": self.labels,
            "created_at": self.created_at,
            "last_used_at": self.last_used_at,
        }


class AccessTokens:
    """All tokens of the daemon. `on_revoked(token id)` is called at once when one is revoked.

    They are few and change only here, so they are kept in memory: a request costs no look into the store.
    """

    def __init__(self, store: Store, *, check_agent: Callable[[str], object]) -> None:
        """`check_agent` raises UnknownAgent."""
        self._store = store
        self._check_agent = check_agent
        self._tokens: dict[bytes, AccessToken] = {}  # by digest
        self._written: dict[str, float] = {}  # when a token's last use was written, monotonic seconds
        self._writing: set[asyncio.Task[None]] = set()
        self._changing = asyncio.Lock()
        self.on_revoked: Callable[[str], None] = lambda token_id: None

    async def start(self) -> None:
        """Raises StoreError."""
        for row in await self._store.run(access.select):
            self._tokens[row.digest] = _token(row)

    async def stop(self) -> None:
        await asyncio.gather(*self._writing)

    def select(self) -> list[AccessToken]:
        """Oldest first."""
        return list(self._tokens.values())

    async def create(
        self, label: str, scope: Scope, agents: Sequence[str] = (), labels: Mapping[str, str] | None = None
    ) -> tuple[AccessToken, str]:
        """The new token, and its secret, which nobody can find out later.

        Raises InvalidArgument, NotPossible, UnknownAgent, StoreError.
        """
        label = label.strip()
        if not 0 < len(label) <= MAX_LABEL or not label.isprintable():
            raise InvalidArgument(
                f"A label has 1 to {MAX_LABEL} printable characters", argument="label", hint="Name the host: laptop."
            )
        for agent_id in agents:
            self._check_agent(agent_id)
        labels = dict(labels or {})
        if len(labels) > MAX_LABELS or not all(
            0 < len(n) <= MAX_LABEL and len(v) <= MAX_LABEL for n, v in labels.items()
        ):
            raise InvalidArgument(
                f"`labels` must be at most {MAX_LABELS} short texts", argument="labels", hint='{"origin": "hermes"}'
            )
        async with self._changing:
            if any(label in (token.label, token.id) for token in self.select()):
                raise NotPossible(
                    f"There is a token {label!a} already",
                    hint="Choose another label, or `pacerelle token revoke` it first.",
                )
            if len(self._tokens) >= MAX_TOKENS:
                raise NotPossible(f"There are {MAX_TOKENS} tokens already", hint="Revoke one that is no longer used.")
            secret = PREFIX + secrets.token_urlsafe(32)
            chosen = tuple(dict.fromkeys(agents))
            row = AccessRow(secrets.token_hex(4), _digest(secret), label, scope, chosen, now(), None, labels)
            await self._store.run(lambda tx: access.insert(tx, row))
            self._tokens[row.digest] = _token(row)
        log.info("Access token %s made (%s)", row.id, scope)
        return self._tokens[row.digest], secret

    async def revoke(self, name: str) -> AccessToken:
        """Ends the token with this id or label: from now on it is unknown. Raises UnknownToken, StoreError."""
        async with self._changing:
            found = next(((d, t) for d, t in self._tokens.items() if name in (t.id, t.label)), None)
            if found is None:
                raise UnknownToken(f"There is no token {name[:MAX_LABEL]!a}", hint="`pacerelle token list` shows them.")
            digest, token = found
            await self._store.run(lambda tx: access.delete(tx, token.id))
            del self._tokens[digest]
        log.info("Access token %s revoked", token.id)
        self.on_revoked(token.id)
        return token

    def find(self, secret: str) -> AccessToken | None:
        """The token with this secret, whose use this is. Takes as long for each secret, right or wrong."""
        wanted, found = _digest(secret), None
        for digest, token in self._tokens.items():
            if hmac.compare_digest(digest, wanted):
                found = token
        if found is not None:
            self._note_use(found)
        return found

    def _note_use(self, token: AccessToken) -> None:
        token.last_used_at = now()
        if time.monotonic() - self._written.get(token.id, -USE_WRITTEN) >= USE_WRITTEN:
            self._written[token.id] = time.monotonic()
            task = asyncio.create_task(self._write_use(token.id, token.last_used_at))
            self._writing.add(task)
            task.add_done_callback(self._writing.discard)

    async def _write_use(self, token_id: str, at: str) -> None:
        try:
            await self._store.run(lambda tx: access.used(tx, token_id, at))
        except StoreError as error:
            log.warning("The last use of token %s was not written: %s", token_id, error.code)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "replace")).digest()


def _token(row: AccessRow) -> AccessToken:
    scope: Scope = "full" if row.scope == "full" else "read"
    return AccessToken(row.id, row.label, scope, row.agents, row.created_at, row.last_used_at, row.labels)
