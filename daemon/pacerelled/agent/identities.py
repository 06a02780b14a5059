"""Whose key a message was written with: what is asked before a message is decrypted, and noted after.

A device's first key is trusted. From then on it is the device's key in every conversation: another one holds all that
comes from this device until the user decides, and so does the user's blocking it.
"""

from __future__ import annotations

from pacerelled.store import devices, events
from pacerelled.store.database import Tx
from pacerelled.store.devices import DeviceRow

from .rejected import DEVICE_BLOCKED, IDENTITY_CHANGED, IDENTITY_REFUSED, Rejected


def admit(
    tx: Tx, agent_id: str, user_id: str, device_id: str | None, conversation_id: str, *, identity: bytes | None
) -> DeviceRow | None:
    """Lets a message pass on to decryption; what is known of its device. Raises Rejected.

    `identity` is the key that the message itself brings, if it starts a session.
    """
    known = devices.find(tx, agent_id, user_id, device_id, conversation_id)
    if known is None:
        return None
    if known.blocked:
        raise Rejected(DEVICE_BLOCKED, "The device is blocked")
    if identity is not None and known.identity_key not in (None, identity):
        if identity == known.refused_key:
            raise Rejected(IDENTITY_REFUSED, "The message has an identity key that is not the device's")
        if identity != known.changed_key:
            devices.set_changed_key(tx, agent_id, user_id, device_id, identity)
            events.add(tx, agent_id, "identity.changed", peer_id=user_id, peer_kind="user", device_id=device_id)
        raise Rejected(IDENTITY_CHANGED, "The device has another identity key than before")
    if known.changed_key is not None:
        raise Rejected(IDENTITY_CHANGED, "The device has shown another identity key, and it is not decided about that")
    return known


def wrote(
    tx: Tx,
    agent_id: str,
    user_id: str,
    device_id: str | None,
    conversation_id: str,
    *,
    key: bytes | None,
    legacy: bool,
    plaintext: bytes,
) -> None:
    """Notes the device of a message that was decrypted. Raises Rejected if it is a blocked one under a new id."""
    if not devices.wrote(tx, agent_id, user_id, device_id, conversation_id, identity_key=key, legacy=legacy):
        return
    events.add(tx, agent_id, "device.added", user_id=user_id, device_id=device_id)
    new = devices.find(tx, agent_id, user_id, device_id)
    if new is not None and new.blocked:
        raise Rejected(DEVICE_BLOCKED, "Its key is that of a device that is blocked", plaintext)
