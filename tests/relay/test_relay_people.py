"""The human side of docs/relay.md: accounts, devices, conversations, sending, receiving, and who may do what."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import aiohttp
import pytest
from relay_people import Agent, Caller, Device, b64, text_message

from pacerelle_relay.limits import Limits


@pytest.fixture
async def bob(ann: Device) -> Device:
    """Somebody else on the same relay."""
    return await Device.first(ann.http, ann.relay_url, "Bob")


async def test_accounts_and_devices(ann: Device) -> None:
    code = await ann.ok("POST", "/devices/codes", {})
    assert code["expires_in"] == 600
    anybody = Caller(ann.http, ann.url)
    body = {"link_code": f" {code['link_code'].lower()} ", "device_name": "Tablet"}
    tablet = Device(ann.http, ann.relay_url, await anybody.ok("POST", "/devices/link", body))
    await anybody.refused(404, "link_code", "POST", "/devices/link", body)  # used up

    listed = (await ann.ok("GET", "/devices"))["devices"]
    assert [(d["device_id"], d["name"], d["current"]) for d in listed] == [
        (ann.id, None, True),
        (tablet.id, "Tablet", False),
    ]
    async with tablet.connected() as wire:
        await wire.stored()
        await ann.ok("DELETE", f"/devices/{tablet.id}")
        assert await wire.closed() == 4001
    await tablet.refused(401, "token", "GET", "/devices")
    await ann.refused(404, "not_found", "DELETE", f"/devices/{tablet.id}")
    await ann.refused(409, "last_device", "DELETE", f"/devices/{ann.id}")


async def test_only_the_newest_link_code_works_and_not_for_ever(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(link_code_s=0))
    ann = await Device.first(http, relay.url)
    expired = (await ann.ok("POST", "/devices/codes", {}))["link_code"]
    await Caller(http, ann.url).refused(404, "link_code", "POST", "/devices/link", {"link_code": expired})


async def test_a_newer_link_code_replaces_the_older(ann: Device) -> None:
    older, newer = [(await ann.ok("POST", "/devices/codes", {}))["link_code"] for _ in range(2)]
    anybody = Caller(ann.http, ann.url)
    await anybody.refused(404, "link_code", "POST", "/devices/link", {"link_code": older})
    await anybody.ok("POST", "/devices/link", {"link_code": newer})


async def test_an_account_needs_the_invite(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(open_failures_per_minute=5), invite="open sesame")
    anybody = Caller(http, relay.url + "/human/v1")
    for invite in (None, "", "open", "\ud800"):
        await anybody.refused(403, "invite", "POST", "/accounts", {"name": "Ann", "invite": invite})
    await Device.first(http, relay.url, invite="open sesame")
    await anybody.refused(404, "link_code", "POST", "/devices/link", {"link_code": "AAAA-BBBB-CCCC-DDDD"})
    # Whoever guesses is slowed down, with the right code too.
    status, answer = await anybody.call("POST", "/accounts", {"name": "Ann", "invite": "open sesame"})
    assert (status, answer["error"]["code"]) == (429, "rate")


@pytest.mark.parametrize("name", [None, "", "  ", 5, "x" * 241, "two\nlines", "nul\0", "\ud800", "\u202e"])
async def test_names_are_one_visible_line(ann: Device, name: Any) -> None:
    await Caller(ann.http, ann.url).refused(400, "malformed", "POST", "/accounts", {"name": name})
    await ann.refused(400, "malformed", "POST", "/agents", {"name": name})


async def test_conversations(ann: Device, agent: Agent) -> None:
    other = await ann.new_agent("Other")
    direct = await ann.ok("POST", "/conversations", {"kind": "direct", "agent_ids": [agent.id]})
    group = await ann.ok("POST", "/conversations", {"kind": "group", "agent_ids": [other.id, agent.id], "title": "T"})
    found = {c["conversation_id"]: c for c in (await ann.ok("GET", "/conversations"))["conversations"]}
    assert set(found) == {
        agent.conversation_id,
        other.conversation_id,
        direct["conversation_id"],
        group["conversation_id"],
    }
    assert found[group["conversation_id"]] == {
        "conversation_id": group["conversation_id"],
        "kind": "group",
        "title": "T",
        "agent_ids": sorted([agent.id, other.id]),
        "user_ids": [ann.user_id],
    }
    for body in (
        {"kind": "direct", "agent_ids": [agent.id, other.id]},
        {"kind": "direct", "agent_ids": []},
        {"kind": "group", "agent_ids": [agent.id, agent.id]},
        {"kind": "group", "agent_ids": agent.id},
        {"kind": "choir", "agent_ids": [agent.id]},
        {"agent_ids": [agent.id]},
    ):
        await ann.refused(400, "malformed", "POST", "/conversations", body)
    await ann.refused(404, "not_found", "POST", "/conversations", {"kind": "group", "agent_ids": ["none"]})


async def test_sending_twice_and_with_a_taken_id(ann: Device, agent: Agent) -> None:
    message = text_message(agent.conversation_id, agent.id)
    assert await ann.post(message) == {"id": message["id"], "duplicate": False}
    assert await ann.post(dict(reversed(message.items()))) == {"id": message["id"], "duplicate": True}
    await ann.refused(409, "duplicate_id", "POST", "/messages", message | {"payload_b64": b64(b"other")})
    tablet = await ann.link_another()
    await tablet.refused(409, "duplicate_id", "POST", "/messages", message)
    async with agent.connected() as wire:
        frame = await wire.receive()
        await wire.ack_read(frame)
        await wire.stored()
        assert (await ann.post(message))["duplicate"]
        assert await ann.waiting_for(agent, wire) == []


@pytest.mark.parametrize(
    "change",
    [
        {"id": None},
        {"id": 5},
        {"id": ""},
        {"to": None},
        {"to": "a:b"},
        {"payload_b64": "?"},
        {"payload_b64": None},
        {"encrypted": None},
        {"encrypted": 1},
        {"attachments": 1},
        {"attachments": [{}] * 65},
        {"history_record": "x"},
        {"reply_to_message_id": {}},
        {"device_less": "yes"},
        {"to_device_id": "d"},
    ],
    ids=str,
)
async def test_a_bad_message_is_refused_by_field(ann: Device, agent: Agent, change: dict[str, Any]) -> None:
    message = text_message(agent.conversation_id, agent.id) | change
    assert await ann.refused(400, "malformed", "POST", "/messages", message)
    async with agent.connected() as wire:
        assert await ann.waiting_for(agent, wire) == []


async def test_a_message_goes_to_members_only(ann: Device, bob: Device, agent: Agent) -> None:
    other = await ann.new_agent()
    await ann.refused(404, "recipient", "POST", "/messages", text_message(agent.conversation_id, other.id))
    await ann.refused(404, "recipient", "POST", "/messages", text_message(agent.conversation_id, ann.user_id))
    await ann.refused(404, "conversation", "POST", "/messages", text_message("nowhere", agent.id))
    to_group = text_message(agent.conversation_id, f"group:{agent.conversation_id}")
    await ann.refused(400, "malformed", "POST", "/messages", to_group)
    await bob.refused(403, "forbidden", "POST", "/messages", text_message(agent.conversation_id, agent.id))
    group = await ann.new_group(agent, other)
    await ann.post(text_message(group, other.id, id="to one of the group".replace(" ", "-")))
    async with other.connected() as wire:
        assert (await wire.receive())["id"] == "to-one-of-the-group"
    async with agent.connected() as wire:
        assert await ann.waiting_for(agent, wire) == []


async def test_nothing_of_one_account_is_within_reach_of_another(ann: Device, bob: Device, agent: Agent) -> None:
    bobs_agent = await bob.new_agent()
    blob = await ann.ok("POST", "/blobs", data=b"ciphertext")
    for method, path, body in (
        ("GET", f"/agents/{agent.id}/prekey-bundle", None),
        ("POST", f"/agents/{agent.id}/token", {}),
        ("DELETE", f"/agents/{agent.id}", None),
        ("DELETE", f"/devices/{ann.id}", None),
        ("POST", "/conversations", {"kind": "direct", "agent_ids": [agent.id]}),
        ("POST", "/group-keys", {"conversation_id": agent.conversation_id, "envelopes": []}),
    ):
        await bob.refused(403, "forbidden", method, path, body)
    assert (await bob.fetch(f"/blobs/{blob['id']}"))[0] == 404
    await bobs_agent.refused(404, "blob", "GET", f"/agent/blobs/{blob['id']}")
    assert [a["agent_id"] for a in (await bob.ok("GET", "/agents"))["agents"]] == [bobs_agent.id]
    # An agent speaks only where it is a member, whatever it claims.
    async with bobs_agent.connected() as wire, ann.connected() as device:
        await wire.say(text_message(agent.conversation_id, ann.user_id))
        await wire.say(text_message(bobs_agent.conversation_id, ann.user_id))
        await wire.stored()
        assert await ann.waiting(device) == []


async def test_every_call_but_two_needs_a_token(ann: Device, agent: Agent) -> None:
    for token in (None, "wrong", agent.token):
        stranger = Caller(ann.http, ann.url, token)
        for method, path in (
            ("POST", "/devices/codes"),
            ("GET", "/devices"),
            ("DELETE", "/devices/x"),
            ("PUT", "/devices/self/identity"),
            ("POST", "/agents"),
            ("GET", "/agents"),
            ("POST", "/agents/x/token"),
            ("DELETE", "/agents/x"),
            ("GET", "/agents/x/prekey-bundle"),
            ("POST", "/conversations"),
            ("GET", "/conversations"),
            ("POST", "/messages"),
            ("POST", "/group-keys"),
            ("POST", "/blobs"),
            ("GET", "/blobs/x"),
            ("GET", "/ws"),
            ("GET", "/ws?token=wrong"),
        ):
            await stranger.refused(401, "token", method, path)


async def test_unknown_paths_and_methods_get_json_errors_too(ann: Device) -> None:
    await ann.refused(404, "http", "GET", "/nothing")
    await ann.refused(405, "http", "DELETE", "/messages")
    await ann.refused(400, "http", "GET", "/ws")  # no upgrade


async def test_a_device_gets_everything_again_until_it_acknowledges(ann: Device, agent: Agent) -> None:
    async with agent.connected() as wire:
        await ann.post(text_message(agent.conversation_id, agent.id, id="question"))
        question = await wire.receive()
        await wire.say(text_message(agent.conversation_id, ann.user_id, id="answer"))
        await wire.ack_read(question)
        await wire.stored()
    async with ann.connected() as device:
        first = await device.receive_all(2)
        assert first[0]["id"] == "answer"
        read = {"type": "READ", "message_id": "question", "conversation_id": agent.conversation_id}
        assert first[1] == {**read, "agent_id": agent.id, "seq": first[1]["seq"]}
        assert first[0]["seq"] < first[1]["seq"]
    async with ann.connected() as device:
        assert await device.receive_all(2) == first
        for bad in ("{", '{"type": "ACK"}', '{"type": "ACK", "seq": -1}', '{"type": "ACK", "seq": 1e400}', "5"):
            await device.ws.send_str(bad)
        await device.ack(first[0])
        await device.stored()
    async with ann.connected() as device:
        assert await device.receive() == first[1]
        await device.ack(first[1])
        await device.stored()
    async with ann.connected() as device:
        assert await ann.waiting(device) == []


async def test_every_device_learns_what_was_read(ann: Device, agent: Agent) -> None:
    tablet = await ann.link_another()
    await ann.post(text_message(agent.conversation_id, agent.id, id="question"))
    async with agent.connected() as wire, tablet.connected() as device:
        await wire.ack_read(await wire.receive())
        assert (await device.receive())["message_id"] == "question"


async def test_the_newest_connection_of_a_device_wins(ann: Device) -> None:
    async with ann.connected() as older:
        await older.stored()
        async with ann.connected() as newer:
            assert await older.closed() == 4000
            assert await ann.waiting(newer) == []


async def test_an_identity_is_told_to_agents_when_it_changes(ann: Device, agent: Agent) -> None:
    key, changed = (b64(b"\x05" + os.urandom(32)) for _ in range(2))
    tablet = await ann.link_another()
    async with agent.connected() as wire:
        for device in (ann, tablet, ann):
            assert await device.ok("PUT", "/devices/self/identity", {"identity_key": key}) == {"changed": False}
        assert await ann.waiting_for(agent, wire) == []
        assert await tablet.ok("PUT", "/devices/self/identity", {"identity_key": changed}) == {"changed": True}
        assert await wire.receive() == {"type": "IDENTITY_CHANGED", "user_id": ann.user_id}
        # Answering the relay's ping, which follows the notice, ends the notice. Messages end by ACK_READ alone.
        await ann.post(text_message(agent.conversation_id, agent.id, id="m"))
        assert (await wire.receive())["id"] == "m"
        await wire.ws.pong(b"9" * 100)
        await wire.stored()
    async with agent.connected() as wire:
        assert [frame.get("id") for frame in await ann.waiting_for(agent, wire)] == ["m"]
    listed = {d["device_id"]: d["identity_key"] for d in (await ann.ok("GET", "/devices"))["devices"]}
    assert listed == {ann.id: key, tablet.id: changed}
    await ann.refused(400, "malformed", "PUT", "/devices/self/identity", {"identity_key": "short"})


async def test_devices_are_told_when_an_agent_publishes_keys(ann: Device, agent: Agent) -> None:
    async with ann.connected() as device:
        await device.stored()
        await agent.ok("POST", "/agent/one-time-prekeys", {"one_time_prekeys": []})
        assert await device.receive() == {"type": "PREKEYS_CHANGED", "agent_id": agent.id}


async def test_many_devices_and_agents_at_once(ann: Device) -> None:
    agents = [await ann.new_agent(f"A{i}") for i in range(4)]
    devices = [ann, *[await ann.link_another() for _ in range(3)]]

    async def echo(agent: Agent, count: int) -> None:
        async with agent.connected() as wire:
            for _ in range(count):
                question = await wire.receive()
                more = {"reply_to_message_id": question["id"], "to_device_id": question["from_device_id"]}
                await wire.say(text_message(agent.conversation_id, ann.user_id, **more))
                await wire.ack_read(question)
            await wire.stored()

    async def ask(device: Device) -> None:
        sent: dict[str, list[str]] = {agent.id: [] for agent in agents}
        answered: dict[str, list[str]] = {agent.id: [] for agent in agents}
        async with device.connected() as wire:
            for _ in range(10):
                for agent in agents:
                    message = text_message(agent.conversation_id, agent.id)
                    sent[agent.id].append(message["id"])
                    await device.post(message)
            while answered != sent:
                frame = await wire.receive()
                await wire.ack(frame)
                if frame["type"] == "MSG":
                    answered[frame["from"]].append(frame["reply_to_message_id"])

    await asyncio.gather(*(echo(agent, 40) for agent in agents), *(ask(device) for device in devices))
