"""Groups, history records and files: what AES-GCM protects."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wild import HOSTILE_BYTES, HOSTILE_JSON, any_json, any_text, b64, ids, nearly, written

from pacerelle_protocol.errors import DecryptError, GroupKeyMissing, LocalProtocolError, PayloadError
from pacerelle_protocol.files import open_file, seal_file
from pacerelle_protocol.groups import (
    GroupHeader,
    GroupKey,
    encode_sender_key,
    group_header,
    new_group_key,
    open_group,
    parse_group_key_envelopes,
    parse_sender_key,
    seal_group,
)
from pacerelle_protocol.history import HistoryKey, open_record, parse_history_key, seal_record

GROUP = GroupKey("c1", "k1", 2, bytes(range(32)))
KEY = HistoryKey("k1", 1, bytes(range(32)))
RECORD: dict[str, Any] = {
    "conversation_id": "c1",
    "message_id": "m1",
    "sender_id": "a1",
    "sender_type": "agent",
}


def changed(payload_b64: str, **change: Any) -> str:
    obj = json.loads(base64.b64decode(payload_b64)) | change
    return base64.b64encode(json.dumps(obj).encode()).decode()


class TestGroups:
    def test_a_message_comes_back(self) -> None:
        sealed = seal_group("é".encode(), GROUP)
        assert group_header(sealed) == GroupHeader("c1", "k1", 2)
        assert open_group(sealed, GROUP) == "é".encode()
        assert sealed != seal_group("é".encode(), GROUP)

    def test_keys_are_fresh_and_travel(self) -> None:
        key = new_group_key("c1", epoch=3)
        assert key.epoch == 3
        assert key.raw != new_group_key("c1").raw
        assert parse_sender_key(encode_sender_key(key)) == parse_sender_key(encode_sender_key(key).encode()) == key

    @pytest.mark.parametrize("change", [{"conversation_id": "c2"}, {"key_id": "k2"}, {"epoch": 3}])
    def test_a_message_of_another_key(self, change: dict[str, Any]) -> None:
        sealed = changed(seal_group(b"x", GROUP), **change)
        with pytest.raises(DecryptError) as caught:
            open_group(sealed, GROUP)
        assert caught.value.reason == "wrong_key"
        with pytest.raises(DecryptError) as caught:  # it cannot be passed off as that key's either
            open_group(sealed, dataclasses.replace(GROUP, **change))
        assert caught.value.reason == "not_authentic"

    @pytest.mark.parametrize(
        "change",
        [
            {"type": "pacerelle.group.sender_key"},
            {"v": 2},
            {"alg": "none"},
            {"conversation_id": "c:1"},
            {"key_id": ""},
            {"epoch": -1},
            {"epoch": 1.0},
            {"epoch": True},
            {"epoch": 2**64},
            {"iv_b64": "AAAA"},
            {"ciphertext_b64": "!"},
            {"ciphertext_b64": None},
        ],
    )
    def test_a_malformed_message(self, change: dict[str, Any]) -> None:
        with pytest.raises(PayloadError):
            open_group(changed(seal_group(b"x", GROUP), **change), GROUP)

    def test_a_short_ciphertext(self) -> None:
        with pytest.raises(DecryptError):
            open_group(changed(seal_group(b"x", GROUP), ciphertext_b64="AAAA"), GROUP)

    @pytest.mark.parametrize(
        "change",
        [{"raw_key_b64": "AAAA"}, {"raw_key_b64": 3}, {"epoch": 0}, {"v": 2}, {"type": "x"}, {"conversation_id": ""}],
    )
    def test_a_bad_key(self, change: dict[str, Any]) -> None:
        with pytest.raises(PayloadError):
            parse_sender_key(json.dumps(json.loads(encode_sender_key(GROUP)) | change))

    def test_one_bad_envelope_hides_nothing(self) -> None:
        good = {
            "conversation_id": "c1",
            "key_id": "k1",
            "epoch": 1,
            "sender_id": "u1",
            "sender_device_id": "d1",
            "envelope_b64": "AQI=",
        }
        bad: list[Any] = [
            None,
            good | {"conversation_id": "c2"},
            good | {"key_id": 1},
            good | {"epoch": 0},
            good | {"sender_id": "u:1"},
            good | {"sender_device_id": 7},
            good | {"envelope_b64": "?"},
        ]
        found, errors = parse_group_key_envelopes([*bad, good, good | {"sender_device_id": None, "epoch": 2}], "c1")
        assert [(item.sender_device_id, item.epoch, item.envelope) for item in found] == [
            ("d1", 1, b"\1\2"),
            (None, 2, b"\1\2"),
        ]
        assert len(errors) == len(bad)
        assert parse_group_key_envelopes({"error": "x"}, "c1")[0] == []
        assert len(parse_group_key_envelopes(None, "c1")[1]) == 1

    def test_a_conversation_that_no_message_can_name(self) -> None:
        with pytest.raises(LocalProtocolError):
            new_group_key("c:1")

    def test_a_missing_key_is_named(self) -> None:
        error = GroupKeyMissing("c1", "k1", 4)
        assert (error.conversation_id, error.key_id, error.epoch) == ("c1", "k1", 4)
        assert error.reason == "group_key_missing"

    @pytest.mark.parametrize("data", HOSTILE_BYTES, ids=range(len(HOSTILE_BYTES)))
    def test_hostile(self, data: bytes) -> None:
        with pytest.raises(PayloadError):
            parse_sender_key(data)
        with pytest.raises(PayloadError):
            group_header(base64.b64encode(data).decode())

    @given(
        nearly(
            {
                "type": st.sampled_from(["pacerelle.group.message", "pacerelle.group.sender_key"]),
                "v": st.just(1),
                "alg": st.just("AES-256-GCM"),
                "conversation_id": ids,
                "key_id": ids,
                "epoch": st.integers(0, 3),
                "iv_b64": st.binary(min_size=12, max_size=12).map(lambda iv: base64.b64encode(iv).decode()),
                "ciphertext_b64": b64,
                "raw_key_b64": st.binary(min_size=32, max_size=32).map(lambda key: base64.b64encode(key).decode()),
                "sender_id": ids,
                "envelope_b64": b64,
            }
        )
    )
    def test_anything_is_read_or_refused(self, obj: dict[str, Any]) -> None:
        text = written(obj)
        try:
            header = group_header(base64.b64encode(text.encode()).decode())
            key = GroupKey(header.conversation_id, header.key_id, header.epoch, bytes(32))
            open_group(base64.b64encode(text.encode()).decode(), key)
        except (PayloadError, DecryptError):
            pass
        try:
            parse_sender_key(text)
        except PayloadError:
            pass
        found, errors = parse_group_key_envelopes([obj], "c1")
        assert len(found) + len(errors) == 1


class TestHistory:
    def test_a_record_comes_back(self) -> None:
        record = seal_record("é", KEY, **RECORD)
        assert set(record) == {"key_id", "epoch", "iv_b64", "ciphertext_b64", "aad_version"}
        assert open_record(json.loads(json.dumps(record)), KEY, **RECORD) == "é"

    @pytest.mark.parametrize(
        "change",
        [{"conversation_id": "c2"}, {"message_id": "m2"}, {"sender_id": "a2"}, {"sender_type": "human"}],
    )
    def test_a_record_belongs_to_one_message(self, change: dict[str, Any]) -> None:
        record = seal_record("x", KEY, **RECORD)
        with pytest.raises(DecryptError) as caught:
            open_record(record, KEY, **(RECORD | change))
        assert caught.value.reason == "not_authentic"

    @pytest.mark.parametrize(
        "change",
        [
            {"key_id": "k2"},
            {"epoch": 2},
            {"aad_version": 2},
            {"aad_version": True},
            {"iv_b64": "AAAA"},
            {"iv_b64": "é"},
            {"iv_b64": None},
            {"ciphertext_b64": ""},
            {"ciphertext_b64": 3},
        ],
    )
    def test_a_malformed_record(self, change: dict[str, Any]) -> None:
        with pytest.raises(DecryptError):
            open_record(seal_record("x", KEY, **RECORD) | change, KEY, **RECORD)

    @given(any_json | nearly({"key_id": st.just("k1"), "epoch": st.just(1), "aad_version": st.just(1), "iv_b64": b64}))
    def test_any_record_is_refused(self, record: Any) -> None:
        with pytest.raises(DecryptError):
            open_record(record, KEY, **RECORD)

    @pytest.mark.parametrize("name", ["conversation_id", "message_id", "sender_id"])
    @pytest.mark.parametrize("value", ["", "a:b", "a\n"])
    def test_ids_that_no_record_can_bind(self, name: str, value: str) -> None:
        with pytest.raises(LocalProtocolError):
            seal_record("x", KEY, **(RECORD | {name: value}))

    @given(any_json | nearly({"key_id": ids | any_text, "epoch": st.just(1), "raw_key_b64": b64}))
    def test_any_key_is_read_or_refused(self, obj: Any) -> None:
        try:
            assert len(parse_history_key(obj).raw) == 32
        except PayloadError as error:
            assert error.reason == "bad_history_key"  # noqa: PT017


class TestFiles:
    @pytest.mark.parametrize("data", [b"", b"x", bytes(1_000_000)], ids=["empty", "one", "million"])
    def test_a_file_comes_back(self, data: bytes) -> None:
        sealed = seal_file(data)
        assert len(sealed.ciphertext) == len(data) + 16
        got = open_file(sealed.ciphertext, key=sealed.key, iv=sealed.iv, sha256=sealed.sha256.upper(), size=len(data))
        assert got == data

    def test_every_file_has_its_own_key(self) -> None:
        one, two = seal_file(b"x"), seal_file(b"x")
        assert one.key != two.key
        assert one.iv != two.iv
        assert repr(one.key) not in repr(one)

    def test_what_does_not_open(self) -> None:
        sealed = seal_file(b"data")
        broken = bytes([sealed.ciphertext[0] ^ 1]) + sealed.ciphertext[1:]
        cases: list[tuple[bytes, dict[str, Any], str]] = [
            (broken, {}, "not_authentic"),
            (b"", {}, "not_authentic"),
            (sealed.ciphertext, {"key": bytes(32)}, "not_authentic"),
            (sealed.ciphertext, {"key": b"short"}, "bad_key"),
            (sealed.ciphertext, {"iv": b""}, "bad_key"),
            (sealed.ciphertext, {"sha256": "00"}, "digest_mismatch"),
            (sealed.ciphertext, {"size": 5}, "size_mismatch"),
        ]
        for ciphertext, change, reason in cases:
            with pytest.raises(DecryptError) as caught:
                open_file(ciphertext, **({"key": sealed.key, "iv": sealed.iv} | change))
            assert caught.value.reason == reason


@pytest.mark.parametrize("text", HOSTILE_JSON, ids=range(len(HOSTILE_JSON)))
def test_hostile_payloads(text: str) -> None:
    with pytest.raises(PayloadError):
        group_header(text)
