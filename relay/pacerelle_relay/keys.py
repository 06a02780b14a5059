"""What agents publish so that people can start Signal sessions with them. Runs on the database's thread."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass
from typing import Any

from . import conversations
from .accounts import Agent, Device, device_ids
from .agents import require_own_agent
from .errors import NotFound, OverQuota
from .fields import UINT32, Fields
from .frames import dump
from .limits import Limits
from .mail import notify

MAX_KEY_BYTES = 4096  # a Kyber-1024 public key has 1,569 bytes
MAX_PREKEYS_PER_CALL = 1_000
MAX_ENVELOPES_PER_CALL = 256
MAX_ENVELOPE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class Envelope:
    """A group key, sealed for one agent."""

    recipient_id: str
    key_id: str
    epoch: int
    envelope_b64: str


def read_bundle(fields: Fields) -> dict[str, Any]:
    """The published bundle's fields (relay protocol reference). Raises Malformed."""
    features = fields.optional(lambda name: fields.identifiers(name, low=0, high=32), "protocol_features")
    return {
        "registration_id": fields.integer("registration_id", high=UINT32),
        "device_id": fields.integer("device_id", high=UINT32),
        "identity_key": read_identity_key(fields),
        "signed_prekey_id": fields.integer("signed_prekey_id", high=UINT32),
        "signed_prekey_public": fields.base64("signed_prekey_public", low=33, high=33),
        "signed_prekey_signature": fields.base64("signed_prekey_signature", low=64, high=64),
        "kyber_prekey_id": fields.integer("kyber_prekey_id", high=UINT32),
        "kyber_prekey_public": fields.base64("kyber_prekey_public", low=1, high=MAX_KEY_BYTES),
        "kyber_prekey_signature": fields.base64("kyber_prekey_signature", low=64, high=64),
        "protocol_features": features or [],
    }


def read_identity_key(fields: Fields) -> str:
    """A type byte and a Curve25519 public key. Raises Malformed."""
    return fields.base64("identity_key", low=33, high=33)


def read_one_time_prekeys(fields: Fields) -> list[tuple[int, str]]:
    """(id, public key in base64). Raises Malformed."""
    return [
        (one.integer("prekey_id", high=UINT32), one.base64("public_key", low=33, high=33))
        for one in fields.each("one_time_prekeys", limit=MAX_PREKEYS_PER_CALL)
    ]


def read_envelopes(fields: Fields) -> list[Envelope]:
    """Raises Malformed."""
    return [
        Envelope(
            recipient_id=one.identifier("recipient_id"),
            key_id=one.identifier("key_id"),
            epoch=one.integer("epoch", low=1),
            envelope_b64=one.base64("envelope_b64", low=1, high=MAX_ENVELOPE_BYTES),
        )
        for one in fields.each("envelopes", limit=MAX_ENVELOPES_PER_CALL)
    ]


def publish_bundle(
    db: sqlite3.Connection, agent: Agent, bundle: dict[str, Any], limits: Limits, now: float
) -> tuple[str, ...]:
    """Replaces the agent's bundle. Returns the mailboxes that got a notice.

    Under another identity key, what was made for the former one opens nothing any more: unused one-time prekeys and
    sealed group keys go, and the person's devices are told.
    """
    former = db.execute("SELECT identity_key FROM agents WHERE id = ?", (agent.id,)).fetchone()[0]
    identity_key = bundle["identity_key"]
    db.execute("UPDATE agents SET bundle = ?, identity_key = ? WHERE id = ?", (dump(bundle), identity_key, agent.id))
    if former is None or former == identity_key:
        return ()
    db.execute("DELETE FROM one_time_prekeys WHERE agent_id = ?", (agent.id,))
    db.execute("DELETE FROM group_keys WHERE recipient_id = ?", (agent.id,))
    notice = dump({"type": "IDENTITY_CHANGED", "agent_id": agent.id})
    return notify(db, device_ids(db, agent.account_id), notice, limits, now)


