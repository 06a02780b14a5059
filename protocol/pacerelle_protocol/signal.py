"""The one adapter to the Signal runtime (`agent_gateway_sdk._SignalStore`), and nothing else of it.

A `SignalStore` gives its state in pieces, so that the caller writes only what a message changed, in the transaction
that also holds the message: encrypt or decrypt, `changes()`, commit, `mark_saved()`; or `revert()` where the commit
failed.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agent_gateway_sdk import SignalPreKeyBundle, SignalRuntimeError, _SignalStore

from . import _protobuf, _records, _snapshot, _wire
from ._snapshot import Snapshot
from .errors import DecryptError, LocalProtocolError, PayloadError, StateError
from .prekeys import DEVICE, MAX_PREKEY_ID, PreKeyBundle, Prekeys

__all__ = [
    "PieceChanges",
    "PreKeyBundle",
    "Prekeys",
    "SignalStore",
    "agent_name",
    "human_name",
    "message_identity",
    "safety_code",
]

MAX_NAME = 4 * _wire.MAX_ID  # characters: three identifiers and the words between them

_PREKEY_MESSAGE = 1
_MESSAGE = 2


def agent_name(agent_id: str) -> str:
    """Raises LocalProtocolError (bad_id)."""
    return f"agent:{_part(agent_id)}"


def human_name(user: str, conversation: str, device: str | None = None) -> str:
    """A person's device in a conversation; without device, a client from before devices existed.

    Raises LocalProtocolError (bad_id): an id with a colon would make two peers share a name.
    """
    name = f"human:{_part(user)}:{_part(conversation)}"
    return name if device is None else f"{name}:device:{_part(device)}"


def _part(value: str) -> str:
    if not _wire.is_plain_id(value):
        raise LocalProtocolError("bad_id", "an identifier is empty, too long, or has colons or control characters")
    return value


def safety_code(identity_key: bytes) -> str:
    """What two people compare: SHA-256 of the identity key, upper-case hex in groups of four."""
    digest = hashlib.sha256(identity_key).hexdigest().upper()
    return " ".join(digest[at : at + 4] for at in range(0, len(digest), 4))


def message_identity(framed: bytes) -> bytes | None:
    """The sender's identity key (33 bytes) in a message that starts a session; None for a later message.

    It is the sender's claim until the message decrypts. Raises PayloadError (bad_signal_message).
    """
    if len(framed) < 3 or framed[0] not in (_PREKEY_MESSAGE, _MESSAGE):
        raise PayloadError("bad_signal_message", "not a Signal message")
    if framed[0] == _MESSAGE:
        return None
    try:
        key = _protobuf.single_bytes(framed[2:], 3)
    except _protobuf.ProtobufError:
        key = b""
    if not _records.is_public_key(key):
        raise PayloadError("bad_signal_message", "the Signal message has no readable identity key")
    return key


@dataclass(frozen=True, slots=True)
class PieceChanges:
    """What to write so that the saved pieces are the current ones."""

    upserts: dict[str, bytes] = field(repr=False)
    deletes: frozenset[str]

    def __bool__(self) -> bool:
        return bool(self.upserts or self.deletes)


class SignalStore:
    """One party's Signal state. Every method may be called from any thread; `lock` serialises them.

    Hold `lock` around calls that belong together, such as encrypt and changes.
    """

    def __init__(self, name: str, native: _SignalStore, state: Snapshot, *, saved: bool) -> None:
        """Not for callers: `create` and `restore`."""
        self.name = name
        self.lock = threading.RLock()
        self.identity_key = state.identity_key()
        self.registration_id = state.registration_id()
        self._native: _SignalStore | None = native
        self._known = state  # what was last read of the native state
        self._stale = False  # it has changed since
        self._committed = state  # what `revert` goes back to
        self._saved = saved  # that is in the caller's store, too
        self._handed_out: Snapshot | None = None  # what becomes committed by `mark_saved`

    @classmethod
    def create(cls, name: str) -> SignalStore:
        """A new identity. Nothing of it is saved yet: the first `changes()` is all of it."""
        native = _SignalStore(_name(name))
        return cls(name, native, _snapshot.split(native.export_bytes()), saved=False)

    @classmethod
    def restore(cls, name: str, pieces: Mapping[str, bytes]) -> SignalStore:
        """The state that these pieces are, wholly checked first.

        Raises StateError: damaged, other_owner, unknown_layout. Two things only the caller can notice: a piece that
        is missing, and a flipped bit deep inside a ratchet, over which the runtime may end the process at a later
        message. So the pieces are kept together and with checksums.
        """
        native, state = _import(name, dict(pieces))
        return cls(name, native, state, saved=True)

    def close(self) -> None:
        """Frees the native state. Calls after it raise LocalProtocolError (closed)."""
        with self.lock:
            if self._native is not None:
                self._native.close()
            self._native = None

    def encrypt(self, remote: str, plaintext: bytes) -> bytes:
        """A framed message. Commit the new state before sending it: from a state that went back, the next message
        would use the same keys.

        Raises LocalProtocolError: no_session, encrypt_failed (the session cannot be used any more).
        """
        with self._changing() as native:
            try:
                return native.encrypt(_name(remote), plaintext)
            except SignalRuntimeError:
                reason = "no_session" if not self.has_session(remote) else "encrypt_failed"
                raise LocalProtocolError(reason) from None

    def decrypt(self, remote: str, framed: bytes) -> bytes:
        """A failure leaves the state unchanged.

        Raises DecryptError: unreadable, identity_changed (a known name with another identity key), prekey_missing,
        no_session, undecryptable (a duplicate, changed on the way, too far ahead).
        """
        with self._changing() as native:
            try:
                return native.decrypt(_name(remote), framed)
            except SignalRuntimeError:
                raise DecryptError(self._why(remote, framed)) from None

    def _why(self, remote: str, framed: bytes) -> str:
        """libsignal's answer is one number for many causes; the message and the state tell more."""
        try:
            identity = message_identity(framed)
        except PayloadError:
            return "unreadable"
        if identity is None:
            return "undecryptable" if self.has_session(remote) else "no_session"
        known = self.known_identity(remote)
        if known is not None and known != identity:
            return "identity_changed"
        if self.has_session(remote):
            return "undecryptable"
        kinds = {1: "prekey", 6: "signed", 7: "kyber"}
        used = [(kinds[field], value) for field, value in _protobuf.fields(framed[2:]) if field in kinds]
        have_all = all(f"{kind}/{value!r}" in self._pieces(kind) for kind, value in used)
        return "undecryptable" if have_all else "prekey_missing"

    def has_session(self, remote: str) -> bool:
        return f"session/{remote}/{DEVICE}" in self._pieces("session")

    def sessions(self) -> list[str]:
        """The remote names with a session, sorted."""
        return sorted(piece.partition("/")[2].rpartition("/")[0] for piece in self._pieces("session"))

    def known_identity(self, remote: str) -> bytes | None:
        """The identity key (33 bytes) that was accepted for a name: trusted on first use, never replaced."""
        piece = self._pieces("identity").get(f"identity/{remote}/{DEVICE}")
        return None if piece is None else _records.identity_in(piece)

    def one_time_prekey_ids(self) -> frozenset[int]:
        return self._ids("prekey")

    def signed_prekey_ids(self) -> frozenset[int]:
        return self._ids("signed")

    def generate_prekeys(
        self, count: int, *, signed_id: int | None = None, first_one_time_id: int | None = None
    ) -> Prekeys:
        """`count` one-time prekeys with consecutive ids and ONE fresh signed and Kyber pair for all of them.

        Ids that are not given are random and free. Save before publishing. Raises LocalProtocolError: bad_prekey_id,
        prekey_id_taken (an existing pair is never overwritten: that would kill first messages in flight).
        """
        if count < 1:
            raise LocalProtocolError("bad_prekey_id", "at least one prekey must be made")
        with self._changing() as native:
            pairs = self._ids("signed") | self._ids("kyber")
            one_time = self._ids("prekey")
            signed_id = _free(pairs, 1) if signed_id is None else signed_id
            first = _free(one_time, count) if first_one_time_id is None else first_one_time_id
            numbers = range(first, first + count)
            if not (0 < signed_id <= MAX_PREKEY_ID and first > 0 and numbers[-1] <= MAX_PREKEY_ID):
                raise LocalProtocolError("bad_prekey_id", "prekey ids are from 1 to 2^31 - 1")
            if signed_id in pairs or not one_time.isdisjoint(numbers):
                raise LocalProtocolError("prekey_id_taken")
            # The runtime makes all three at once; each turn replaces the pair that the turn before made.
            made = [_from_native(native.generate_prekey_bundle(number, signed_id, signed_id)) for number in numbers]
        keys = tuple((item.one_time_id or 0, item.one_time_key or b"") for item in made)
        return Prekeys(made[-1].without_one_time(), keys)

    def process_bundle(self, remote: str, bundle: PreKeyBundle) -> None:
        """Starts a session with `remote` (an existing one is archived).

        Raises PayloadError: identity_changed (a known name with another identity key), bad_bundle (a wrong signature).
        """
        with self._changing() as native:
            try:
                native.process_prekey_bundle(_name(remote), _to_native(bundle))
            except SignalRuntimeError:
                known = self.known_identity(remote)
                changed = known is not None and known != bundle.identity_key
                raise PayloadError("identity_changed" if changed else "bad_bundle") from None

    def pieces(self) -> dict[str, bytes]:
        """The whole state. Like `changes()`, what it gives is what `mark_saved()` takes as saved."""
        with self.lock:
            self._handed_out = self._snapshot()
            return self._handed_out.pieces(self.name)

    def changes(self) -> PieceChanges:
        """What is new since the last `mark_saved()`."""
        with self.lock:
            self._handed_out = self._snapshot()
            if not self._saved:
                return PieceChanges(self._handed_out.pieces(self.name), frozenset())
            return PieceChanges(*_snapshot.difference(self._handed_out, self._committed))

    def mark_saved(self) -> None:
        """What the last `changes()` or `pieces()` gave is committed."""
        with self.lock:
            if self._handed_out is not None:
                self._committed, self._saved, self._handed_out = self._handed_out, True, None

    def revert(self) -> None:
        """Back to what is saved (a new store: to how it began), after a commit that failed.

        Never after a message of the lost state was sent: its keys would be used twice.
        """
        self._replace(self._committed.pieces(self.name))

    def drop(self, pieces: Iterable[str]) -> None:
        """Removes pieces, such as prekeys that are no longer offered; unknown names are no matter.

        With a Kyber prekey go the base keys seen with it. Raises LocalProtocolError (no_identity).
        """
        gone = set(pieces)
        if gone & {_snapshot.HEAD, _snapshot.OWNER}:
            raise LocalProtocolError("no_identity", "a state without its identity key is none")
        gone_with = tuple(name.replace("kyber/", "basekey/", 1) + "/" for name in gone if name.startswith("kyber/"))
        with self.lock:
            now = self._snapshot().pieces(self.name)
            kept = {name: value for name, value in now.items() if name not in gone and not name.startswith(gone_with)}
            if len(kept) != len(now):
                self._replace(kept)

    def forget(self, remotes: Iterable[str]) -> None:
        """Ends the sessions with these names and forgets their identity keys: the next one is trusted on first use."""
        self.drop(f"{kind}/{remote}/{DEVICE}" for remote in remotes for kind in ("session", "identity"))

    def _replace(self, pieces: dict[str, bytes]) -> None:
        with self._changing() as native:
            self._native, _ = _import(self.name, pieces)
            self._handed_out = None
            native.close()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[_SignalStore]:
        with self.lock:
            if self._native is None:
                raise LocalProtocolError("closed", "the Signal store is closed")
            try:
                yield self._native
            finally:
                self._stale = True

    def _snapshot(self) -> Snapshot:
        with self.lock:
            if self._native is None:
                raise LocalProtocolError("closed", "the Signal store is closed")
            if self._stale:
                self._known = _snapshot.split(self._native.export_bytes(), self._known)
                self._stale = False
            return self._known

    def _pieces(self, kind: str) -> dict[str, bytes]:
        return self._snapshot().sections[kind].pieces

    def _ids(self, kind: str) -> frozenset[int]:
        return self._snapshot().sections[kind].numbers


