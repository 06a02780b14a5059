"""The cases in which the official SDK works against relay and phone, with our daemon as the agent."""

from __future__ import annotations

import os

from pacerelle_phone.files import File
from tests.e2e.stack import Host, Stack


async def next_request(host: Host) -> dict[str, object]:
    """The next request that this host has not been shown, marked processed."""
    got = await host.tool("wait_for_messages", timeoutMs=30000, limit=1)
    [message] = got["messages"]
    await host.tool("mark_processed", messageId=message["message_id"])
    assert isinstance(message, dict)
    return message


async def test_files_go_both_ways(machine: Stack) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    host = await machine.host(agent)
    await host.connected()
    content = os.urandom(300_000)
    message_id = await phone.send(agent.agent_id, "look", files=[File("päper.bin", content), File("note.txt", b"hi")])
    request = await next_request(host)
    assert request["text"] == "look"
    files = request["attachments"]
    assert isinstance(files, list)
    assert [(f["name"], f["size"]) for f in files] == [("päper.bin", 300_000), ("note.txt", 2)]
    async with machine.control() as control:
        path = f"/v1/agents/-/attachments/{message_id}/{files[0]['id']}"
        async with control.get(path) as response:
            assert response.status == 200
            assert await response.read() == content
        report = os.urandom(200_000)
        query = {"name": "report.pdf", "mime": "application/pdf", "source_message_id": message_id, "text": "here"}
        async with control.post("/v1/agents/-/files", params=query, data=report) as response:
            assert response.status == 201, await response.text()
    received = await phone.wait_for(lambda m: m.direction == "in" and bool(m.files), 30)
    assert (received.text, received.reply_to) == ("here", message_id)
    [file] = received.files
    assert (file.name, file.mime, file.size) == ("report.pdf", "application/pdf", 200_000)
    assert await phone.download(file) == report


async def test_history_records_of_both_sides_open(machine: Stack) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    host = await machine.host(agent)
    await host.connected()
    for number in range(3):
        message_id = await phone.send(agent.agent_id, str(number))
        await next_request(host)
        await host.tool("send_message", text=f"re {number}", sourceMessageId=message_id)
        reply = await phone.wait_reply(message_id, 30)
        assert (reply.text, reply.archived) == (f"re {number}", True)


async def test_a_reply_goes_to_the_device_that_asked(machine: Stack) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    code, _ = await phone.create_link_code()
    tablet = await machine.phone("tablet", register=False)
    await tablet.link(code)
    host = await machine.host(agent)
    await host.connected()
    asked = []
    for device in (phone, tablet, phone, tablet):
        message_id = await device.send(agent.agent_id, "hello")
        asked.append((device, message_id, await next_request(host)))
    for device, message_id, request in asked:
        assert request["from_device_id"] == device.device_id
        await host.tool("send_message", text="for you", sourceMessageId=message_id)
        assert (await device.wait_reply(message_id, 30)).text == "for you"
    for device in (phone, tablet):
        told = await device.conversation(agent.conversation_id)
        assert [m.direction for m in told].count("in") == 2
        assert not [m for m in told if m.kind == "undecryptable"]


async def test_a_group_of_two_agents_in_one_daemon(machine: Stack) -> None:
    phone = await machine.phone("ada")
    one, two = await phone.create_agent("one"), await phone.create_agent("two")
    hosts = [await machine.host(one, "first"), await machine.host(two, "second")]
    for host in hosts:
        await host.connected()
    group = await phone.create_group(["one", "two"], "both")
    message_id = await phone.send_group(group, "hello all")
    for host in hosts:
        request = await next_request(host)
        assert (request["text"], request["group"], request["conversation_id"]) == ("hello all", True, group)
    await hosts[0].tool("send_message", text="I do it", sourceMessageId=message_id)
    reply = await phone.wait_reply(message_id, 30)
    assert (reply.text, reply.group, reply.conversation_id, reply.agent_id) == ("I do it", True, group, one.agent_id)
    # The other agent is a member too and reads it.
    assert (await next_request(hosts[1]))["text"] == "I do it"


async def test_everything_survives_a_restart_of_the_daemon(machine: Stack) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    host = await machine.host(agent)
    await host.connected()
    before = await phone.send(agent.agent_id, "before")
    got = await host.tool("wait_for_messages", timeoutMs=30000)
    assert got["messages"][0]["delivery"] == "new"
    await host.tool("save_checkpoint", sourceMessageId=before, summary="half", nextAction="the rest")
    await machine.stop_daemon()
    while_down = await phone.send(agent.agent_id, "while down")
    got = await host.tool("wait_for_messages", timeoutMs=0)  # the shim starts the daemon again
    assert got["messages"][0]["message_id"] == before  # the other may be there already
    assert got["messages"][0]["delivery"] == "again"
    assert got["messages"][0]["claim"]["mine"] is True
    assert (await host.tool("get_checkpoints"))["checkpoints"][0]["next_action"] == "the rest"
    await host.tool("mark_processed", messageId=before)
    assert (await next_request(host))["message_id"] == while_down
    await host.tool("send_message", text="back", sourceMessageId=while_down)
    assert (await phone.wait_reply(while_down, 30)).text == "back"
