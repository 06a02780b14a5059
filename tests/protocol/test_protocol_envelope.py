from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wild import HOSTILE_BYTES, HOSTILE_JSON, any_json, any_text, b64, ids, nearly, written

from pacerelle_protocol.envelope import (
    MAX_FRAME,
    IdentityChanged,
    IncomingMessage,
    PublicAttachment,
    UnknownFrame,
    ack_read_frame,
    group_target,
    message_frame,
    parse_frame,
)
from pacerelle_protocol.errors import FrameError, LocalProtocolError, TooLarge

MSG: dict[str, Any] = {
    "type": "MSG",
    "id": "m1",
    "from": "u1",
    "from_device_id": "d1",
    "conversation_id": "c1",
    "payload_b64": "aGk=",
    "encrypted": True,
}


def parse(frame: dict[str, Any]) -> Any:
    return parse_frame(json.dumps(frame))


def test_a_whole_message() -> None:
    got = parse(
        MSG
        | {
            "to": "group:c1",
            "reply_to_message_id": "m0",
            "attachments": [
                {"id": "f1", "name": "attachment", "mime": "x/y", "size": 3, "blob_id": "b1", "sha256": "ab"},
                {"id": "f2"},
                "nonsense",
                {"id": "f3", "name": "a", "mime": "x/y", "size": True, "blob_id": "b3"},
            ],
            "history_record": {"key_id": "k"},
            "from_the_future": 1,
        }
    )
    assert isinstance(got, IncomingMessage)
    assert (got.id, got.sender, got.sender_device_id, got.conversation_id) == ("m1", "u1", "d1", "c1")
    assert got.encrypted
    assert got.is_group
    assert got.reply_to_message_id == "m0"
    assert got.attachments == (PublicAttachment("f1", "attachment", "x/y", 3, "b1", "ab"),)
    assert got.history_record == {"key_id": "k"}


def test_a_message_for_another_group_is_none_of_this_group() -> None:
    assert not parse(MSG | {"to": "group:c2"}).is_group
    assert not parse(MSG).is_group


@pytest.mark.parametrize("value", [False, None, "true", 1])
def test_only_true_is_encrypted(value: Any) -> None:
    assert not parse(MSG | {"encrypted": value}).encrypted


@pytest.mark.parametrize("name", ["id", "from", "conversation_id", "payload_b64"])
def test_a_missing_field_is_named_and_the_rest_is_kept(name: str) -> None:
    with pytest.raises(FrameError, match=name) as caught:
        parse({key: value for key, value in MSG.items() if key != name})
    assert caught.value.reason == "missing_field"
    assert caught.value.message_id == (None if name == "id" else "m1")
    assert caught.value.sender == (None if name == "from" else "u1")
    assert caught.value.conversation_id == (None if name == "conversation_id" else "c1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", 7),
        ("id", ""),
        ("id", "x" * 513),
        ("id", "a\nb"),
        ("id", "\ud800"),
        ("from", "u:1"),
        ("conversation_id", "c1:device:d1"),
        ("from_device_id", "d:1"),
        ("from_device_id", 3),
        ("to", []),
        ("reply_to_message_id", "\0"),
        ("payload_b64", {}),
    ],
)
def test_a_bad_field_is_named(name: str, value: Any) -> None:
    with pytest.raises(FrameError, match=name) as caught:
        parse(MSG | {name: value})
    assert caught.value.reason == "bad_field"


@pytest.mark.parametrize("value", [None, ""])
def test_no_device_is_a_client_from_before_devices(value: Any) -> None:
    assert parse(MSG | {"from_device_id": value}).sender_device_id is None


def test_the_digest_tells_a_redelivery_from_a_reused_id() -> None:
    first = parse(MSG)
    again = parse_frame(json.dumps(MSG, sort_keys=True, indent=2).encode())
    assert isinstance(again, IncomingMessage)
    assert first.digest == again.digest
    assert first.digest == parse(MSG | {"history_record": {"iv_b64": "x"}, "server_time": 3}).digest
    for name, value in {"payload_b64": "aGo=", "from": "u2", "encrypted": False, "to": "a1"}.items():
        assert parse(MSG | {name: value}).digest != first.digest