def _import(name: str, pieces: dict[str, bytes]) -> tuple[_SignalStore, Snapshot]:
    data = _snapshot.join(pieces, name)
    try:
        native = _SignalStore.from_snapshot(_name(name), data)
    except SignalRuntimeError:
        raise StateError("damaged", "the Signal runtime refuses the state") from None
    state = _snapshot.split(native.export_bytes())
    if state.pieces(name) != pieces:
        native.close()
        raise StateError("damaged", "the Signal runtime reads the state differently")
    return native, state


def _name(name: str) -> str:
    if not name or len(name) > MAX_NAME or name != _wire.repair(name):
        raise LocalProtocolError("bad_id", "a Signal name is empty, too long or not text")
    return name


def _free(taken: frozenset[int], count: int) -> int:
    """The first of `count` consecutive free ids, random so that ids of a lost state are not met again."""
    while True:
        first = 1 + secrets.randbelow(MAX_PREKEY_ID - count + 1)
        if taken.isdisjoint(range(first, first + count)):
            return first


def _from_native(bundle: SignalPreKeyBundle) -> PreKeyBundle:
    one_time = None
    if bundle.prekey_id is not None and bundle.prekey_public is not None:
        one_time = {"prekey_id": bundle.prekey_id, "public_key": bundle.prekey_public}
    return PreKeyBundle.from_json({**vars(bundle), "one_time_prekey": one_time})


def _to_native(bundle: PreKeyBundle) -> SignalPreKeyBundle:
    return SignalPreKeyBundle(
        registration_id=bundle.registration_id,
        device_id=bundle.device_id,
        identity_key=_wire.b64(bundle.identity_key),
        signed_prekey_id=bundle.signed_prekey_id,
        signed_prekey_public=_wire.b64(bundle.signed_prekey),
        signed_prekey_signature=_wire.b64(bundle.signed_prekey_signature),
        kyber_prekey_id=bundle.kyber_prekey_id,
        kyber_prekey_public=_wire.b64(bundle.kyber_prekey),
        kyber_prekey_signature=_wire.b64(bundle.kyber_prekey_signature),
        # The runtime takes id 0 with an empty key as "no one-time prekey".
        prekey_id=0 if bundle.one_time_key is None else bundle.one_time_id,
        prekey_public="" if bundle.one_time_key is None else _wire.b64(bundle.one_time_key),
    )