def add_one_time_prekeys(db: sqlite3.Connection, agent: Agent, prekeys: list[tuple[int, str]], limits: Limits) -> int:
    """Returns how many are left to hand out. Ids known already stay as they are, also those handed out."""
    db.executemany(
        "INSERT OR IGNORE INTO one_time_prekeys (agent_id, prekey_id, public_key) VALUES (?, ?, ?)",
        [(agent.id, prekey_id, public_key) for prekey_id, public_key in prekeys],
    )
    # The official SDK adds 50 at each start and takes a refusal as fatal, so the oldest make room.
    db.execute(
        "UPDATE one_time_prekeys SET public_key = NULL WHERE number IN (SELECT number FROM one_time_prekeys"
        " WHERE agent_id = ? AND public_key IS NOT NULL ORDER BY number DESC LIMIT -1 OFFSET ?)",
        (agent.id, limits.one_time_prekeys_per_agent),
    )
    count: int = db.execute(
        "SELECT count(*) FROM one_time_prekeys WHERE agent_id = ? AND public_key IS NOT NULL", (agent.id,)
    ).fetchone()[0]
    return count


def take_bundle(db: sqlite3.Connection, device: Device, agent_id: str) -> dict[str, Any]:
    """The agent's bundle with one one-time prekey, which nobody gets again. Raises NotFound `no_prekeys`."""
    require_own_agent(db, device, agent_id)
    bundle = db.execute("SELECT bundle FROM agents WHERE id = ?", (agent_id,)).fetchone()[0]
    if bundle is None:
        raise NotFound("the agent has not published its keys: start it once", code="no_prekeys")
    row = db.execute(
        "SELECT number, prekey_id, public_key FROM one_time_prekeys WHERE agent_id = ? AND public_key IS NOT NULL"
        " ORDER BY number LIMIT 1",
        (agent_id,),
    ).fetchone()
    one_time = None
    if row is not None:
        number, prekey_id, public_key = row
        one_time = {"prekey_id": prekey_id, "public_key": public_key}
        db.execute("UPDATE one_time_prekeys SET public_key = NULL WHERE number = ?", (number,))
    return {**json.loads(bundle), "one_time_prekey": one_time}


def set_device_identity(
    db: sqlite3.Connection, device: Device, identity_key: str, limits: Limits, now: float
) -> tuple[bool, tuple[str, ...]]:
    """(whether another key was known before, the agents' mailboxes that got a notice)."""
    former = db.execute("SELECT identity_key FROM devices WHERE id = ?", (device.id,)).fetchone()[0]
    db.execute("UPDATE devices SET identity_key = ? WHERE id = ?", (identity_key, device.id))
    if former is None or former == identity_key:
        return False, ()
    agents = db.execute(
        "SELECT DISTINCT agent_id FROM members JOIN conversations ON id = conversation_id WHERE account_id = ?",
        (device.account_id,),
    ).fetchall()
    notice = dump({"type": "IDENTITY_CHANGED", "user_id": device.account_id})
    return True, notify(db, [row[0] for row in agents], notice, limits, now)


def store_group_keys(
    db: sqlite3.Connection, device: Device, conversation_id: str, envelopes: list[Envelope], limits: Limits
) -> int:
    """Returns how many. A repeated one (same key, receiver and device) takes the place of the former."""
    members = conversations.of_device(db, device, conversation_id).agent_ids
    if not {envelope.recipient_id for envelope in envelopes}.issubset(members):
        raise NotFound("a recipient_id is no agent of this conversation", code="recipient")
    db.executemany(
        "INSERT OR REPLACE INTO group_keys (conversation_id, recipient_id, key_id, epoch, sender_id,"
        " sender_device_id, envelope) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [
            (conversation_id, e.recipient_id, e.key_id, e.epoch, device.account_id, device.id, e.envelope_b64)
            for e in envelopes
        ],
    )
    count = db.execute("SELECT count(*) FROM group_keys WHERE conversation_id = ?", (conversation_id,)).fetchone()[0]
    if count > limits.group_keys_per_conversation:
        raise OverQuota(f"a conversation may have {limits.group_keys_per_conversation} sealed group keys")
    return len(envelopes)


def group_keys_for(db: sqlite3.Connection, agent: Agent, conversation_id: str) -> list[dict[str, Any]]:
    """The sealed group keys addressed to this agent, oldest first. Raises NotFound or Forbidden."""
    conversations.of_agent(db, agent, conversation_id)
    rows = db.execute(
        "SELECT key_id, epoch, sender_id, sender_device_id, envelope FROM group_keys"
        " WHERE conversation_id = ? AND recipient_id = ? ORDER BY number",
        (conversation_id, agent.id),
    )
    return [
        {
            "conversation_id": conversation_id,
            "key_id": key_id,
            "epoch": epoch,
            "sender_id": sender_id,
            "sender_device_id": sender_device_id,
            "envelope_b64": envelope,
        }
        for key_id, epoch, sender_id, sender_device_id, envelope in rows
    ]
