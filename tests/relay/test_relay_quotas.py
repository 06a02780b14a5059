"""Limits: what is too much is refused with a reason, and room comes back."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from relay_people import Agent, Caller, Device, b64, text_message, until

from pacerelle_relay.limits import Bucket, Limits


async def test_agents_devices_and_conversations(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(agents=2, devices=2, conversations=3))
    ann = await Device.first(http, relay.url)
    agents = [await ann.new_agent() for _ in range(2)]
    await ann.refused(429, "quota", "POST", "/agents", {"name": "one too many"})
    await ann.ok("DELETE", f"/agents/{agents[0].id}")
    await ann.new_agent()

    await ann.link_another()
    code = (await ann.ok("POST", "/devices/codes", {}))["link_code"]
    await Caller(http, ann.url).refused(429, "quota", "POST", "/devices/link", {"link_code": code})

    await ann.new_group(agents[1])
    body = {"kind": "group", "agent_ids": [agents[1].id]}
    await ann.refused(429, "quota", "POST", "/conversations", body)
    await (await Device.first(http, relay.url)).new_agent()  # others have their own


async def test_messages_waiting_for_an_agent(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(pending_per_mailbox=3))
    ann = await Device.first(http, relay.url)
    agent = await ann.new_agent()
    first = text_message(agent.conversation_id, agent.id)
    await ann.post(first)
    for _ in range(2):
        await ann.post(text_message(agent.conversation_id, agent.id))
    await ann.refused(429, "quota", "POST", "/messages", text_message(agent.conversation_id, agent.id))
    assert (await ann.post(first))["duplicate"]  # a repetition needs no room
    async with agent.connected() as wire:
        await wire.ack_read(await wire.receive())
        await wire.stored()
    await ann.post(text_message(agent.conversation_id, agent.id))


async def test_bytes_waiting_for_an_agent(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(pending_bytes_per_mailbox=10_000))
    ann = await Device.first(http, relay.url)
    agent = await ann.new_agent()
    await ann.post(text_message(agent.conversation_id, agent.id, "x" * 6_000))
    await ann.refused(429, "quota", "POST", "/messages", text_message(agent.conversation_id, agent.id, "x" * 6_000))
    await ann.post(text_message(agent.conversation_id, agent.id, "small"))


async def test_a_device_that_never_reads_costs_the_others_nothing(
    start_relay: Any, http: aiohttp.ClientSession
) -> None:
    relay = await start_relay(Limits(pending_per_mailbox=5))
    ann = await Device.first(http, relay.url)
    lost = await ann.link_another()
    agent = await ann.new_agent()
    async with agent.connected() as wire, ann.connected() as device:
        for i in range(20):
            await wire.say(text_message(agent.conversation_id, ann.user_id, id=f"m{i}"))
            frame = await device.receive()
            assert frame["id"] == f"m{i}"
            await device.ack(frame)
            await device.stored()
        async with lost.connected() as found:
            frames = await found.receive_all(5)
            assert [frame["id"] for frame in frames] == [f"m{i}" for i in range(5)]
            await found.ack(frames[-1])
            await found.stored()
            await wire.say(text_message(agent.conversation_id, ann.user_id, id="again"))
            assert (await found.receive())["id"] == "again"


async def test_sends_per_minute(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(sends_per_minute=6))
    ann = await Device.first(http, relay.url)
    agent = await ann.new_agent()
    tablet = await ann.link_another()
    for i in range(6):
        await (ann, tablet)[i % 2].post(text_message(agent.conversation_id, agent.id))
    body = text_message(agent.conversation_id, agent.id)
    headers = {"Authorization": f"Bearer {ann.token}"}
    async with http.post(f"{ann.url}/messages", json=body, headers=headers) as answer:
        assert (answer.status, (await answer.json())["error"]["code"]) == (429, "rate")
        assert 1 <= int(answer.headers["Retry-After"]) <= 10


def test_a_bucket_fills_with_time() -> None:
    now = [100.0]
    bucket = Bucket(60, lambda: now[0])
    assert [bucket.take() for _ in range(60)] == [0.0] * 60
    assert bucket.take() == pytest.approx(1.0)
    now[0] += 0.25
    assert bucket.wait() == pytest.approx(0.75)
    now[0] += 0.75
    assert bucket.take() == 0.0
    now[0] += 1_000
    assert [bucket.take() for _ in range(60)] == [0.0] * 60
    assert bucket.take() > 0


# Blobs


async def test_blobs_both_ways(ann: Device, agent: Agent) -> None:
    content = bytes(range(256)) * 4_000
    stored = await agent.ok("POST", "/agent/blobs", data=content, headers={"X-Blob-Name": "d%C3%A9mo.bin"})
    assert (stored["name"], stored["size"]) == ("démo.bin", len(content))
    assert await ann.fetch(f"/blobs/{stored['id']}") == (200, content)
    assert await agent.fetch(f"/agent/blobs/{stored['id']}") == (200, content)
    assert await agent.fetch("/agent/blobs/..%2Frelay.db") == (404, (await agent.fetch("/agent/blobs/x"))[1])
    for bad in ("%ff", "x" * 241, "%0a"):
        await agent.refused(400, "malformed", "POST", "/agent/blobs", data=b"x", headers={"X-Blob-Name": bad})
    await agent.refused(400, "malformed", "POST", "/agent/blobs", data=b"")


async def test_blob_sizes(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(blob_bytes=1_000, account_blob_bytes=2_500))
    directory = relay.config.database.parent / "blobs"
    ann = await Device.first(http, relay.url)
    agent = await ann.new_agent()

    async def unannounced() -> Any:
        for _ in range(11):
            yield b"x" * 100

    await ann.refused(413, "too_large", "POST", "/blobs", data=b"x" * 1_001)
    await ann.refused(413, "too_large", "POST", "/blobs", data=unannounced())
    await ann.ok("POST", "/blobs", data=b"x" * 1_000)
    await agent.ok("POST", "/agent/blobs", data=b"x" * 1_000)
    await ann.refused(429, "quota", "POST", "/blobs", data=b"x" * 501)
    await ann.ok("POST", "/blobs", data=b"x" * 500)
    await agent.refused(429, "quota", "POST", "/agent/blobs", data=b"x")
    assert len(list(directory.iterdir())) == 3


async def test_two_uploads_at_once_share_the_room(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(account_blob_bytes=1_500))
    ann = await Device.first(http, relay.url)
    results = await asyncio.gather(*(ann.call("POST", "/blobs", data=b"x" * 1_000) for _ in range(4)))
    assert sorted(status for status, _ in results) == [201, 429, 429, 429]
    assert len(list((relay.config.database.parent / "blobs").iterdir())) == 1


async def test_an_upload_that_breaks_off_leaves_nothing(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay()
    ann = await Device.first(http, relay.url)
    directory = relay.config.database.parent / "blobs"
    host, port = relay.url.removeprefix("http://").split(":")
    _, writer = await asyncio.open_connection(host, int(port))
    head = (
        f"POST /human/v1/blobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {ann.token}\r\nContent-Length: 900\r\n\r\n"
    )
    writer.write(head.encode() + b"x" * 500)
    await writer.drain()

    async def begun() -> bool:
        return bool(list(directory.iterdir()))

    async def gone() -> bool:
        return not await begun()

    await until(begun, what="the upload begins")
    writer.close()
    await writer.wait_closed()
    await until(gone, what="the file is removed")


async def test_group_keys(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(group_keys_per_conversation=2))
    ann = await Device.first(http, relay.url)
    agent = await ann.new_agent()
    group = await ann.new_group(agent)

    def body(*epochs: int) -> dict[str, Any]:
        one = {"recipient_id": agent.id, "key_id": "k", "envelope_b64": b64(b"x")}
        return {"conversation_id": group, "envelopes": [{**one, "epoch": epoch} for epoch in epochs]}

    await ann.ok("POST", "/group-keys", body(1, 2))
    await ann.ok("POST", "/group-keys", body(1, 2))
    await ann.refused(429, "quota", "POST", "/group-keys", body(3))
    assert len(await agent.ok("GET", f"/agent/group-keys?conversation_id={group}")) == 2
    await ann.refused(400, "malformed", "POST", "/group-keys", body(0))
