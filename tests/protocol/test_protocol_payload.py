from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wild import DEEP, HOSTILE_BYTES, any_json, any_text, b64, clean_text, ids, nearly, written

from pacerelle_protocol.envelope import PublicAttachment
from pacerelle_protocol.errors import LocalProtocolError, PayloadError
from pacerelle_protocol.history import HistoryKey
from pacerelle_protocol.payload import (
    FileRef,
    Text,
    WidgetResponse,
    WidgetUpdate,
    encode_delivery,
    encode_text,
    encode_widget,
    encode_widget_response,
    encode_widget_update,
    open_plaintext,
    pack_b64,
    unpack_b64,
)
from pacerelle_protocol.widgets import KINDS, Widget, example_widget, parse_widget

KEY = HistoryKey("k1", 1, bytes(range(32)))
FILE = FileRef(
    id="f1", blob_id="b1", name="plan.pdf", mime="application/pdf", size=9, key=b"k" * 32, iv=b"i" * 12, width=3
)


def content(text: str, *attachments: PublicAttachment) -> Any:
    return open_plaintext(text.encode(), attachments).content


@pytest.mark.parametrize("text", ["", "hi", "a\0b", "\u2028", "{", "{not json", "[1]", '{"a":1}', "é😀", DEEP[:50_000]])
def test_plain_text_goes_as_it_is(text: str) -> None:
    assert encode_text(text) == text
    assert open_plaintext(text.encode()).content == Text(text)


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(example_widget("confirm")),
        '{"type":"widget.response","id":"a","ref":"b","v":1}',
        '{"kind":"chat.message","text":"other"}',
        '{"type":"pacerelle.delivery","v":1}',
        '{"type":"whatever"}',
    ],
)
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert encode_text(text) != text
    assert content(encode_text(text)) == Text(text)


def test_lone_surrogates_are_replaced_and_pairs_joined() -> None:
    assert encode_text("a\ud83d\ude00b\ud800") == "a\U0001f600b\ufffd"
    assert content('{"kind":"chat.message","text":"cut \\ud83d"}') == Text("cut \ufffd")


@given(clean_text)
def test_any_text_comes_back(text: str) -> None:
    assert content(encode_text(text)) == Text(text)
    assert content(encode_text(text, [FILE])).text == text


def test_files_keep_their_names_from_the_relay() -> None:
    public = FILE.public()
    assert (public.name, public.mime, public.size) == ("attachment", "application/octet-stream", 9)
    body = encode_text("see", [FILE])
    assert content(body, public) == Text("see", (FILE,))


def test_encrypted_metadata_wins_and_every_file_appears() -> None:
    listed = PublicAttachment("f1", "liar.exe", "x/liar", 1, "b-other", "abcd", "t1")
    only_public = PublicAttachment("f2", "old.txt", "text/plain", 4, "b2", "ef", None)
    inside = FileRef("f3", "b3", "hidden.txt", "text/plain", 5, b"k" * 32, b"i" * 12)
    got = content(encode_text("", [FILE, inside]), listed, only_public)
    first, second, third = got.files
    assert (first.name, first.mime, first.size, first.blob_id) == ("plan.pdf", "application/pdf", 9, "b1")
    assert first.sha256 is None  # it was the digest of another blob
    assert first.thumbnail_blob_id == "t1"
    assert (second.name, second.key, second.sha256) == ("old.txt", None, "ef")
    assert third == inside


@pytest.mark.parametrize(
    "change",
    [{"key_b64": "AAAA"}, {"iv_b64": "!"}, {"key_b64": None}, {"iv_b64": 3}],
)
def test_a_file_with_an_unusable_key_is_shown_without_one(change: dict[str, Any]) -> None:
    body = json.loads(encode_text("", [FILE]))
    body["attachments"][0] |= change
    (file,) = content(json.dumps(body)).files
    assert file.name == "plan.pdf"
    assert file.key is None
    assert file.iv is None


def test_bad_metadata_falls_back_to_the_envelope() -> None:
    body = json.loads(encode_text("", [FILE]))
    body["attachments"][0] |= {"name": "", "mime": "x" * 513, "size": -1, "width": 1.5, "blob_id": 7}
    public = PublicAttachment("f1", "name", "mime", 4, "b9")
    (file,) = content(json.dumps(body), public).files
    assert (file.name, file.mime, file.size, file.width, file.blob_id) == ("name", "mime", 4, None, "b9")


def test_files_that_cannot_be_sent() -> None:
    for file in (FileRef("f", "b", "n", "m", 1), FileRef("f", "b", "", "m", 1, b"k" * 32, b"i" * 12)):
        with pytest.raises(LocalProtocolError):
            encode_text("", [file])


def test_nothing_secret_in_reprs() -> None:
    shown = repr([FILE, Text("secret text"), KEY, open_plaintext(b"secret text"), WidgetResponse("i", "r", "secret")])
    assert "kkkk" not in shown
    assert "iiii" not in shown
    assert "secret" not in shown
    assert "\\x01" not in shown


@pytest.mark.parametrize("kind", KINDS)
def test_widgets_come_back(kind: str) -> None:
    widget = parse_widget(example_widget(kind) | {"expires_at": "2030-01-01T00:00:00Z"})
    assert content(encode_widget(widget)) == widget


