"""The official SDK, unmodified and in a process of its own, against this relay: every case that people meet."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from agent_gateway_sdk import _SignalStore
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pacerelle.history import ConversationHistoryContext, open_conversation_history
from relay_people import ECHO, SKILLED, Agent, Device, Wire, b64, line, sdk_agent, text_message, unb64, until


async def next_message(wire: Wire) -> dict[str, Any]:
    """The next MSG, everything acknowledged."""
    while True:
        frame = await wire.receive()
        if "seq" in frame:
            await wire.ack(frame)
        if frame["type"] == "MSG":
            return frame


async def next_read(wire: Wire) -> dict[str, Any]:
    while (frame := await wire.receive())["type"] != "READ":
        pass
    return frame


async def test_the_minimal_echo_agent_answers(ann: Device, agent: Agent, tmp_path: Path) -> None:
    async with sdk_agent(ECHO, agent, tmp_path), ann.connected() as wire:
        await ann.start_session(agent, agent.conversation_id)
        for text in ("hello", "Grüße 🎉", "x" * 200_000):
            sent = await ann.write(agent, text)
            answer = await next_message(wire)
            assert ann.open(agent, answer) == f"Received: {text}"
            assert answer["reply_to_message_id"] == sent
            assert (answer["from"], answer["to"]) == (agent.id, ann.user_id)
            assert answer["to_device_id"] == ann.id
            read = await next_read(wire)
            assert read["message_id"] == sent
            assert (read["agent_id"], read["conversation_id"]) == (agent.id, agent.conversation_id)
        agents = (await ann.ok("GET", "/agents"))["agents"]
        assert [(a["agent_id"], a["connected"], a["has_prekeys"]) for a in agents] == [(agent.id, True, True)]


async def test_a_widget_and_its_response(ann: Device, agent: Agent, tmp_path: Path) -> None:
    async with sdk_agent(SKILLED, agent, tmp_path), ann.connected() as wire:
        await ann.start_session(agent, agent.conversation_id)
        await ann.write(agent, "ask")
        widget = json.loads(ann.open(agent, await next_message(wire)))
        assert (widget["type"], widget["kind"], widget["spec"]) == ("widget.standard", "confirm", {"title": "Really?"})
        response = {"type": "widget.response", "id": "r1", "ref": widget["id"], "v": 1, "value": True}
        await ann.write(agent, json.dumps(response))
        assert ann.open(agent, await next_message(wire)) == "w1 is True"


async def test_attachments_both_ways(ann: Device, agent: Agent, tmp_path: Path) -> None:
    content = os.urandom(300_000)
    key, iv = AESGCM.generate_key(256), os.urandom(12)
    async with sdk_agent(SKILLED, agent, tmp_path), ann.connected() as wire:
        await ann.start_session(agent, agent.conversation_id)
        blob = await ann.ok("POST", "/blobs", data=AESGCM(key).encrypt(iv, content, None))
        assert blob["size"] == len(content) + 16
        secret = {
            "id": "file-1",
            "blob_id": blob["id"],
            "key_b64": b64(key),
            "iv_b64": b64(iv),
            "name": "plan.bin",
            "mime": "application/pdf",
            "size": len(content),
        }
        public = {
            "id": "file-1",
            "name": "attachment",
            "mime": "application/octet-stream",
            "size": len(content),
            "blob_id": blob["id"],
        }
        body = {"kind": "chat.message", "text": "look", "attachments": [secret]}
        await ann.write(agent, json.dumps(body), attachments=[public])

        answer = await next_message(wire)
        opened = json.loads(ann.open(agent, answer))
        returned = opened["attachments"][0]
        assert (opened["text"], returned["name"]) == ("turned", "back-plan.bin")
        assert answer["attachments"][0]["name"] == "attachment"
        status, ciphertext = await ann.fetch(f"/blobs/{returned['blob_id']}")
        assert status == 200
        decrypted = AESGCM(unb64(returned["key_b64"])).decrypt(unb64(returned["iv_b64"]), ciphertext, None)
        assert decrypted == content[::-1]


async def test_history_v1(ann: Device, agent: Agent, tmp_path: Path) -> None:
    raw_key = os.urandom(32)
    key = {"key_id": "k1", "epoch": 1, "raw_key_b64": b64(raw_key)}
    async with sdk_agent(SKILLED, agent, tmp_path), ann.connected() as wire:
        await ann.start_session(agent, agent.conversation_id)
        delivery = {"type": "pacerelle.delivery", "v": 1, "body": "remember", "history_key": key}
        await ann.write(agent, json.dumps(delivery))
        answer = await next_message(wire)
        assert ann.open(agent, answer) == "Received: remember"
        context = ConversationHistoryContext(answer["conversation_id"], answer["id"], agent.id, "agent", "k1", 1)
        assert open_conversation_history(answer["history_record"], raw_key, context) == "Received: remember"


async def test_two_devices_are_answered_each_by_itself(ann: Device, agent: Agent, tmp_path: Path) -> None:
    tablet = await ann.link_another()
    assert tablet.user_id == ann.user_id
    async with sdk_agent(SKILLED, agent, tmp_path), ann.connected() as wire, tablet.connected() as tablet_wire:
        for device in (ann, tablet):
            await device.start_session(agent, agent.conversation_id)
        for round in range(3):
            await ann.write(agent, f"phone {round}")
            await tablet.write(agent, f"tablet {round}")
            assert ann.open(agent, await next_message(wire)) == f"Received: phone {round}"
            assert tablet.open(agent, await next_message(tablet_wire)) == f"Received: tablet {round}"


async def test_a_client_from_before_devices(ann: Device, agent: Agent, tmp_path: Path) -> None:
    async with sdk_agent(SKILLED, agent, tmp_path), ann.connected() as wire:
        ann._stores[agent.conversation_id] = _SignalStore(f"human:{ann.user_id}:{agent.conversation_id}")
        await ann.start_session(agent, agent.conversation_id)
        await ann.write(agent, "old times", device_less=True)
        answer = await next_message(wire)
        assert ann.open(agent, answer) == "Received: old times"
        assert "to_device_id" not in answer


async def test_a_group(ann: Device, agent: Agent, tmp_path: Path) -> None:
    other = await ann.new_agent("Other")
    tablet = await ann.link_another()
    group = await ann.new_group(agent, other)
    raw_key = os.urandom(32)
    aad = f"pacerelle:group-message:v1:{group}:g1:1".encode()
    key = {"conversation_id": group, "key_id": "g1", "epoch": 1}

    def sealed(text: str) -> str:
        iv = os.urandom(12)
        ciphertext = AESGCM(raw_key).encrypt(iv, text.encode(), aad)
        body = {**key, "iv_b64": b64(iv), "ciphertext_b64": b64(ciphertext)}
        return b64(json.dumps({"type": "pacerelle.group.message", "v": 1, "alg": "AES-256-GCM", **body}).encode())

    def opened(message: dict[str, Any]) -> str:
        body = json.loads(unb64(message["payload_b64"]))
        return AESGCM(raw_key).decrypt(unb64(body["iv_b64"]), unb64(body["ciphertext_b64"]), aad).decode()

    async with (
        sdk_agent(SKILLED, agent, tmp_path),
        other.connected() as other_wire,
        ann.connected() as wire,
        tablet.connected() as tablet_wire,
    ):
        await ann.start_session(agent, group)
        sender_key = {"type": "pacerelle.group.sender_key", "v": 1, "alg": "AES-256-GCM", **key}
        envelope = ann.seal(agent, json.dumps({**sender_key, "raw_key_b64": b64(raw_key)}), group)
        stored = await ann.ok(
            "POST",
            "/group-keys",
            {
                "conversation_id": group,
                "envelopes": [{"recipient_id": agent.id, "key_id": "g1", "epoch": 1, "envelope_b64": envelope}],
            },
        )
        assert stored == {"stored": 1}
        message = text_message(group, f"group:{group}") | {"payload_b64": sealed("all hands"), "encrypted": True}
        await ann.post(message)

        answer = await next_message(wire)
        assert opened(answer) == "Received: all hands"
        assert (answer["from"], answer["to"]) == (agent.id, f"group:{group}")
        # Everybody but the writer has the question, everybody but the answering agent the answer.
        seen_by_other = await other_wire.receive_all(2)
        seen_by_tablet = [await next_message(tablet_wire) for _ in range(2)]
        for seen in (seen_by_other, seen_by_tablet):
            assert [opened(frame) for frame in seen] == ["all hands", "Received: all hands"]
            assert [frame["from"] for frame in seen] == [ann.user_id, agent.id]


async def test_an_agent_killed_before_its_acknowledgement_gets_the_message_again(
    ann: Device, agent: Agent, tmp_path: Path
) -> None:
    async with ann.connected() as wire:
        async with sdk_agent(SKILLED, agent, tmp_path) as process:
            await ann.start_session(agent, agent.conversation_id)
            first = await ann.write(agent, "before")
            assert ann.open(agent, await next_message(wire)) == "Received: before"
            assert (await next_read(wire))["message_id"] == first
            hung = await ann.write(agent, "hang")
            waiting = await ann.write(agent, "after")
            await line(process, "HANGING")
        async with sdk_agent(SKILLED.replace('"hang"', '"never"'), agent, tmp_path):
            answers = [await next_message(wire), await next_message(wire)]
            assert [ann.open(agent, answer) for answer in answers] == ["Received: hang", "Received: after"]
            assert [answer["reply_to_message_id"] for answer in answers] == [hung, waiting]


@pytest.mark.parametrize("connected", [True, False], ids=["at once", "at the next connection"])
async def test_the_agent_hears_of_a_changed_identity(
    ann: Device, agent: Agent, tmp_path: Path, connected: bool
) -> None:
    first, second = (b64(b"\x05" + os.urandom(32)) for _ in range(2))
    assert await ann.ok("PUT", "/devices/self/identity", {"identity_key": first}) == {"changed": False}
    if not connected:
        assert await ann.ok("PUT", "/devices/self/identity", {"identity_key": second}) == {"changed": True}
    async with sdk_agent(SKILLED, agent, tmp_path) as process:
        if connected:

            async def is_connected() -> bool:
                return bool((await ann.ok("GET", "/agents"))["agents"][0]["connected"])

            await until(is_connected, what="the agent connects")
            assert await ann.ok("PUT", "/devices/self/identity", {"identity_key": second}) == {"changed": True}
        assert await line(process, "CHANGED") == f"CHANGED {ann.user_id}"
