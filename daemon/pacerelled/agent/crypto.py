"""One agent's encryption: what comes in is opened, what goes out is sealed, inside the caller's transaction.

Runs on the store's thread. A rolled back transaction takes the Signal state in memory back as well, so that memory
never runs ahead of the disk (the relay protocol reference, safety rules 1 and 2).
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from pacerelle_protocol.envelope import IncomingMessage, group_target
from pacerelle_protocol.errors import (
    DecryptError,
    GroupKeyMissing,
    LocalProtocolError,
    PayloadError,
    RemoteProtocolError,
    StateError,
)
from pacerelle_protocol.groups import GroupKeyEnvelope, group_header, open_group, parse_sender_key, seal_group
from pacerelle_protocol.history import seal_record
from pacerelle_protocol.payload import Opened, open_plaintext, pack_b64, unpack_b64
from pacerelle_protocol.signal import SignalStore, agent_name, human_name, message_identity
from pacerelled.errors import NotPossible, StoreCorrupt
from pacerelled.store import agents as agent_rows
from pacerelled.store import conversations, devices
from pacerelled.store.agents import PrekeySet
from pacerelled.store.database import RESTORE_HINT, Tx

from . import identities
from .rejected import Rejected

ONE_TIME_PREKEYS = 50  # made at a time
ONE_TIME_LOW = 20  # fewer unused ones: make more
KEEP_SETS = 4  # signed + Kyber pairs kept for first messages still under way


@dataclass(frozen=True, slots=True)
class Sealed:
    """What goes into an outgoing envelope."""

    payload_b64: str
    encrypted: bool
    history_record: dict[str, object] | None


class AgentCrypto:
    """`signal` is None for an agent without end-to-end encryption (debugging of the transport only)."""

    def __init__(self, agent_id: str, *, e2ee: bool) -> None:
        self.agent_id = agent_id
        self.e2ee = e2ee
        self._signal: SignalStore | None = None
        self._closed = False

    def load(self, tx: Tx) -> None:
        """Restores the state from the store, or makes a new identity. Raises StoreCorrupt."""
        if not self.e2ee:
            return
        pieces = agent_rows.load_pieces(tx, self.agent_id)
        if pieces:
            try:
                self._signal = SignalStore.restore(agent_name(self.agent_id), pieces)
            except StateError as error:
                raise StoreCorrupt(
                    f"The encryption state of agent {self.agent_id} is damaged: {error}", hint=RESTORE_HINT
                ) from error
        else:
            self._signal = SignalStore.create(agent_name(self.agent_id))
            self.save(tx)

    def close(self) -> None:
        self._closed = True
        if self._signal is not None:
            self._signal.close()

    @property
    def signal(self) -> SignalStore:
        if self._closed:
            raise NotPossible("This agent is being stopped", hint="Try again when the daemon is ready.")
        if self._signal is None:
            raise NotPossible("This agent runs without end-to-end encryption", hint="Start it without --no-e2ee.")
        return self._signal

    def save(self, tx: Tx) -> None:
        """Writes the pieces that changed. Call once, at the end of a transaction that encrypted or decrypted."""
        if self._signal is None:
            return
        changes = self._signal.changes()
        if changes.upserts or changes.deletes:
            agent_rows.save_pieces(tx, self.agent_id, changes.upserts, changes.deletes)
            tx.after_commit(self._signal.mark_saved)

    def guard(self, tx: Tx) -> None:
        """Call first in such a transaction: if it is rolled back, so is the state in memory."""
        if self._signal is not None:
            tx.after_rollback(self._signal.revert)

    # -- inbound -----------------------------------------------------------------------------------------------

    def decrypt(self, tx: Tx, message: IncomingMessage) -> bytes:
        """The plaintext, which cannot be had a second time. Notes the device that wrote, with its identity key.

        Raises Rejected, or GroupKeyMissing (then: fetch the group's keys and come again). What it wrote before raising
        Rejected, about a key or a device, is to stay.
        """
        try:
            return self._decrypt(tx, message)
        except GroupKeyMissing:
            raise
        except RemoteProtocolError as error:
            raise Rejected(error.reason, str(error)) from error

    def read(self, tx: Tx, message: IncomingMessage, plaintext: bytes) -> Opened:
        """What a plaintext says; remembers a history key that comes with it. Raises Rejected."""
        try:
            opened = open_plaintext(plaintext, message.attachments)
        except PayloadError as error:
            raise Rejected(error.reason, str(error), plaintext) from error
        if opened.history_key is not None and message.encrypted:
            known = conversations.history_key(tx, self.agent_id, message.conversation_id)
            if known is None:
                conversations.set_history_key(tx, self.agent_id, message.conversation_id, opened.history_key)
            elif known != opened.history_key:
                raise Rejected(
                    "history_key_changed",
                    "The conversation has another archive key; keys are not rotated yet",
                    plaintext,
                )
        return opened

    def _decrypt(self, tx: Tx, message: IncomingMessage) -> bytes:
        payload = unpack_b64(message.payload_b64)
        sender, conversation, device = message.sender, message.conversation_id, message.sender_device_id
        if not message.encrypted:
            if self.e2ee:
                raise Rejected("not_encrypted", "The message is not encrypted, which this agent does not accept")
            return payload
        if not self.e2ee:
            raise Rejected("encrypted", "The message is encrypted, but this agent runs without encryption")
        if message.is_group:
            identities.admit(tx, self.agent_id, sender, device, conversation, identity=None)
            header = group_header(message.payload_b64)
            if header.conversation_id != conversation:
                raise Rejected("group_mismatch", "The group message names another conversation")
            key = conversations.group_key(tx, self.agent_id, header.conversation_id, header.key_id, header.epoch)
            if key is None:
                raise GroupKeyMissing(header.conversation_id, header.key_id, header.epoch)
            return open_group(message.payload_b64, key)
        return self._decrypt_from(tx, sender, conversation, device, payload)

    def _decrypt_from(self, tx: Tx, sender: str, conversation: str, device: str | None, framed: bytes) -> bytes:
        """Decrypts under the device's own name, and records the device with its identity key.

        The device-less name of older clients is tried only where such a session exists, the device has none of its
        own, and neither it nor the message has another identity key: never as a way around a failed decryption.
        """
        identity = message_identity(framed)
        known = identities.admit(tx, self.agent_id, sender, device, conversation, identity=identity)
        name, legacy = human_name(sender, conversation, device), False
        if device is not None and (known is None or known.legacy is not False):
            # Others have a session of their own; looking for it is not cheap.
            older = human_name(sender, conversation, None)
            if not self.signal.has_session(name) and self.signal.has_session(older):
                older_key, own_key = self.signal.known_identity(older), known.identity_key if known else None
                legacy = all(key in (None, older_key) for key in (identity, own_key))
                name = older if legacy else name
        plaintext = self.signal.decrypt(name, framed)
        if known is None or known.legacy is not legacy or not known.seen_lately(tx.now):
            key = identity or self.signal.known_identity(name)
            identities.wrote(
                tx, self.agent_id, sender, device, conversation, key=key, legacy=legacy, plaintext=plaintext
            )
        return plaintext

    def learn_group_keys(self, tx: Tx, envelopes: list[GroupKeyEnvelope]) -> tuple[int, list[str]]:
        """Opens what is new among sealed group keys: how many were, and why others are no good."""
        learned = 0
        problems: list[str] = []
        for envelope in envelopes:
            if conversations.group_key(tx, self.agent_id, envelope.conversation_id, envelope.key_id, envelope.epoch):
                continue
            try:
                plaintext = self._decrypt_from(
                    tx, envelope.sender_id, envelope.conversation_id, envelope.sender_device_id, envelope.envelope
                )
                key = parse_sender_key(plaintext)
                if (key.conversation_id, key.key_id, key.epoch) != (
                    envelope.conversation_id,
                    envelope.key_id,
                    envelope.epoch,
                ):
                    raise PayloadError("group_mismatch", "The group key is not the one its envelope names")
            except (RemoteProtocolError, Rejected) as error:
                problems.append(error.reason)
                continue
            conversations.save_group_key(tx, self.agent_id, key)
            learned += 1
        return learned, problems

    # -- outbound ----------------------------------------------------------------------------------------------

    def seal(self, tx: Tx, body: str, *, message_id: str, conversation: str, to: str, device: str | None) -> Sealed:
        """Encrypts `body` for a person's device or a group. Raises NotPossible."""
        data = body.encode()
        if not self.e2ee:
            return Sealed(pack_b64(data), False, None)
        if to == group_target(conversation):
            key = conversations.newest_group_key(tx, self.agent_id, conversation)
            if key is None:
                raise NotPossible(
                    f"There is no key for the group {conversation} yet",
                    hint="Somebody in the group has to write first; then reply with sourceMessageId.",
                )
            payload = seal_group(data, key)
        else:
            payload = pack_b64(self._encrypt_to(tx, to, conversation, device, data))
        history = conversations.history_key(tx, self.agent_id, conversation)
        record = None
        if history is not None:
            record = seal_record(
                body,
                history,
                conversation_id=conversation,
                message_id=message_id,
                sender_id=self.agent_id,
                sender_type="agent",
            )
        return Sealed(payload, True, record)

    def _encrypt_to(self, tx: Tx, to: str, conversation: str, device: str | None, data: bytes) -> bytes:
        known = devices.find(tx, self.agent_id, to, device, conversation)
        if known and known.blocked:
            raise NotPossible(
                f"The device of {to} that this would go to is blocked",
                hint="`pacerelle devices list` shows it; `pacerelle devices trust` unblocks it.",
            )
        name = human_name(to, conversation, None if known and known.legacy else device)
        try:
            return self.signal.encrypt(name, data)
        except (LocalProtocolError, DecryptError) as error:
            raise NotPossible(
                f"There is no encrypted session with {to} in conversation {conversation}",
                hint="They have to write first. Reply to one of their messages with sourceMessageId.",
            ) from error

    # -- prekeys -----------------------------------------------------------------------------------------------

    def prekeys_to_publish(self, tx: Tx) -> PrekeySet | None:
        """The set to publish now, or None if what is published is good.

        A set is committed before anybody sees it, and reused after restarts; a new one is made only when none
        exists or unused one-time prekeys run low. Older signed keys are kept for first messages still under way, up
        to `KEEP_SETS`.
        """
        sets = agent_rows.prekey_sets(tx, self.agent_id)
        if sets and not sets[0].published:
            return sets[0]
        if sets and len(self.signal.one_time_prekey_ids()) >= ONE_TIME_LOW:
            return None
        signed_id = _fresh_id(self.signal.signed_prekey_ids())
        first = _fresh_id(self.signal.one_time_prekey_ids(), room=ONE_TIME_PREKEYS)
        made = self.signal.generate_prekeys(ONE_TIME_PREKEYS, signed_id=signed_id, first_one_time_id=first)
        agent_rows.add_prekey_set(tx, self.agent_id, signed_id, made.bundle.to_json(), made.one_time_json())
        outdated = [s.signed_id for s in sets[KEEP_SETS - 1 :]]
        for old in outdated:
            agent_rows.drop_prekey_set(tx, self.agent_id, old)
        if outdated:
            self.signal.drop([f"signed/{i}" for i in outdated] + [f"kyber/{i}" for i in outdated])
        self.save(tx)
        return agent_rows.prekey_sets(tx, self.agent_id)[0]


def _fresh_id(taken: frozenset[int], room: int = 1) -> int:
    """A random positive 31-bit id such that it and the `room` - 1 after it are free."""
    while True:
        first = secrets.randbelow(2**31 - 1 - room) + 1
        if taken.isdisjoint(range(first, first + room)):
            return first
