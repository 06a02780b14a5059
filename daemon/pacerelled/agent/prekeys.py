"""Publishing prekeys: committed before anybody sees them, reused after restarts, topped up when they run low."""

from __future__ import annotations

import asyncio
import logging

from pacerelled.errors import LinkError, PacerelledError, StoreError
from pacerelled.link.rest import RelayRest
from pacerelled.store import agents as agent_rows
from pacerelled.store.agents import PrekeySet
from pacerelled.store.database import Store, Tx

from .crypto import ONE_TIME_LOW, AgentCrypto

log = logging.getLogger(__name__)


class Prekeys:
    def __init__(self, agent_id: str, store: Store, crypto: AgentCrypto, rest: RelayRest) -> None:
        self._agent_id = agent_id
        self._store = store
        self._crypto = crypto
        self._rest = rest
        self._bundle_sent = False  # since the daemon's start: the relay may be another one, or have lost it
        self._top_up: asyncio.Task[None] | None = None

    @property
    def unused(self) -> int:
        """One-time prekeys that no message has used yet, so far as we know."""
        return len(self._crypto.signal.one_time_prekey_ids()) if self._crypto.e2ee else 0

    async def publish(self, *, again: bool = False) -> None:
        """What the relay does not have yet (the relay protocol reference, safety rule 3). Raises LinkError.

        With `again` also the bundle that it should have.
        """
        if not self._crypto.e2ee:
            return

        def prepare(tx: Tx) -> tuple[PrekeySet | None, PrekeySet]:
            self._crypto.guard(tx)
            due = self._crypto.prekeys_to_publish(tx)
            return due, agent_rows.prekey_sets(tx, self._agent_id)[0]

        try:
            due, current = await self._store.run(prepare)
            if due is not None or again or not self._bundle_sent:
                await self._rest.publish_bundle(current.bundle)
                self._bundle_sent = True
            if due is not None:
                await self._rest.publish_one_time(due.one_time)
                await self._store.run(lambda tx: agent_rows.prekeys_published(tx, self._agent_id, due.signed_id))
        except StoreError as error:
            raise LinkError(error.message, hint=error.hint) from error

    def top_up(self) -> None:
        """Begins to publish new ones if few are left."""
        if self._crypto.e2ee and self._top_up is None and self.unused < ONE_TIME_LOW:
            self._top_up = asyncio.create_task(self._publish_quietly(), name="prekeys")

    async def stop(self) -> None:
        if self._top_up is not None:
            self._top_up.cancel()
            await asyncio.gather(self._top_up, return_exceptions=True)

    async def _publish_quietly(self) -> None:
        try:
            await self.publish()
        except PacerelledError as error:
            log.warning("Prekeys could not be published now: %s", error.message)
        finally:
            self._top_up = None