def test_a_malformed_widget_is_text() -> None:
    text = json.dumps(example_widget("confirm") | {"v": 2})
    assert content(text) == Text(text)


@pytest.mark.parametrize("value", [True, None, "x", 3, ["a"], {"a": [1.5]}])
def test_widget_answers_come_back(value: Any) -> None:
    answer = WidgetResponse("r1", "w1", value)
    assert content(encode_widget_response(answer)) == answer


def test_cancelled_and_updates_come_back() -> None:
    assert content(encode_widget_response(WidgetResponse("r", "w", 5, True))) == WidgetResponse("r", "w", None, True)
    update = WidgetUpdate("u1", "w1", {"spec": {"value": 65}, "expires_at": "2030-01-01T00:00:00Z"})
    assert content(encode_widget_update(update)) == update
    with pytest.raises(LocalProtocolError):
        encode_widget_response(WidgetResponse("r", "w", float("inf")))
    with pytest.raises(LocalProtocolError):
        encode_widget_update(WidgetUpdate("", "w", {}))


@pytest.mark.parametrize(
    "text",
    ['{"type":"widget.response","id":"a"}', '{"type":"widget.update","id":"a","ref":"b"}', '{"type":"widget.x"}'],
)
def test_half_a_widget_message_is_text(text: str) -> None:
    assert content(text) == Text(text)


def test_delivery_is_unwrapped_once() -> None:
    opened = open_plaintext(encode_delivery(encode_text("see", [FILE]), KEY).encode(), [FILE.public()])
    assert opened.history_key == KEY
    assert opened.content == Text("see", (FILE,))
    assert opened.body == encode_text("see", [FILE])


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"v": True},
        {"body": None},
        {"history_key": None},
        {"history_key": {"key_id": "k", "epoch": 2, "raw_key_b64": pack_b64(bytes(32))}},
        {"history_key": {"key_id": "k:1", "epoch": 1, "raw_key_b64": pack_b64(bytes(32))}},
        {"history_key": {"key_id": "k", "epoch": True, "raw_key_b64": pack_b64(bytes(32))}},
        {"history_key": {"key_id": "k", "epoch": 1, "raw_key_b64": pack_b64(bytes(31))}},
        {"body": encode_delivery("hi", KEY)},
    ],
)
def test_bad_deliveries_are_refused(change: dict[str, Any]) -> None:
    delivery = json.loads(encode_delivery("hi", KEY)) | change
    with pytest.raises(PayloadError):
        open_plaintext(json.dumps(delivery).encode())


@pytest.mark.parametrize("kind", ["pacerelle.group.sender_key", "pacerelle.group.message", "pacerelle.new"])
def test_the_protocols_own_messages_are_never_shown_as_text(kind: str) -> None:
    with pytest.raises(PayloadError):
        open_plaintext(json.dumps({"type": kind, "raw_key_b64": "secret"}).encode())


@pytest.mark.parametrize("text", ["a", "a===", "YQ==\n", "Y Q==", "é", "\ud800", "YQ"])
def test_base64_is_strict(text: str) -> None:
    with pytest.raises(PayloadError):
        unpack_b64(text)


@given(st.binary())
def test_base64_comes_back(data: bytes) -> None:
    assert unpack_b64(pack_b64(data)) == data


@pytest.mark.parametrize("data", HOSTILE_BYTES, ids=range(len(HOSTILE_BYTES)))
def test_hostile_plaintext(data: bytes) -> None:
    try:
        open_plaintext(data)
    except PayloadError as error:
        assert error.reason == "not_utf8"  # noqa: PT017


_secret = nearly({"id": ids, "blob_id": ids, "key_b64": b64, "iv_b64": b64, "name": any_text, "size": st.integers()})
_payloads = nearly(
    {
        "type": st.sampled_from(
            ["pacerelle.delivery", "widget.standard", "widget.response", "widget.update", "pacerelle.group.sender_key"]
        ),
        "kind": st.sampled_from(["chat.message", *KINDS]),
        "v": st.just(1),
        "id": ids,
        "ref": ids,
        "text": any_text,
        "body": any_text,
        "patch": st.dictionaries(any_text, any_json, max_size=2),
        "spec": nearly({"title": any_text, "options": any_json}),
        "attachments": st.lists(_secret, max_size=3),
        "history_key": nearly({"key_id": ids, "epoch": st.just(1), "raw_key_b64": b64}),
    }
)


@given(_payloads, st.lists(st.builds(PublicAttachment, ids, ids, ids, st.integers(0, 9), ids), max_size=2))
def test_any_payload_is_read_or_refused(payload: dict[str, Any], attachments: list[PublicAttachment]) -> None:
    try:
        opened = open_plaintext(written(payload).encode(), attachments)
    except PayloadError:
        return
    if isinstance(opened.content, Text):
        opened.content.text.encode()
        assert len(opened.content.files) >= len({item.id for item in attachments})
        encode_text(opened.content.text)
    elif isinstance(opened.content, WidgetResponse):
        json.dumps(opened.content.value, allow_nan=False).encode()
    elif isinstance(opened.content, Widget):
        assert content(encode_widget(opened.content)) == opened.content


@given(st.binary())
def test_any_bytes(data: bytes) -> None:
    try:
        open_plaintext(data)
    except PayloadError as error:
        assert error.reason == "not_utf8"  # noqa: PT017
