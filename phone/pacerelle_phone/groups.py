"""Groups: this device makes the key and hands it to each agent over Signal.

Only the device that made a group has its key: there is no secret channel to the person's other devices, which show
group messages as undecryptable (`group_key_missing`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pacerelle_protocol.errors import ProtocolError
from pacerelle_protocol.groups import GroupKey, new_group_key
from pacerelle_protocol.signal import PreKeyBundle

from . import sealing
from .core import Core
from .errors import KeyMissing, RelayRejected
from .identity import Identities
from .relay import text_field


async def create(core: Core, identities: Identities, agent_ids: Sequence[str], title: str) -> str:
    """The new conversation's id. Raises AgentNotReady, IdentityChanged and RelayError; then there is no group."""
    bundles = {agent_id: await identities.bundle(agent_id) for agent_id in agent_ids}
    conversation_id = text_field(await core.api.create_group(list(agent_ids), title), "conversation_id")
    try:
        await core.run(_store, core, identities, conversation_id, title, bundles)
    except ProtocolError as e:
        raise RelayRejected(
            f"An agent's keys at the relay cannot be used ({e.reason}).", status=200, code="bad_bundle"
        ) from None
    return conversation_id


def _store(
    core: Core,
    identities: Identities,
    conversation_id: str,
    title: str,
    bundles: Mapping[str, tuple[PreKeyBundle, bool]],
) -> None:
    with core.store.transaction():
        core.peers.put_conversation(conversation_id, "group", title, bundles, made_here=True)
        for agent_id, (bundle, history) in bundles.items():
            identities.adopt(agent_id, conversation_id, bundle, history)
        _hand_out(core, new_group_key(conversation_id), list(bundles))


def _hand_out(core: Core, key: GroupKey, agent_ids: Sequence[str]) -> None:
    core.peers.add_group_key(key)
    core.log.queue("group_keys", key.conversation_id, "", envelope=sealing.seal_group_key(core, key, agent_ids))


async def renew_key(core: Core, identities: Identities, conversation_id: str) -> None:
    """A new epoch for every member, after one of them started over. Does nothing for a group of another device.

    Raises AgentNotReady, IdentityChanged and RelayError.
    """
    conversation = await core.run(core.peers.conversation, conversation_id)
    key = await core.run(core.peers.newest_group_key, conversation_id)
    if conversation is None or key is None:
        return
    for agent_id in conversation.members:
        await identities.ensure_session(agent_id, conversation_id)
    await core.run(_renew, core, conversation_id, key.epoch + 1, conversation.members)


def _renew(core: Core, conversation_id: str, epoch: int, members: Sequence[str]) -> None:
    with core.store.transaction():
        _hand_out(core, new_group_key(conversation_id, epoch), members)


def missing_key() -> KeyMissing:
    return KeyMissing(
        "This device has no key of that group.",
        hint="Write from the device that made the group, or make a new group here.",
    )