def test_identity_changed() -> None:
    assert parse({"type": "IDENTITY_CHANGED", "user_id": "u1"}) == IdentityChanged("u1", "user")
    assert parse({"type": "IDENTITY_CHANGED", "agent_id": "a1"}) == IdentityChanged("a1", "agent")
    with pytest.raises(FrameError):
        parse({"type": "IDENTITY_CHANGED", "user_id": 3})


def test_an_unknown_type_is_short_and_printable() -> None:
    assert parse({"type": "PRESENCE"}) == UnknownFrame("PRESENCE")
    assert parse({"type": "A\x1b[31m" + "x" * 100}) == UnknownFrame("A?[31m" + "x" * 58)


@pytest.mark.parametrize("raw", [*HOSTILE_JSON, *HOSTILE_BYTES], ids=range(len(HOSTILE_JSON + HOSTILE_BYTES)))
def test_hostile_frames(raw: str | bytes) -> None:
    try:
        parse_frame(raw)
    except FrameError as error:
        assert error.reason  # noqa: PT017


@given(st.binary() | any_text)
def test_any_bytes(raw: bytes | str) -> None:
    with pytest.raises(FrameError):
        parse_frame(raw)


@given(
    nearly(
        {
            "type": st.sampled_from(["MSG", "MSG", "MSG", "IDENTITY_CHANGED"]),
            "id": ids,
            "from": ids,
            "from_device_id": ids,
            "to": ids,
            "user_id": ids,
            "conversation_id": ids,
            "payload_b64": b64,
            "encrypted": st.booleans(),
            "reply_to_message_id": ids,
            "attachments": st.lists(
                nearly({"id": ids, "name": ids, "mime": ids, "size": st.integers(), "blob_id": ids})
            ),
            "history_record": any_json,
        }
    )
)
def test_any_frame_is_read_or_refused(frame: dict[str, Any]) -> None:
    try:
        got = parse_frame(written(frame))
    except FrameError:
        return
    if isinstance(got, IncomingMessage):
        for value in (got.id, got.sender, got.conversation_id, got.payload_b64):
            value.encode()
        json.dumps(got.history_record, allow_nan=False).encode()


def test_an_outgoing_message() -> None:
    frame = message_frame(
        id="m2",
        conversation_id="c1",
        to=group_target("c1"),
        payload_b64="aGk=",
        reply_to_message_id="m1",
        attachments=[PublicAttachment("f1", "attachment", "x/y", 3, "b1", thumbnail_blob_id="t1")],
        history_record={"key_id": "k"},
    )
    assert json.loads(frame) == {
        "type": "MSG",
        "id": "m2",
        "conversation_id": "c1",
        "to": "group:c1",
        "payload_b64": "aGk=",
        "encrypted": True,
        "reply_to_message_id": "m1",
        "attachments": [
            {"id": "f1", "name": "attachment", "mime": "x/y", "size": 3, "blob_id": "b1", "thumbnail_blob_id": "t1"}
        ],
        "history_record": {"key_id": "k"},
    }
    assert "\n" not in frame
    assert ": " not in frame


def test_a_frame_that_would_end_the_official_clients_connection_is_refused() -> None:
    room = MAX_FRAME - len(message_frame(id="m", conversation_id="c", to="u", payload_b64=""))
    message_frame(id="m", conversation_id="c", to="u", payload_b64="x" * room)
    with pytest.raises(TooLarge) as caught:
        message_frame(id="m", conversation_id="c", to="u", payload_b64="x" * (room + 1))
    assert caught.value.size == MAX_FRAME + 1


def test_callers_mistakes_are_theirs() -> None:
    with pytest.raises(LocalProtocolError):
        message_frame(id="", conversation_id="c", to="u", payload_b64="")
    with pytest.raises(LocalProtocolError):
        ack_read_frame(to="u", message_id="m\n", conversation_id="c")
    with pytest.raises(LocalProtocolError):
        message_frame(id="m", conversation_id="c", to="u", payload_b64="", history_record={"x": float("nan")})


def test_ack_read() -> None:
    assert json.loads(ack_read_frame(to="u1", message_id="m1", conversation_id="c1")) == {
        "type": "ACK_READ",
        "to": "u1",
        "message_id": "m1",
        "conversation_id": "c1",
    }
