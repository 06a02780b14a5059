"""The agent side: HTTP calls with good and bad bodies, the WebSocket, redelivery, routing."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from typing import Any

import aiohttp
import pytest
from relay_people import PATIENCE, Agent, Caller, Device, b64, text_message, until

from pacerelle_relay import accounts, agents
from pacerelle_relay.hub import Hub, Receiver
from pacerelle_relay.limits import Limits
from pacerelle_relay.server import Relay


def bundle(**changes: Any) -> dict[str, Any]:
    """A bundle of the right shape; the relay does not check signatures."""
    return {
        "registration_id": 7,
        "device_id": 1,
        "identity_key": b64(b"\x05" + bytes(32)),
        "signed_prekey_id": 11,
        "signed_prekey_public": b64(b"\x05" + bytes(32)),
        "signed_prekey_signature": b64(bytes(64)),
        "kyber_prekey_id": 11,
        "kyber_prekey_public": b64(b"\x08" + bytes(1568)),
        "kyber_prekey_signature": b64(bytes(64)),
        "protocol_features": ["history-v1"],
        **changes,
    }


def prekeys(*ids: int) -> dict[str, Any]:
    return {"one_time_prekeys": [{"prekey_id": i, "public_key": b64(b"\x05" + i.to_bytes(4) + bytes(28))} for i in ids]}


# Keys


async def test_each_one_time_prekey_is_handed_out_once(ann: Device, agent: Agent) -> None:
    await ann.refused(404, "no_prekeys", "GET", f"/agents/{agent.id}/prekey-bundle")
    assert await agent.ok("PUT", "/agent/prekey-bundle", bundle()) == {"ok": True}
    assert await agent.ok("POST", "/agent/one-time-prekeys", prekeys(*range(1, 21))) == {"ok": True, "count": 20}
    # Repeated, as after a lost answer.
    assert (await agent.ok("POST", "/agent/one-time-prekeys", prekeys(*range(1, 21))))["count"] == 20

    fetched = await asyncio.gather(*(ann.ok("GET", f"/agents/{agent.id}/prekey-bundle") for _ in range(22)))
    ids = [b["one_time_prekey"]["prekey_id"] for b in fetched if b["one_time_prekey"]]
    assert sorted(ids) == list(range(1, 21))
    without = [b for b in fetched if b["one_time_prekey"] is None]
    assert without == [{**bundle(), "one_time_prekey": None}] * 2
    # One that has been handed out does not come back, however often it is published.
    assert (await agent.ok("POST", "/agent/one-time-prekeys", prekeys(1, 2, 99)))["count"] == 1


async def test_prekeys_beyond_the_limit_push_out_the_oldest(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(one_time_prekeys_per_agent=3))
    ann = await Device.first(http, relay.url)
    agent = await ann.new_agent()
    await agent.ok("PUT", "/agent/prekey-bundle", bundle())
    assert (await agent.ok("POST", "/agent/one-time-prekeys", prekeys(1, 2, 3, 4, 5)))["count"] == 3
    got = await ann.ok("GET", f"/agents/{agent.id}/prekey-bundle")
    assert got["one_time_prekey"]["prekey_id"] == 3


async def test_another_identity_discards_what_was_made_for_the_former(ann: Device, agent: Agent) -> None:
    await agent.ok("PUT", "/agent/prekey-bundle", bundle())
    await agent.ok("POST", "/agent/one-time-prekeys", prekeys(1, 2))
    await agent.ok("PUT", "/agent/prekey-bundle", bundle(signed_prekey_id=12))
    assert (await agent.ok("POST", "/agent/one-time-prekeys", prekeys()))["count"] == 2
    async with ann.connected() as wire:
        await agent.ok("PUT", "/agent/prekey-bundle", bundle(identity_key=b64(b"\x05" + os.urandom(32))))
        frames = {frame["type"]: frame for frame in await wire.receive_all(2)}
        assert frames["IDENTITY_CHANGED"]["agent_id"] == agent.id
        assert frames["PREKEYS_CHANGED"] == {"type": "PREKEYS_CHANGED", "agent_id": agent.id}
    assert (await agent.ok("POST", "/agent/one-time-prekeys", prekeys()))["count"] == 0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("registration_id", None),
        ("registration_id", "7"),
        ("registration_id", True),
        ("registration_id", -1),
        ("registration_id", 2**32),
        ("identity_key", "not base64!"),
        ("identity_key", b64(bytes(32))),
        ("signed_prekey_signature", b64(bytes(63))),
        ("kyber_prekey_public", ""),
        ("kyber_prekey_public", b64(bytes(5000))),
        ("protocol_features", "history-v1"),
        ("protocol_features", [1]),
    ],
)
async def test_a_bad_bundle_is_refused_by_field(agent: Agent, field: str, value: Any) -> None:
    message = await agent.refused(400, "malformed", "PUT", "/agent/prekey-bundle", bundle(**{field: value}))
    assert message.startswith(field)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"one_time_prekeys": {}},
        {"one_time_prekeys": [1]},
        {"one_time_prekeys": [{"prekey_id": 1}]},
        {"one_time_prekeys": [{"prekey_id": 1, "public_key": "AAAA"}]},
        prekeys(*range(1001)),
    ],
    ids=lambda body: json.dumps(body)[:40],
)
async def test_bad_prekeys_are_refused(agent: Agent, body: Any) -> None:
    message = await agent.refused(400, "malformed", "POST", "/agent/one-time-prekeys", body)
    assert message.startswith("one_time_prekeys")


@pytest.mark.parametrize("body", [b"{", b"[]", b"\xff", b"[" * 100_000, b'{"a": NaN}', b"null"])
async def test_a_body_that_is_no_json_object_is_refused(agent: Agent, body: bytes) -> None:
    await agent.refused(400, "malformed", "PUT", "/agent/prekey-bundle", data=body)


async def test_a_body_that_is_too_large_is_refused(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(json_bytes=10_000))
    agent = await (await Device.first(http, relay.url)).new_agent()
    await agent.refused(413, "too_large", "PUT", "/agent/prekey-bundle", data=b" " * 10_001)


# Group keys


async def test_group_keys_come_oldest_first_to_their_recipient_only(ann: Device, agent: Agent) -> None:
    other = await ann.new_agent()
    tablet = await ann.link_another()
    group = await ann.new_group(agent, other)

    def envelope(to: Agent, key_id: str, epoch: int, content: bytes) -> dict[str, Any]:
        return {"recipient_id": to.id, "key_id": key_id, "epoch": epoch, "envelope_b64": b64(content)}

    async def store(device: Device, *envelopes: dict[str, Any]) -> Any:
        return await device.ok("POST", "/group-keys", {"conversation_id": group, "envelopes": envelopes})

    assert await store(ann, envelope(agent, "k1", 1, b"one"), envelope(other, "k1", 1, b"other")) == {"stored": 2}
    await store(ann, envelope(agent, "k2", 2, b"two"))
    await store(tablet, envelope(agent, "k1", 1, b"from the tablet"))
    await store(ann, envelope(agent, "k1", 1, b"one again"))
    got = await agent.ok("GET", f"/agent/group-keys?conversation_id={group}")
    assert [(k["key_id"], k["epoch"], k["sender_device_id"], k["envelope_b64"]) for k in got] == [
        ("k2", 2, ann.id, b64(b"two")),
        ("k1", 1, tablet.id, b64(b"from the tablet")),
        ("k1", 1, ann.id, b64(b"one again")),
    ]
    assert {(k["conversation_id"], k["sender_id"]) for k in got} == {(group, ann.user_id)}
    assert len(await other.ok("GET", f"/agent/group-keys?conversation_id={group}")) == 1

    outsider = await ann.new_agent()
    await outsider.refused(403, "forbidden", "GET", f"/agent/group-keys?conversation_id={group}")
    await agent.refused(404, "conversation", "GET", "/agent/group-keys?conversation_id=nowhere")
    await agent.refused(400, "malformed", "GET", "/agent/group-keys")
    await ann.refused(
        404,
        "recipient",
        "POST",
        "/group-keys",
        {"conversation_id": group, "envelopes": [envelope(outsider, "k1", 1, b"x")]},
    )


# The WebSocket


@pytest.mark.parametrize("query", ["", "?token=", "?token=wrong", "?token=%00%ff", "?tocken=x"])
async def test_a_wrong_token_is_refused_at_the_handshake(ann: Device, http: aiohttp.ClientSession, query: str) -> None:
    with pytest.raises(aiohttp.WSServerHandshakeError) as refusal:
        await http.ws_connect(f"{ann.relay_url}/ws/agent{query}")
    assert refusal.value.status == 401


async def test_wrong_tokens_are_refused_in_every_call(ann: Device, agent: Agent) -> None:
    for token in (None, "wrong", ann.token):
        stranger = Caller(ann.http, agent.url, token)
        for method, path in (
            ("PUT", "/agent/prekey-bundle"),
            ("POST", "/agent/one-time-prekeys"),
            ("GET", "/agent/group-keys?conversation_id=x"),
            ("POST", "/agent/blobs"),
            ("GET", "/agent/blobs/x"),
        ):
            await stranger.refused(401, "token", method, path, {} if method != "GET" else None)


async def test_messages_are_delivered_in_order_and_again_until_acknowledged(ann: Device, agent: Agent) -> None:
    sent = [text_message(agent.conversation_id, agent.id, str(i)) for i in range(300)]
    for message in sent[:150]:
        await ann.post(message)
    async with agent.connected() as wire:
        for message in sent[150:]:
            await ann.post(message)
        first = await wire.receive_all(300)
        assert [frame["id"] for frame in first] == [message["id"] for message in sent]
        for frame in first[:100]:
            await wire.ack_read(frame)
        await wire.stored()
    async with agent.connected() as wire:
        assert await wire.receive_all(200) == first[100:]  # the very same frames: the SDK compares them
        for frame in first:  # acknowledging twice does no harm
            await wire.ack_read(frame)
        await wire.stored()
    async with agent.connected() as wire:
        assert await ann.waiting_for(agent, wire) == []


async def test_a_frame_has_the_fields_of_the_protocol(ann: Device, agent: Agent) -> None:
    attachments = [{"id": "1", "name": "attachment", "mime": "application/octet-stream", "size": 3, "blob_id": "b"}]
    record = {"key_id": "k", "epoch": 1, "iv_b64": "AAAA", "ciphertext_b64": "AAAA", "aad_version": 1}
    optional = {"reply_to_message_id": "m0", "attachments": attachments, "history_record": record}
    message = text_message(agent.conversation_id, agent.id, **optional)
    await ann.post(message | {"something_else": 1})
    await ann.post(text_message(agent.conversation_id, agent.id, device_less=True, id="old"))
    async with agent.connected() as wire:
        assert await wire.receive() == {"type": "MSG", "from": ann.user_id, "from_device_id": ann.id, **message}
        old = await wire.receive()
        assert (old["id"], "from_device_id" in old, "device_less" in old) == ("old", False, False)
        answer = text_message(agent.conversation_id, ann.user_id, **optional)
        await wire.say(answer | {"from": "somebody else"})
        async with ann.connected() as device:
            frame = await device.receive()
            assert frame.pop("seq") > 0
            assert frame == {"type": "MSG", "from": agent.id, **answer}


async def test_an_agents_message_goes_to_the_device_named_or_to_all(ann: Device, agent: Agent) -> None:
    tablet = await ann.link_another()
    async with agent.connected() as wire, ann.connected() as phone_wire, tablet.connected() as tablet_wire:
        await wire.say(text_message(agent.conversation_id, ann.user_id, id="1", to_device_id=tablet.id))
        await wire.say(text_message(agent.conversation_id, ann.user_id, id="2"))
        await wire.say(text_message(agent.conversation_id, ann.user_id, id="3", to_device_id=ann.id))
        assert [frame["id"] for frame in await phone_wire.receive_all(2)] == ["2", "3"]
        assert [frame["id"] for frame in await tablet_wire.receive_all(2)] == ["1", "2"]


async def test_a_repeated_message_is_stored_once(ann: Device, agent: Agent) -> None:
    message = text_message(agent.conversation_id, ann.user_id)
    async with agent.connected() as wire, ann.connected() as device:
        await wire.say(message)
        frame = await device.receive()
        await device.ack(frame)
        await device.stored()
        await wire.say(message)
        await wire.say(message | {"payload_b64": b64(b"other content")})
        await wire.say(message | {"id": "the-next"})
        assert (await device.receive())["id"] == "the-next"


async def test_the_newest_connection_wins(ann: Device, agent: Agent) -> None:
    async with agent.connected() as older:
        await older.stored()
        async with agent.connected() as newer:
            assert await older.closed() == 4000
            await ann.post(text_message(agent.conversation_id, agent.id, id="m"))
            assert (await newer.receive())["id"] == "m"


BAD_FRAMES = {
    "no JSON": "{",
    "no object": "[1]",
    "deep": "[" * 50_000,
    "no type": "{}",
    "unknown type": '{"type": "DANCE"}',
    "type of a wrong type": '{"type": [1]}',
    "lone surrogate": '{"type": "MSG", "id": "\\ud800"}',
    "id missing": {"id": None},
    "id with a colon": {"id": "a:b"},
    "id too long": {"id": "x" * 129},
    "payload missing": {"payload_b64": None},
    "payload not base64": {"payload_b64": "%%%%"},
    "payload without padding": {"payload_b64": "QUI"},
    "payload a number": {"payload_b64": 5},
    "encrypted missing": {"encrypted": None},
    "encrypted a string": {"encrypted": "true"},
    "attachments no list": {"attachments": {}},
    "attachments of strings": {"attachments": ["x"]},
    "history no object": {"history_record": []},
    "unknown conversation": {"conversation_id": "nowhere"},
    "unknown person": {"to": "nobody"},
    "unknown device": {"to_device_id": "none"},
    "a group that is none": {"to": "group:CONVERSATION"},
    "another group": {"to": "group:elsewhere"},
    "acknowledgement without id": '{"type": "ACK_READ"}',
    "acknowledgement of nothing": '{"type": "ACK_READ", "message_id": "x", "conversation_id": "y", "to": "z"}',
}


async def test_bad_frames_are_ignored_and_the_connection_goes_on(ann: Device, agent: Agent) -> None:
    async with agent.connected() as wire, ann.connected() as device:
        for name, bad in BAD_FRAMES.items():
            if isinstance(bad, dict):
                message = text_message(agent.conversation_id, ann.user_id) | {"type": "MSG"} | bad
                text = json.dumps({k: v for k, v in message.items() if v is not None})
                text = text.replace("CONVERSATION", agent.conversation_id)
            else:
                text = bad
            await wire.ws.send_str(text)
            await wire.say(text_message(agent.conversation_id, ann.user_id, id="after"))
            await wire.say(text_message(agent.conversation_id, ann.user_id, id=str(uuid.uuid4())))
            frame = await device.receive()
            if frame["id"] == "after":
                frame = await device.receive()
            assert frame["type"] == "MSG", name
        await wire.ws.send_bytes(b"binary")
        await wire.stored()


async def test_a_frame_that_is_too_large_ends_the_connection(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(frame_bytes=10_000))
    ann = await Device.first(http, relay.url)
    agent = await ann.new_agent()
    async with agent.connected() as wire:
        await wire.ws.send_str("x" * 10_001)
        assert await wire.closed() == 1009
    async with agent.connected() as wire:
        await wire.stored()


async def test_a_pong_means_stored(ann: Device, agent: Agent) -> None:
    async with agent.connected() as wire:
        for i in range(1000):
            await wire.say(text_message(agent.conversation_id, ann.user_id, id=f"m{i}"))
        await wire.stored()
    async with ann.connected() as device:
        assert [frame["id"] for frame in await device.receive_all(1000)] == [f"m{i}" for i in range(1000)]


async def test_a_reader_that_stops_reading_blocks_nobody(ann: Device, relay: Relay, agent: Agent) -> None:
    tablet = await ann.link_another()
    async with agent.connected() as wire, ann.connected() as stuck, tablet.connected() as device:
        response: Any = stuck.ws._response
        response.connection.transport.pause_reading()
        for i in range(100):
            await wire.say(text_message(agent.conversation_id, ann.user_id, "x" * 100_000, id=f"m{i}"))
            assert (await device.receive())["id"] == f"m{i}"

        async def blocked() -> bool:
            receiver: Any = relay._services.hub._connected[ann.id]
            return bool(receiver._transport.get_write_buffer_size())

        await until(blocked, what="the relay has written more than the network holds")
        async with ann.connected() as newer:
            assert [frame["id"] for frame in await newer.receive_all(100)] == [f"m{i}" for i in range(100)]
        response.connection.transport.abort()
        async with ann.connected() as stuck:
            response = stuck.ws._response
            response.connection.transport.pause_reading()
            await until(blocked, what="the same again")
            async with asyncio.timeout(PATIENCE):
                await relay.stop()
            response.connection.transport.abort()


async def test_a_new_token_ends_the_old_one_and_its_connection(ann: Device, agent: Agent) -> None:
    async with agent.connected() as wire:
        await wire.stored()
        new = (await ann.ok("POST", f"/agents/{agent.id}/token", {}))["agent_token"]
        assert await wire.closed() == 4001
    await agent.refused(401, "token", "GET", "/agent/group-keys?conversation_id=x")
    agent.token = new
    await ann.post(text_message(agent.conversation_id, agent.id, id="m"))
    async with agent.connected() as wire:
        assert (await wire.receive())["id"] == "m"


async def test_a_token_that_is_revoked_during_the_handshake(
    relay: Relay, ann: Device, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    attach = Hub.attach

    def revoked_just_before(hub: Hub, mailbox: str, receiver: Receiver) -> None:
        relay._database.submit(agents.replace_token, accounts.Device(ann.id, ann.user_id), agent.id)
        attach(hub, mailbox, receiver)

    monkeypatch.setattr(Hub, "attach", revoked_just_before)
    await ann.post(text_message(agent.conversation_id, agent.id))
    async with agent.connected() as wire:
        assert (await wire.ws.receive()).type is aiohttp.WSMsgType.CLOSE
        assert wire.ws.close_code == 4001


async def test_a_removed_agent_is_gone(ann: Device, agent: Agent) -> None:
    other = await ann.new_agent()
    group = await ann.new_group(agent, other)
    await agent.ok("PUT", "/agent/prekey-bundle", bundle())
    await agent.ok("POST", "/agent/one-time-prekeys", prekeys(1))
    await ann.post(text_message(agent.conversation_id, agent.id))
    async with agent.connected() as wire:
        await ann.ok("DELETE", f"/agents/{agent.id}")
        assert await wire.closed() == 4001
    await agent.refused(401, "token", "GET", "/agent/group-keys?conversation_id=x")
    await ann.refused(404, "not_found", "DELETE", f"/agents/{agent.id}")
    await ann.refused(404, "conversation", "POST", "/messages", text_message(agent.conversation_id, agent.id))
    conversations = (await ann.ok("GET", "/conversations"))["conversations"]
    assert [(c["conversation_id"], c["agent_ids"]) for c in conversations] == [
        (other.conversation_id, [other.id]),
        (group, [other.id]),
    ]


async def test_an_agent_disappears_from_the_list_of_connected_ones(ann: Device, agent: Agent) -> None:
    async def connected() -> bool:
        return bool((await ann.ok("GET", "/agents"))["agents"][0]["connected"])

    async def gone() -> bool:
        return not await connected()

    assert await gone()
    async with agent.connected():
        await until(connected, what="connected")
    await until(gone, what="disconnected")
    assert (await ann.ok("GET", "/agents"))["agents"][0]["last_seen"]
