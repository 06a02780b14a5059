"""Sessions with agents, and whose identity key they are for.

The first key of an agent is trusted on first use. Another one is kept aside and shown; until the user decides with
`trust_new_key`, nothing is sealed or sent for that agent.
"""

from __future__ import annotations

import asyncio
import logging
import uuid

from pacerelle_protocol.errors import ProtocolError
from pacerelle_protocol.signal import PreKeyBundle

from . import sealing
from .core import Core
from .errors import AgentNotReady, IdentityChanged, PhoneError, RelayRejected, UnknownAgent
from .model import Message
from .peers import AgentRow

log = logging.getLogger(__name__)


class Identities:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._starting = asyncio.Lock()  # one fetch at a time: each one costs the agent a one-time prekey

    async def ensure_session(self, agent_id: str, conversation_id: str) -> None:
        """Raises AgentNotReady, IdentityChanged, UnknownAgent and RelayError."""
        core = self._core
        async with self._starting:
            agent = await self._agent(agent_id)
            if agent.offered_key is not None:
                raise _changed(agent)
            if await core.run(sealing.has_session, core, agent_id, conversation_id):
                return
            bundle, history = await self._bundle(agent_id)
            await self._compare(agent, bundle)
            try:
                await core.run(self._start_session, agent_id, conversation_id, bundle, history)
            except ProtocolError as e:
                raise _bad_keys(e) from None

    async def bundle(self, agent_id: str) -> tuple[PreKeyBundle, bool]:
        """A bundle of an agent that can be written to now. Raises as `ensure_session`."""
        agent = await self._agent(agent_id)
        bundle, history = await self._bundle(agent_id)
        await self._compare(agent, bundle)
        return bundle, history

    async def _bundle(self, agent_id: str) -> tuple[PreKeyBundle, bool]:
        try:
            answer = await self._core.api.prekey_bundle(agent_id)
        except RelayRejected as e:
            if e.code != "no_prekeys":
                raise _unknown() if e.status == 404 else e from None
            raise AgentNotReady(
                "The agent has never connected, so there is nothing to encrypt for.",
                hint="Start it with its id and token; what you wrote is sent then.",
            ) from None
        try:
            bundle = PreKeyBundle.from_json(answer)
        except ProtocolError as e:
            raise _bad_keys(e) from None
        features = answer.get("protocol_features")
        return bundle, isinstance(features, list) and sealing.HISTORY_FEATURE in features

    async def _compare(self, agent: AgentRow, bundle: PreKeyBundle) -> None:
        """Raises IdentityChanged after recording the new key."""
        if agent.trusted_key in (None, bundle.identity_key):
            return
        message = await self._core.run(self._record_change, agent, bundle.identity_key)
        if message is not None:
            self._core.news.arrived([message])
        raise _changed(agent)

    def _record_change(self, agent: AgentRow, key: bytes) -> Message | None:
        core = self._core
        with core.store.transaction():
            core.peers.offer(agent.agent_id, key)
            if agent.offered_key == key:
                return None
            seq = core.log.add(
                direction="in",
                agent_id=agent.agent_id,
                id=f"identity-{uuid.uuid4()}",
                conversation_id=agent.conversation_id,
                group=False,
                kind="identity_changed",
                state="received",
                reason="identity_changed",
            )
        return core.log.message(seq)

    def _start_session(self, agent_id: str, conversation_id: str, bundle: PreKeyBundle, history: bool) -> None:
        with self._core.store.transaction():
            self.adopt(agent_id, conversation_id, bundle, history)

    def adopt(self, agent_id: str, conversation_id: str, bundle: PreKeyBundle, history: bool) -> None:
        """Inside a transaction: trust on first use, and a session. Raises ProtocolError for keys that cannot be used.

        One bundle is for one session: its one-time prekey opens one first message.
        """
        self._core.peers.trust(agent_id, bundle.identity_key)
        self._core.peers.set_history(agent_id, history)
        sealing.start_session(self._core, agent_id, conversation_id, bundle)

    async def check_suspects(self) -> None:
        """Look at the keys of agents the relay says have changed; what really changed is recorded and shown."""
        for agent_id in await self._core.run(self._core.peers.suspects):
            try:
                agent = await self._agent(agent_id)
                bundle, _ = await self._bundle(agent_id)
                await self._compare(agent, bundle)
                await self._core.run(self._clear, agent_id)
            except IdentityChanged:
                log.warning("agent %s shows another identity key", agent_id)
            except PhoneError as e:
                log.info("the keys of agent %s cannot be looked at now: %s", agent_id, e.code)

    def _clear(self, agent_id: str) -> None:
        with self._core.store.transaction():
            self._core.peers.offer(agent_id, None)

    async def trust_new_key(self, agent_id: str) -> list[str]:
        """Take the key that was shown last, and start over with it. Returns the agent's group conversations.

        Also for an agent that lost its sessions and kept its key. What was sealed for the lost sessions and not yet
        taken by the relay cannot be opened any more and fails with `old_key`; what was not sealed yet is sent. When
        the trusted key is back by now, the sessions were never replaced and go on.
        Raises IdentityChanged (the agent has a third key by now), AgentNotReady, UnknownAgent and RelayError.
        """
        core = self._core
        async with self._starting:
            agent = await self._agent(agent_id)
            bundle, history = await self._bundle(agent_id)
            if agent.offered_key is not None and bundle.identity_key == agent.trusted_key:
                await core.run(self._clear, agent_id)  # the other key is gone; the sessions were never replaced
                return []
            if bundle.identity_key != agent.offered_key:
                await self._compare(agent, bundle)
            failed, groups = await core.run(self._start_over, agent_id, bundle.identity_key, history)
        core.news.moved(failed)
        return groups

    def _start_over(self, agent_id: str, key: bytes, history: bool) -> tuple[list[str], list[str]]:
        core, failed = self._core, []
        conversations = core.peers.conversations(agent_id)
        with core.store.transaction():
            core.peers.trust(agent_id, key)
            core.peers.set_history(agent_id, history)
            for item in core.log.sealed_for(agent_id):
                core.log.finish(item, "failed", "old_key")
                if item.message_seq is not None:
                    failed.append(core.log.message(item.message_seq).id)
            for conversation in conversations:
                sealing.forget_session(core, agent_id, conversation.conversation_id)
                core.peers.confirm_history(conversation.conversation_id, False)
        return failed, [c.conversation_id for c in conversations if c.is_group]

    async def _agent(self, agent_id: str) -> AgentRow:
        agent = await self._core.run(self._core.peers.agent, agent_id)
        if agent is None:
            raise _unknown()
        return agent


def _unknown() -> UnknownAgent:
    return UnknownAgent("This account has no such agent.", hint="See `pacerelle chat agents`.")


def _changed(agent: AgentRow) -> IdentityChanged:
    return IdentityChanged(
        f"The identity key of {agent.name!r} is not the one you trusted.",
        hint="Nothing is sent until you decide. Compare its safety code; if it is right: "
        f"`pacerelle chat trust {agent.agent_id}`.",
    )


def _bad_keys(error: ProtocolError) -> RelayRejected:
    return RelayRejected(
        f"The agent's keys at the relay cannot be used ({error.reason}).",
        status=200,
        code="bad_bundle",
        hint="Restart the agent so that it publishes new ones.",
    )
