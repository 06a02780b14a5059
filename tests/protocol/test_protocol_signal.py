"""Real Signal between two of our stores, and what becomes of state that was saved, lost or damaged."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from signal_pair import Pair
from wild import any_json, b64, nearly

from pacerelle_protocol import _snapshot
from pacerelle_protocol.errors import DecryptError, LocalProtocolError, PayloadError, StateError
from pacerelle_protocol.signal import (
    PreKeyBundle,
    SignalStore,
    agent_name,
    human_name,
    message_identity,
    safety_code,
)


class Disk:
    """Pieces as a database keeps them: only ever written through changes."""

    def __init__(self, store: SignalStore) -> None:
        self.rows: dict[str, bytes] = {}
        self.save(store)

    def save(self, store: SignalStore) -> set[str]:
        """The kinds of pieces that were written or deleted."""
        with store.lock:
            changes = store.changes()
            for name in changes.deletes:
                del self.rows[name]
            self.rows.update(changes.upserts)
            store.mark_saved()
        return {name.partition("/")[0] for name in [*changes.upserts, *changes.deletes]}

    def load(self, name: str) -> SignalStore:
        rows = list(self.rows.items())
        random.shuffle(rows)
        return SignalStore.restore(name, dict(rows))


class TestNames:
    def test_names(self) -> None:
        assert agent_name("a1") == "agent:a1"
        assert human_name("u1", "c1", "d1") == "human:u1:c1:device:d1"
        assert human_name("u1", "c1") == "human:u1:c1"

    @pytest.mark.parametrize("bad", ["", "a:b", "a\nb", "x" * 513, "\ud800"])
    def test_two_peers_never_share_a_name(self, bad: str) -> None:
        for make in (lambda: agent_name(bad), lambda: human_name(bad, "c"), lambda: human_name("u", bad)):
            with pytest.raises(LocalProtocolError):
                make()
        with pytest.raises(LocalProtocolError):
            human_name("u", "c", bad)

    def test_safety_code(self) -> None:
        code = safety_code(b"\x05" + bytes(32))
        assert len(code.split(" ")) == 16
        assert all(len(group) == 4 and group == group.upper() for group in code.split(" "))


class TestConversation:
    def test_both_ways(self, pair: Pair) -> None:
        phone = pair.phone()
        for _ in range(3):
            pair.talk(phone)
        assert pair.agent.sessions() == [phone.name]
        assert phone.sessions() == [pair.agent.name]
        assert pair.agent.known_identity(phone.name) == phone.identity_key
        assert phone.known_identity(pair.agent.name) == pair.agent.identity_key
        assert pair.agent.known_identity("human:x:y") is None

    def test_without_a_one_time_prekey(self, pair: Pair) -> None:
        phone = SignalStore.create(human_name("u1", "c1"))
        phone.process_bundle(pair.agent.name, pair.prekeys.bundle)
        pair.talk(phone)

    def test_fifty_one_time_prekeys_share_one_pair(self) -> None:
        agent = SignalStore.create("agent:a1")
        prekeys = agent.generate_prekeys(50)
        assert agent.one_time_prekey_ids() == {number for number, _ in prekeys.one_time}
        for index, (number, key) in enumerate(prekeys.one_time):
            phone = SignalStore.create(human_name(f"u{index}", "c1", "d1"))
            bundle = dataclasses.replace(prekeys.bundle, one_time_id=number, one_time_key=key)
            phone.process_bundle("agent:a1", bundle)
            assert agent.decrypt(phone.name, phone.encrypt("agent:a1", b"hi")) == b"hi"
        assert not agent.one_time_prekey_ids()
        assert agent.signed_prekey_ids() == {prekeys.bundle.signed_prekey_id}

    def test_new_prekeys_leave_first_messages_in_flight_alone(self, pair: Pair) -> None:
        phone = pair.phone()
        in_flight = phone.encrypt(pair.agent.name, b"first")
        pair.agent.generate_prekeys(5)
        assert pair.agent.decrypt(phone.name, in_flight) == b"first"

    @pytest.mark.parametrize("size", [0, 1, 1_000_000])
    def test_sizes(self, pair: Pair, size: int) -> None:
        phone = pair.phone()
        assert pair.agent.decrypt(phone.name, phone.encrypt(pair.agent.name, bytes(size))) == bytes(size)

    def test_out_of_order(self, pair: Pair) -> None:
        phone = pair.phone()
        sent = [(n, phone.encrypt(pair.agent.name, bytes([n]))) for n in range(20)]
        random.shuffle(sent)
        assert all(pair.agent.decrypt(phone.name, framed) == bytes([n]) for n, framed in sent)

    def test_who_wrote_is_readable_before_it_is_decrypted(self, pair: Pair) -> None:
        phone = pair.phone()
        assert message_identity(phone.encrypt(pair.agent.name, b"x")) == phone.identity_key
        pair.talk(phone)
        assert message_identity(phone.encrypt(pair.agent.name, b"x")) is None


class TestFailures:
    def refused(self, call: Callable[[], Any], reason: str) -> None:
        with pytest.raises((DecryptError, LocalProtocolError, PayloadError)) as caught:
            call()
        assert caught.value.reason == reason

    def test_a_replay(self, pair: Pair) -> None:
        phone = pair.phone()
        first = phone.encrypt(pair.agent.name, b"x")
        pair.agent.decrypt(phone.name, first)
        self.refused(lambda: pair.agent.decrypt(phone.name, first), "undecryptable")
        phone.decrypt(pair.agent.name, pair.agent.encrypt(phone.name, b"y"))
        later = phone.encrypt(pair.agent.name, b"x")
        pair.agent.decrypt(phone.name, later)
        self.refused(lambda: pair.agent.decrypt(phone.name, later), "undecryptable")
        pair.talk(phone)

    def test_another_identity_under_a_known_name(self, pair: Pair) -> None:
        phone = pair.phone()
        pair.talk(phone)
        intruder = pair.phone()
        framed = intruder.encrypt(pair.agent.name, b"it is me")
        assert message_identity(framed) != pair.agent.known_identity(phone.name)
        self.refused(lambda: pair.agent.decrypt(phone.name, framed), "identity_changed")
        pair.talk(phone)
        other_agent = SignalStore.create(pair.agent.name).generate_prekeys(1).bundle
        self.refused(lambda: phone.process_bundle(pair.agent.name, other_agent), "identity_changed")
        pair.talk(phone)

    def test_a_used_prekey(self, pair: Pair) -> None:
        bundle = pair.bundle()
        one, two = (SignalStore.create(human_name(user, "c1", "d1")) for user in ("u1", "u2"))
        for phone in (one, two):
            phone.process_bundle(pair.agent.name, bundle)
        pair.talk(one)
        framed = two.encrypt(pair.agent.name, b"x")
        self.refused(lambda: pair.agent.decrypt(two.name, framed), "prekey_missing")

    def test_no_session(self, pair: Pair) -> None:
        phone = pair.phone()
        pair.talk(phone)
        later = phone.encrypt(pair.agent.name, b"x")
        self.refused(lambda: pair.agent.decrypt("human:u9:c1", later), "no_session")
        self.refused(lambda: pair.agent.encrypt("human:u9:c1", b"x"), "no_session")
        assert not pair.agent.has_session("human:u9:c1")

    @pytest.mark.parametrize("framed", [b"", b"\1", b"\3xx", b"\1\x44\xff\xff\xff", b"hello there", bytes(100)])
    def test_unreadable(self, pair: Pair, framed: bytes) -> None:
        with pytest.raises(PayloadError):
            message_identity(framed)
        self.refused(lambda: pair.agent.decrypt("human:u1:c1", framed), "unreadable")

    def test_a_failure_leaves_the_state_as_it_was(self, pair: Pair) -> None:
        phone = pair.phone()
        pair.talk(phone)
        before = pair.agent.pieces()
        framed = bytearray(phone.encrypt(pair.agent.name, b"x"))
        framed[-1] ^= 1
        self.refused(lambda: pair.agent.decrypt(phone.name, bytes(framed)), "undecryptable")
        assert pair.agent.pieces() == before

    @given(st.integers(0, 2000), st.integers(0, 8), st.binary(min_size=1, max_size=8))
    def test_any_damage_on_the_way(self, cut: int, removed: int, junk: bytes) -> None:
        pair = _shared_pair()
        user = f"u{len(pair.agent.sessions())}"  # a name whose identity is not known yet
        phone = SignalStore.create(human_name(user, "c2", "d1"))
        phone.process_bundle(pair.agent.name, pair.prekeys.bundle)
        framed = bytearray(phone.encrypt(pair.agent.name, b"x"))
        framed[cut : cut + removed] = junk
        try:
            got = pair.agent.decrypt(phone.name, bytes(framed))
        except DecryptError:
            return
        assert got == b"x"  # what was hit is not authenticated, such as the registration id

    @given(st.binary(max_size=200))
    def test_any_bytes(self, framed: bytes) -> None:
        with pytest.raises(DecryptError):
            _shared_pair().agent.decrypt("human:u1:c1", framed)

    @pytest.mark.parametrize("name", ["", "\ud800", "x" * 10_000])
    def test_names_that_cannot_be(self, pair: Pair, name: str) -> None:
        for call in (
            lambda: pair.agent.encrypt(name, b""),
            lambda: pair.agent.decrypt(name, b""),
            lambda: pair.agent.process_bundle(name, pair.prekeys.bundle),
            lambda: SignalStore.create(name),
        ):
            self.refused(call, "bad_id")

    def test_a_closed_store(self, pair: Pair) -> None:
        pair.agent.close()
        pair.agent.close()
        for call in (
            lambda: pair.agent.encrypt("human:u1:c1", b""),
            lambda: pair.agent.decrypt("human:u1:c1", b""),
            lambda: pair.agent.generate_prekeys(1),
            pair.agent.changes,
            pair.agent.sessions,
            pair.agent.revert,
        ):
            self.refused(call, "closed")


_pairs: list[Pair] = []


def _shared_pair() -> Pair:
    """One for all examples of a property: making Kyber keys is the slow part."""
    if not _pairs:
        _pairs.append(Pair())
    return _pairs[0]


class TestPrekeys:
    def test_an_existing_id_is_never_overwritten(self, pair: Pair) -> None:
        signed = pair.prekeys.bundle.signed_prekey_id
        one_time = pair.prekeys.one_time[3][0]
        before = pair.agent.pieces()
        for arguments in ({"signed_id": signed}, {"first_one_time_id": one_time - 1}):
            with pytest.raises(LocalProtocolError) as caught:
                pair.agent.generate_prekeys(2, **arguments)
            assert caught.value.reason == "prekey_id_taken"
        assert pair.agent.pieces() == before

    @pytest.mark.parametrize(
        ("count", "arguments"),
        [
            (0, {}),
            (1, {"signed_id": 0}),
            (1, {"signed_id": 2**31}),
            (1, {"first_one_time_id": 0}),
            (2, {"first_one_time_id": 2**31 - 1}),
        ],
    )
    def test_ids_have_31_bits(self, pair: Pair, count: int, arguments: dict[str, int]) -> None:
        with pytest.raises(LocalProtocolError):
            pair.agent.generate_prekeys(count, **arguments)

    def test_ids_as_asked(self, pair: Pair) -> None:
        prekeys = pair.agent.generate_prekeys(2, signed_id=2**31 - 1, first_one_time_id=2**31 - 2)
        assert [number for number, _ in prekeys.one_time] == [2**31 - 2, 2**31 - 1]
        assert prekeys.bundle.signed_prekey_id == prekeys.bundle.kyber_prekey_id == 2**31 - 1

    def test_the_published_form(self, pair: Pair) -> None:
        published = pair.prekeys.bundle.to_json()
        assert published["protocol_features"] == ["history-v1"]
        assert not {"prekey_id", "one_time_prekey"} & set(published)
        assert PreKeyBundle.from_json(json.loads(json.dumps(published))) == pair.prekeys.bundle
        first = pair.prekeys.one_time_json()["one_time_prekeys"][0]
        handed_out = PreKeyBundle.from_json(published | {"one_time_prekey": first})
        assert (handed_out.one_time_id, handed_out.one_time_key) == pair.prekeys.one_time[0]
        assert PreKeyBundle.from_json(published | {"one_time_prekey": None}) == pair.prekeys.bundle

    @pytest.mark.parametrize(
        "change",
        [
            {"registration_id": -1},
            {"registration_id": 2**32},
            {"signed_prekey_id": "1"},
            {"kyber_prekey_id": True},
            {"device_id": 2},
            {"identity_key": "BQ=="},
            {"identity_key": "A" * 44},
            {"signed_prekey_public": None},
            {"signed_prekey_signature": "!"},
            {"kyber_prekey_public": "AAAA"},
            {"one_time_prekey": []},
            {"one_time_prekey": {"prekey_id": 1}},
            {"one_time_prekey": {"prekey_id": -1, "public_key": "A" * 44}},
        ],
    )
    def test_a_malformed_bundle(self, pair: Pair, change: dict[str, Any]) -> None:
        with pytest.raises(PayloadError) as caught:
            PreKeyBundle.from_json(pair.prekeys.bundle.to_json() | change)
        assert caught.value.reason == "bad_bundle"

    @pytest.mark.parametrize("name", ["signed_prekey_signature", "kyber_prekey_signature", "signed_prekey"])
    def test_a_wrong_signature(self, pair: Pair, name: str) -> None:
        key = bytearray(getattr(pair.prekeys.bundle, name))
        key[20] ^= 1
        bundle = dataclasses.replace(pair.prekeys.bundle, **{name: bytes(key)})
        phone = SignalStore.create("human:u1:c1")
        with pytest.raises(PayloadError) as caught:
            phone.process_bundle(pair.agent.name, bundle)
        assert caught.value.reason == "bad_bundle"
        assert not phone.has_session(pair.agent.name)

    @given(any_json | nearly({"identity_key": b64, "device_id": st.just(1), "registration_id": st.integers()}))
    def test_any_bundle_is_refused(self, obj: Any) -> None:
        with pytest.raises(PayloadError):
            PreKeyBundle.from_json(obj)


class TestPieces:
    def test_a_message_changes_its_own_pieces_only(self, pair: Pair) -> None:
        disk = Disk(pair.agent)
        assert disk.rows == pair.agent.pieces()
        phones = [pair.phone(f"u{n}") for n in range(3)]
        for phone in phones:
            pair.talk(phone)
        assert disk.save(pair.agent) == {"identity", "prekey", "session", "basekey"}
        pair.agent.encrypt(phones[1].name, b"x")
        changes = pair.agent.changes()
        assert set(changes.upserts) == {f"session/{phones[1].name}/1"}
        assert not changes.deletes
        disk.save(pair.agent)
        assert not pair.agent.changes()
        late = pair.phone("u9")
        pair.agent.decrypt(late.name, late.encrypt(pair.agent.name, b"x"))
        assert len(pair.agent.changes().upserts) == 3  # identity, session and ONE base key
        assert len(pair.agent.changes().deletes) == 1  # the one-time prekey

    def test_sessions_live_on_from_what_was_written(self, pair: Pair) -> None:
        disk = Disk(pair.agent)
        phones = [pair.phone(f"u{n % 3}", device=None if n == 4 else f"d{n}") for n in range(5)]
        agent = pair.agent
        for turn in range(40):
            phone = random.choice(phones)
            if turn % 10 == 9:
                phone.process_bundle(agent.name, pair.prekeys.bundle)  # the session before is archived
            pair.talk(phone, agent)
            disk.save(agent)
            assert disk.rows == agent.pieces()
            if turn % 5 == 4:
                agent.close()
                agent = disk.load(agent.name)
                assert not agent.changes()
        assert agent.identity_key == pair.agent.identity_key
        assert agent.registration_id == pair.agent.registration_id
        assert set(agent.sessions()) <= {phone.name for phone in phones}

    def test_names_with_slashes_and_letters(self) -> None:
        prekeys = SignalStore.create("agent:a").generate_prekeys(1)
        phone = SignalStore.create(human_name("ü/1", "c/\u2028", "d/1"))
        phone.process_bundle(agent_name("/a/"), prekeys.bundle)
        assert phone.sessions() == ["agent:/a/"]
        assert SignalStore.restore(phone.name, phone.pieces()).sessions() == ["agent:/a/"]

    def test_revert_takes_back_what_was_not_committed(self, pair: Pair) -> None:
        disk = Disk(pair.agent)
        phone = pair.phone()
        framed = phone.encrypt(pair.agent.name, b"x")
        for _ in range(3):
            assert pair.agent.decrypt(phone.name, framed) == b"x"
            assert pair.agent.changes()
            pair.agent.revert()
            assert not pair.agent.changes()
            assert pair.agent.pieces() == disk.rows
        pair.agent.decrypt(phone.name, framed)
        disk.save(pair.agent)

    def test_revert_of_a_store_that_was_never_saved(self) -> None:
        store = SignalStore.create("agent:a")
        identity = store.identity_key
        store.generate_prekeys(1)
        store.revert()
        assert not store.signed_prekey_ids()
        assert SignalStore.restore("agent:a", store.changes().upserts).identity_key == identity

    def test_what_changed_after_changes_is_not_marked_saved(self, pair: Pair) -> None:
        phone = pair.phone()
        pair.talk(phone)
        pair.agent.mark_saved()  # nothing was handed out yet
        assert pair.agent.changes().upserts
        pair.agent.encrypt(phone.name, b"meanwhile")
        pair.agent.mark_saved()
        assert set(pair.agent.changes().upserts) == {f"session/{phone.name}/1"}

    def test_dropping_prekeys(self, pair: Pair) -> None:
        disk = Disk(pair.agent)
        phone = pair.phone()
        pair.talk(phone)
        old = pair.prekeys.bundle.signed_prekey_id
        new = pair.agent.generate_prekeys(1).bundle.signed_prekey_id
        disk.save(pair.agent)
        left = pair.agent.one_time_prekey_ids()
        pair.agent.drop({f"signed/{old}", f"kyber/{old}", f"prekey/{min(left)}", "prekey/1", "nothing"})
        assert pair.agent.signed_prekey_ids() == {new}
        assert pair.agent.one_time_prekey_ids() == left - {min(left)}
        assert disk.save(pair.agent) == {"signed", "kyber", "basekey", "prekey"}
        pair.talk(phone)
        for name in ("head", "owner"):
            with pytest.raises(LocalProtocolError):
                pair.agent.drop([name])

    def test_many_threads(self, pair: Pair) -> None:
        phones = [pair.phone(f"u{n}") for n in range(4)]
        failures: list[BaseException] = []

        def work(phone: SignalStore) -> None:
            try:
                for _ in range(30):
                    pair.talk(phone)
                    pair.agent.changes()
                    pair.agent.has_session(phone.name)
                    pair.agent.mark_saved()
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(phone,)) for phone in phones]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        assert not pair.agent.changes()


def _flip(value: bytes, at: int) -> bytes:
    return value[:at] + bytes([value[at] ^ 0x55]) + value[at + 1 :]


class TestDamage:
    def refused(self, name: str, pieces: dict[str, bytes], reason: str | None = None) -> None:
        with pytest.raises(StateError) as caught:
            SignalStore.restore(name, pieces)
        assert reason in (None, caught.value.reason)

    @pytest.fixture
    def pieces(self, pair: Pair) -> dict[str, bytes]:
        for user in ("u1", "u2"):
            pair.talk(pair.phone(user))
        return pair.agent.pieces()

    def one(self, pieces: dict[str, bytes], kind: str) -> str:
        return next(name for name in pieces if name.partition("/")[0] == kind)

    def test_another_agents_state(self, pieces: dict[str, bytes]) -> None:
        self.refused("agent:a2", pieces, "other_owner")

    def test_nothing(self) -> None:
        self.refused("agent:a1", {})
        self.refused("agent:a1", {"owner": b"agent:a1"}, "unknown_layout")

    def test_a_piece_of_an_unknown_kind(self, pieces: dict[str, bytes]) -> None:
        self.refused("agent:a1", pieces | {"sender/x": b""}, "unknown_layout")

    @pytest.mark.parametrize("kind", ["head", "identity", "prekey", "signed", "kyber", "basekey", "session"])
    def test_cut_longer_empty_or_misnamed(self, pieces: dict[str, bytes], kind: str) -> None:
        name = self.one(pieces, kind)
        value = pieces[name]
        for damaged in (b"", value[:-1], value + b"\0", value[1:], value + value, b"\xff" * len(value)):
            self.refused("agent:a1", pieces | {name: damaged})
        if kind != "head":
            moved = {key: item for key, item in pieces.items() if key != name}
            self.refused("agent:a1", moved | {name + "0": value})
            self.refused("agent:a1", pieces | {name + "0": value})

    @pytest.mark.parametrize("kind", ["head", "identity", "prekey", "signed", "kyber", "basekey", "session"])
    def test_lengths_and_types_inside(self, pieces: dict[str, bytes], kind: str) -> None:
        name = self.one(pieces, kind)
        value = pieces[name]
        type_byte = {"kyber": 0x08, "session": 0x0A}.get(kind, 0x05)
        start = {"head": 12, "basekey": 8}.get(kind, 0)
        if kind in ("identity", "session"):
            start = 8 + int.from_bytes(value[:4], "little")  # behind the name and the device
        at = value.index(bytes([type_byte]), start + (4 if kind in ("identity", "session") else 0))
        if kind in ("prekey", "signed", "kyber"):
            at = value.index(b"\x12", 8) + (3 if kind == "kyber" else 2)
        self.refused("agent:a1", pieces | {name: _flip(value, at)})

    def test_two_values_in_one_piece(self, pieces: dict[str, bytes]) -> None:
        one, two = [name for name in pieces if name.startswith("session/")]
        merged = {key: value for key, value in pieces.items() if key != two}
        self.refused("agent:a1", merged | {one: pieces[one] + pieces[two]}, "unknown_layout")

    def test_a_snapshot_of_another_version_or_with_more_in_it(self, pieces: dict[str, bytes]) -> None:
        data = _snapshot.join(pieces, "agent:a1")
        assert _snapshot.split(data).pieces("agent:a1") == pieces
        for damaged in (data + b"\0\0\0\0", data[:8] + b"\2" + data[9:], b"", data[:-1]):
            with pytest.raises(StateError):
                _snapshot.split(damaged)

    def test_a_store_that_failed_to_load_did_no_harm(self, pieces: dict[str, bytes]) -> None:
        self.refused("agent:a1", pieces | {self.one(pieces, "session"): b"x"})
        assert len(SignalStore.restore("agent:a1", pieces).sessions()) == 2


class TestRecognition:
    """Splitting with a previous snapshot must give what splitting without gives, whatever came, changed and went."""

    @given(st.data())
    def test_any_change(self, data: st.DataObject) -> None:
        def snapshot() -> dict[str, bytes]:
            out = dict(base)
            for number in data.draw(st.permutations(range(6))):
                key, value = data.draw(st.sampled_from(choices[number]))
                if value:
                    out[key] = value
            return out

        pair = _shared_pair()
        base = {name: value for name, value in pair.agent.pieces().items() if name in ("owner", "head")}
        choices = []
        for number in range(6):
            name = f"human:u{number}:c1".encode()
            entries = [
                len(name).to_bytes(4, "little")
                + name
                + bytes([1, 0, 0, 0])
                + len(record).to_bytes(4, "little")
                + record
                for record in (b"\x0a\x02\x08\x01", b"\x0a\x04\x08\x01\x08\x02")
            ]
            choices.append([(f"session/{name.decode()}/1", entry) for entry in [*entries, b""]])
        previous = None
        for _ in range(4):
            pieces = snapshot()
            whole = _snapshot.join(pieces, pair.agent.name)
            seen = _snapshot.split(whole, previous)
            assert seen == _snapshot.split(whole)
            if previous is not None:
                upserts, deletes = _snapshot.difference(seen, previous)
                before = previous.pieces(pair.agent.name)
                assert {name: value for name, value in (before | upserts).items() if name not in deletes} == pieces
            previous = seen
