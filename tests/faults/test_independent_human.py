"""Our daemon, through our relay, with a person whose device is Signal's own library for Node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Host, Stack, until
from tests.faults.node_human import NodeHuman, Unavailable, library

pytestmark = pytest.mark.outside


@pytest.fixture(scope="session")
def signal_library() -> Path:
    try:
        return library()
    except Unavailable as error:
        pytest.skip(str(error))


@pytest.fixture
async def human(signal_library: Path, machine: Stack) -> AsyncIterator[NodeHuman]:
    human = await NodeHuman.start(signal_library)
    try:
        await human.register(machine.relay_url)
        yield human
    finally:
        await human.stop()


@pytest.fixture
async def host(machine: Stack, human: NodeHuman) -> Host:
    host = await machine.host(human.agent)
    await host.connected()
    return host


async def next_request(host: Host) -> dict[str, Any]:
    [message] = (await host.tool("wait_for_messages", timeoutMs=30000, limit=1))["messages"]
    await host.tool("mark_processed", messageId=message["message_id"])
    assert isinstance(message, dict)
    return message


async def quarantined(machine: Stack, message_id: str) -> dict[str, Any]:
    async def found() -> dict[str, Any] | None:
        async with machine.control() as control, control.get("/v1/agents/-/quarantine") as response:
            rows: list[dict[str, Any]] = (await response.json())["quarantine"]
        return next((row for row in rows if row["message_id"] == message_id), None)

    row: dict[str, Any] = await until(found, "the quarantine")
    return row


async def pending(host: Host) -> int:
    status = await host.tool("get_status")
    return int(status["pending_requests"])


@pytest.mark.parametrize("one_time", [True, False])
async def test_messages_both_ways(host: Host, human: NodeHuman, one_time: bool) -> None:
    """With one-time prekeys, and when the relay has none left."""
    await human.session(one_time=one_time)
    for number in range(30):
        asked = await human.send(f"question {number} äß🎈", archived=number < 20)
        request = await next_request(host)
        assert (request["message_id"], request["text"]) == (asked, f"question {number} äß🎈")
        assert (request["from"], request["from_device_id"]) == (human.user_id, human.device_id)
        sent = await host.tool("send_message", text=f"answer {number} ẞ", sourceMessageId=asked)
        reply = await human.open(await human.receive())
        assert reply == {
            "id": sent["message_id"],
            "text": f"answer {number} ẞ",
            "reply_to_message_id": asked,
            "archived": f"answer {number} ẞ",
        }


async def test_first_messages_out_of_order_and_skipped(host: Host, human: NodeHuman) -> None:
    """Until it has heard of the agent, each message of the human's begins the session."""
    await human.session()
    messages = [await human.seal(f"first {number}") for number in range(6)]
    for number in (3, 0, 5, 1):
        await human.post(messages[number])
        assert (await next_request(host))["text"] == f"first {number}"


async def test_messages_out_of_order_skipped_and_late(host: Host, human: NodeHuman) -> None:
    await human.session()
    asked = await human.send("hello")
    await next_request(host)
    await host.tool("send_message", text="hello", sourceMessageId=asked)
    await human.open(await human.receive())

    messages = [await human.seal(f"request {number}") for number in range(40)]
    for number in (39, 0, 20, 1):
        await human.post(messages[number])
        assert (await next_request(host))["text"] == f"request {number}"
    await host.tool("send_message", text="meanwhile", sourceMessageId=messages[1]["id"])
    await human.open(await human.receive())
    later = await human.send("after the ratchet has turned")
    assert (await next_request(host))["message_id"] == later
    await human.post(messages[30])
    assert (await next_request(host))["text"] == "request 30"


async def test_replies_are_opened_in_any_order(host: Host, human: NodeHuman) -> None:
    await human.session()
    asked = await human.send("tell me")
    await next_request(host)
    for number in range(6):
        await host.tool("send_message", text=f"part {number}", sourceMessageId=asked)
    frames = [await human.receive() for _ in range(6)]
    for number in (4, 0, 5, 2):
        assert (await human.open(frames[number]))["text"] == f"part {number}"
    assert await human.send("thanks")
    assert (await next_request(host))["text"] == "thanks"


async def test_duplicates(machine: Stack, host: Host, human: NodeHuman) -> None:
    await human.session()
    message = await human.seal("once")
    assert not await human.post(message)
    assert (await next_request(host))["text"] == "once"
    assert await human.post(message)
    replayed = message | {"id": "replayed"}
    await human.post(replayed)
    await quarantined(machine, "replayed")
    await human.send("and on")
    assert (await next_request(host))["text"] == "and on"
    assert await pending(host) == 0


async def test_a_device_with_other_keys_is_never_accepted(machine: Stack, host: Host, human: NodeHuman) -> None:
    await human.session()
    await human.send("it is me")
    await next_request(host)
    assert (await human.do("rekey"))["changed"]
    await human.session()
    for text in ("it is me, really", "believe me"):
        message_id = await human.send(text)
        row = await quarantined(machine, message_id)
        assert (row["reason"], row["device_id"]) == ("identity_changed", human.device_id)
    assert await pending(host) == 0
    async with machine.control() as control, control.get("/v1/events?cursor=start&limit=500") as response:
        events = (await response.json())["events"]
    assert {e["data"]["peer_id"] for e in events if e["type"] == "identity.changed"} == {human.user_id}
