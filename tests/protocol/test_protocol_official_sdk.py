"""What we write the official SDK reads, and the reverse: against its own functions, on real Signal."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import agent_gateway_sdk as sdk
import pytest
from pacerelle.history import ConversationHistoryContext, open_conversation_history, seal_conversation_history

from pacerelle_protocol.envelope import IncomingMessage, ack_read_frame, parse_frame
from pacerelle_protocol.files import open_file, seal_file
from pacerelle_protocol.groups import (
    GroupKey,
    encode_sender_key,
    new_group_key,
    open_group,
    parse_group_key_envelopes,
    parse_sender_key,
    seal_group,
)
from pacerelle_protocol.history import HistoryKey, open_record, seal_record
from pacerelle_protocol.payload import (
    FileRef,
    Text,
    WidgetResponse,
    WidgetUpdate,
    encode_delivery,
    encode_text,
    encode_widget_response,
    encode_widget_update,
    open_plaintext,
    pack_b64,
    unpack_b64,
)
from pacerelle_protocol.signal import PreKeyBundle, SignalStore, agent_name, human_name, safety_code
from pacerelle_protocol.widgets import KINDS, Widget

KEY = HistoryKey("k1", 1, bytes(range(32)))


class OfficialAgent(sdk.AgentGatewayClient):
    """The official client; its HTTP calls and its socket end here instead of at a relay."""

    def __init__(self, root: Path) -> None:
        super().__init__(token="t", agent_id="a1", e2ee=True, store_root=root)
        self.requests: dict[str, Any] = {}
        self.group_keys: list[dict[str, Any]] = []
        self.blobs: dict[str, bytes] = {}
        self.sent: list[dict[str, Any]] = []
        self._ws = self

    def _json_request(
        self, method: str, path: str, body: dict[str, Any], *, expect_body: bool = True
    ) -> dict[str, Any]:
        self.requests[path] = json.loads(json.dumps(body))
        return {}

    def _get_json(self, path: str) -> Any:
        return self.group_keys

    def _raw_request(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        self.blobs["b1"] = body
        return {"id": "b1"}

    def _raw_get(self, path: str) -> bytes:
        return self.blobs["b1"]

    async def send(self, frame: str) -> None:
        """As the socket has it."""
        self.sent.append(json.loads(frame))

    def bundle(self) -> PreKeyBundle:
        """As a relay hands it out."""
        one_time = self.requests["/agent/one-time-prekeys"]["one_time_prekeys"].pop(0)
        return PreKeyBundle.from_json(self.requests["/agent/prekey-bundle"] | {"one_time_prekey": one_time})


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[OfficialAgent]:
    agent = OfficialAgent(tmp_path)
    agent.publish_prekey_bundle()
    yield agent
    agent.close()


@pytest.fixture
def phone(agent: OfficialAgent) -> SignalStore:
    phone = SignalStore.create(human_name("u1", "c1", "d1"))
    phone.process_bundle(agent_name("a1"), agent.bundle())
    return phone


def frame(payload_b64: str, **more: Any) -> dict[str, Any]:
    return {
        "type": "MSG",
        "id": "m1",
        "from": "u1",
        "from_device_id": "d1",
        "conversation_id": "c1",
        "payload_b64": payload_b64,
        "encrypted": True,
    } | more


def test_messages_both_ways_with_history(agent: OfficialAgent, phone: SignalStore) -> None:
    got: list[sdk.AgentMessage] = []

    async def handle(message: sdk.AgentMessage, client: sdk.AgentGatewayClient) -> None:
        got.append(message)
        await client.reply(message, "réponse")

    agent.on_message(handle)
    body = encode_delivery(encode_text("demande"), KEY)
    payload = pack_b64(phone.encrypt("agent:a1", body.encode()))
    asyncio.run(agent._handle_raw(json.dumps(frame(payload))))
    assert [message.text for message in got] == ["demande"]
    reply, ack = agent.sent
    assert ack == json.loads(ack_read_frame(to="u1", message_id="m1", conversation_id="c1"))
    read = parse_frame(json.dumps(reply | {"from": "a1"}))
    assert isinstance(read, IncomingMessage)
    assert read.encrypted
    assert read.reply_to_message_id == "m1"
    opened = open_plaintext(phone.decrypt("agent:a1", unpack_b64(read.payload_b64)))
    assert opened.content == Text("réponse")
    context: dict[str, Any] = {"conversation_id": "c1", "sender_id": "a1", "sender_type": "agent"}
    assert open_record(read.history_record, KEY, message_id=read.id, **context) == opened.body


def test_the_safety_code_is_the_same(agent: OfficialAgent, phone: SignalStore) -> None:
    known = phone.known_identity("agent:a1")
    assert known is not None
    assert safety_code(known) == agent.get_verification_code()


def test_our_agent_and_the_runtime_as_it_is() -> None:
    agent = SignalStore.create("agent:a1")
    prekeys = agent.generate_prekeys(1)
    (number, key) = prekeys.one_time[0]
    published = prekeys.bundle.to_json()
    published.pop("protocol_features")
    phone = sdk._SignalStore("human:u1:c1")
    phone.process_prekey_bundle(
        "agent:a1",
        sdk.SignalPreKeyBundle(**published, prekey_id=number, prekey_public=base64.b64encode(key).decode()),
    )
    assert agent.decrypt("human:u1:c1", phone.encrypt("agent:a1", b"hi")) == b"hi"
    assert phone.decrypt("agent:a1", agent.encrypt("human:u1:c1", b"yo")) == b"yo"


@pytest.mark.parametrize("text", ["", "hi", "{", '{"kind":"chat.message","text":"x"}', '{"type":"widget.update"}'])
def test_texts(text: str) -> None:
    assert sdk._parse_payload_parts(encode_text(text))["text"] == text


def test_files_both_ways(agent: OfficialAgent) -> None:
    sealed = seal_file(b"data")
    ours = FileRef("f1", "b1", "plan.pdf", "application/pdf", 4, sealed.key, sealed.iv, sealed.sha256, 3, 4, 5)
    parts = sdk._parse_payload_parts(encode_text("see", [ours]))
    assert parts["text"] == "see"
    public = dataclasses.asdict(ours.public())
    (theirs,) = sdk._merge_attachments([public], parts["secrets"])
    assert (theirs.name, theirs.mime, theirs.size, theirs.width, theirs.duration_ms) == (
        "plan.pdf",
        "application/pdf",
        4,
        3,
        5,
    )
    agent.blobs["b1"] = sealed.ciphertext
    assert asyncio.run(agent.download_attachment(theirs)) == b"data"

    uploaded = agent.upload_file(name="report.txt", data=b"report", mime="text/plain")
    body = sdk._encode_chat_payload("here", [uploaded])
    read = parse_frame(json.dumps(frame("", attachments=[sdk._attachment_public(uploaded)])))
    assert isinstance(read, IncomingMessage)
    content = open_plaintext(body.encode(), read.attachments).content
    assert isinstance(content, Text)
    (file,) = content.files
    assert (content.text, file.name, file.mime, file.size) == ("here", "report.txt", "text/plain", 6)
    assert file.key is not None
    assert file.iv is not None
    assert open_file(agent.blobs["b1"], key=file.key, iv=file.iv, sha256=file.sha256, size=file.size) == b"report"


def test_widget_answers_and_updates() -> None:
    parts = sdk._parse_payload_parts(encode_widget_response(WidgetResponse("r1", "w1", {"a": [1]})))
    assert parts["widget_response"] == sdk.AgentWidgetResponse("r1", "w1", {"a": [1]}, False)
    parts = sdk._parse_payload_parts(encode_widget_response(WidgetResponse("r1", "w1", None, True)))
    assert parts["widget_response"] == sdk.AgentWidgetResponse("r1", "w1", None, True)
    parts = sdk._parse_payload_parts(encode_widget_update(WidgetUpdate("u1", "w1", {"spec": {"value": 1}})))
    assert parts["widget_update"] == sdk.AgentWidgetUpdate("u1", "w1", {"spec": {"value": 1}})


def test_the_widgets_of_the_official_client(agent: OfficialAgent, phone: SignalStore) -> None:
    where: dict[str, Any] = {"conversation_id": "c1", "to": "u1", "expires_at": "2030-01-01T00:00:00Z"}
    fields = [{"name": "email", "label": "Email", "type": "email", "required": True}]

    async def send() -> None:
        await agent.send_confirm_widget(title="T", body="B", danger=True, labels={"yes": "Y", "no": "N"}, **where)
        await agent.send_choice_widget(
            title="T", options=[{"id": "a", "label": "A"}], multi=True, response_mode="collective", **where
        )
        await agent.send_permission_widget(title="T", scopes=["once"], **where)
        await agent.send_form_widget(title="T", fields=fields, submitLabel="Save", **where)
        ref = await agent.send_progress_widget(title="T", value=10, max=100, cancellable=True, **where)
        await agent.send_file_picker_widget(title="T", multiple=True, accept=["image/*"], max_files=5, **where)
        await agent.send_datetime_widget(title="T", mode="datetime", min="2026-05-21T09:00:00", **where)
        await agent.send_widget_update(ref=ref, spec={"value": 65}, conversation_id="c1", to="u1")

    agent._decrypt_from_human("u1", "c1", "d1", pack_b64(phone.encrypt("agent:a1", b"hi")))
    agent._last_devices[sdk._device_cache_key("u1", "c1")] = "d1"
    asyncio.run(send())
    contents = [
        open_plaintext(phone.decrypt("agent:a1", unpack_b64(sent["payload_b64"]))).content for sent in agent.sent
    ]
    widgets = [content for content in contents if isinstance(content, Widget)]
    assert [widget.kind for widget in widgets] == list(KINDS)
    assert {widget.expires_at for widget in widgets} == {"2030-01-01T00:00:00Z"}
    assert widgets[1].response_mode == "collective"
    update = contents[-1]
    assert isinstance(update, WidgetUpdate)
    assert (update.ref, update.patch) == (widgets[4].id, {"spec": {"value": 65}})


def test_history_records_both_ways() -> None:
    context = ConversationHistoryContext("c1", "m1", "u1", "human", "k1", 1)
    where: dict[str, Any] = {"conversation_id": "c1", "message_id": "m1", "sender_id": "u1", "sender_type": "human"}
    theirs = seal_conversation_history("é", pack_b64(KEY.raw), context)
    assert open_record(theirs, KEY, **where) == "é"
    ours: Any = seal_record("é", KEY, **where)
    assert open_conversation_history(ours, pack_b64(KEY.raw), context) == "é"


def test_groups_both_ways(agent: OfficialAgent, phone: SignalStore) -> None:
    key = new_group_key("c1", epoch=2)
    old = GroupKey("c1", "old", 1, bytes(32))
    agent.group_keys = [
        {
            "conversation_id": "c1",
            "key_id": item.key_id,
            "epoch": item.epoch,
            "sender_id": "u1",
            "sender_device_id": "d1",
            "envelope_b64": pack_b64(phone.encrypt("agent:a1", encode_sender_key(item).encode())),
        }
        for item in (old, key)
    ]
    found, errors = parse_group_key_envelopes(agent.group_keys, "c1")
    assert [item.key_id for item in found] == ["old", key.key_id]
    assert errors == []
    sealed = seal_group(b"to all", key)
    assert sdk._parse_group_ciphertext(unpack_b64(sealed).decode()) is not None
    assert agent._decode_incoming(frame(sealed, to="group:c1")) == "to all"
    assert open_group(agent._encrypt_group_message("c1", "answer"), key) == b"answer"
    material = sdk._parse_group_sender_key(encode_sender_key(key))
    assert material is not None
    assert parse_sender_key(json.dumps(material)) == key
