"""The phone and the official SDK's agent through a real relay: everything a conversation can hold."""

from __future__ import annotations

import pytest
from phone_world import DEADLINE, OpenPhone, StartAgent, until_read

from pacerelle_phone.device import Device
from pacerelle_phone.errors import AgentNotReady, InvalidArgument, KeyMissing, UnknownAgent, WaitTimeout
from pacerelle_phone.files import File
from pacerelle_phone.model import Message


async def widget(phone: Device, kind: str) -> Message:
    return await phone.wait_for(lambda m: m.widget is not None and m.widget.kind == kind, DEADLINE)


async def test_text_goes_there_and_back(phone: Device, start_agent: StartAgent) -> None:
    agent = await start_agent(await phone.create_agent("Echo"))
    message_id = await phone.send("Echo", "hello\u2028 🙂")
    reply = await phone.wait_reply(message_id, DEADLINE)
    assert (reply.kind, reply.text) == ("text", "Received: hello\u2028 🙂")
    assert reply.agent_id == agent.agent_id
    assert await phone.safety_code(agent.agent_id) == agent.code
    assert await phone.wait_sent(message_id, DEADLINE)


async def test_a_message_becomes_read_when_the_agent_took_it(phone: Device, start_agent: StartAgent) -> None:
    await start_agent(await phone.create_agent("Echo"))
    await until_read(phone, await phone.send("Echo", "one"))


async def test_widgets_are_shown_answered_and_cancelled(phone: Device, start_agent: StartAgent) -> None:
    paired = await phone.create_agent("Echo")
    await start_agent(paired)
    await phone.send("Echo", "ask confirm")
    confirm = await widget(phone, "confirm")
    assert confirm.widget is not None
    assert confirm.widget.spec["title"] == "Deploy now?"
    assert [m.id for m in await phone.open_widgets(paired.conversation_id)] == [confirm.id]

    answer = await phone.respond(confirm, True)
    assert (await phone.wait_reply(answer, DEADLINE)).text == "widget confirm-1: True"
    assert await phone.open_widgets(paired.conversation_id) == []

    await phone.send("Echo", "ask choice")
    choice = await widget(phone, "choice")
    cancel = await phone.respond(choice, cancelled=True)
    assert (await phone.wait_reply(cancel, DEADLINE)).text == "widget choice-1: cancelled"


async def test_widget_updates_go_both_ways(phone: Device, start_agent: StartAgent) -> None:
    paired = await phone.create_agent("Echo")
    await start_agent(paired)
    await phone.send("Echo", "progress")
    await phone.wait_for(lambda m: m.kind == "widget_update", DEADLINE)
    [shown] = await phone.open_widgets(paired.conversation_id)
    assert shown.widget is not None
    assert shown.widget.spec == {"title": "Import", "value": 65, "max": 100}

    update = await phone.update_widget(shown, {"spec": {"value": 70}})
    assert (await phone.wait_reply(update, DEADLINE)).text == "update progress-1: {'spec': {'value': 70}}"


async def test_files_go_both_ways(phone: Device, start_agent: StartAgent) -> None:
    await start_agent(await phone.create_agent("Echo"))
    files = [File("päper.txt", b"first", "text/plain"), File("b.bin", b"second")]
    message_id = await phone.send("Echo", "look", files=files)
    reply = await phone.wait_reply(message_id, DEADLINE)
    assert reply.text == "got päper.txt text/plain first, b.bin application/octet-stream second"
    assert [f.name for f in (await phone.message(message_id)).files] == ["päper.txt", "b.bin"]

    await phone.send("Echo", "send file")
    received = await phone.wait_for(lambda m: bool(m.files), DEADLINE)
    [report] = received.files
    assert (received.text, report.name, report.mime, report.size) == ("here", "report.txt", "text/plain", 14)
    assert await phone.download(report) == b"private report"


async def test_history_records_of_both_sides_open(phone: Device, start_agent: StartAgent) -> None:
    await start_agent(await phone.create_agent("Echo"))
    replies = [await phone.wait_reply(await phone.send("Echo", str(n)), DEADLINE) for n in range(3)]
    assert [(r.text, r.archived) for r in replies] == [(f"Received: {n}", True) for n in range(3)]


async def test_a_reply_goes_to_the_device_that_asked(
    phone: Device, open_phone: OpenPhone, start_agent: StartAgent
) -> None:
    paired = await phone.create_agent("Echo")
    await start_agent(paired)
    code, seconds = await phone.create_link_code()
    assert seconds > 0
    tablet = await open_phone("tablet", register=False)
    await tablet.link(code, "tablet")
    assert (tablet.user_id, tablet.device_id) != (phone.user_id, phone.device_id)
    assert [a.agent_id for a in await tablet.known_agents()] == [paired.agent_id]

    for device, name in [(phone, "phone"), (tablet, "tablet"), (phone, "phone again"), (tablet, "tablet again")]:
        reply = await device.wait_reply(await device.send("Echo", name), DEADLINE)
        assert reply.text == f"Received: {name}"
    for device, count in [(phone, 2), (tablet, 2)]:
        told = await device.conversation(paired.conversation_id)
        assert [m.direction for m in told].count("in") == count
        assert not [m for m in told if m.kind == "undecryptable"]


async def test_only_the_device_that_made_a_conversation_delivers_its_history_key(
    phone: Device, open_phone: OpenPhone, start_agent: StartAgent
) -> None:
    await start_agent(await phone.create_agent("Echo"))
    tablet = await open_phone("tablet", register=False)
    await tablet.link((await phone.create_link_code())[0])
    first = await tablet.wait_reply(await tablet.send("Echo", "from the tablet first"), DEADLINE)
    assert not first.archived
    second = await phone.wait_reply(await phone.send("Echo", "then from the phone"), DEADLINE)
    assert second.archived
    assert (await tablet.wait_reply(await tablet.send("Echo", "and again"), DEADLINE)).text == "Received: and again"


async def test_a_group_of_two_agents(phone: Device, start_agent: StartAgent) -> None:
    agents = [await start_agent(await phone.create_agent(name), store=name) for name in ("One", "Two")]
    group = await phone.create_group(["One", "Two"], "Both")
    first = await phone.send_group(group, "hello all")
    arrived: set[str] = set()
    async for message in phone.messages():
        assert (message.group, message.conversation_id, message.reply_to) == (True, group, first)
        assert message.text == "Received: hello all"
        arrived.add(message.agent_id)
        if len(arrived) == 2:
            break
    assert arrived == {agent.agent_id for agent in agents}


async def test_a_group_can_only_be_written_to_where_its_key_is(
    phone: Device, open_phone: OpenPhone, start_agent: StartAgent
) -> None:
    await start_agent(await phone.create_agent("One"))
    group = await phone.create_group(["One"], "Just one")
    tablet = await open_phone("tablet", register=False)
    await tablet.link((await phone.create_link_code())[0])
    with pytest.raises(KeyMissing):
        await tablet.send_group(group, "hello")
    await phone.send_group(group, "hello")
    seen = await tablet.wait_for(lambda m: m.group, DEADLINE)
    assert (seen.kind, seen.reason) == ("undecryptable", "group_key_missing")


async def test_a_group_needs_agents_that_have_connected(phone: Device) -> None:
    await phone.create_agent("Never")
    with pytest.raises(AgentNotReady):
        await phone.create_group(["Never"], "Nobody")
    with pytest.raises(InvalidArgument):
        await phone.create_group([], "Nobody")


async def test_what_is_written_before_the_agent_ever_connected_waits_for_it(
    phone: Device, start_agent: StartAgent
) -> None:
    paired = await phone.create_agent("Late")
    message_id = await phone.send("Late", "are you there?")
    waiting = await phone.wait_sent(message_id, 0.2)
    assert waiting.state == "queued"
    await start_agent(paired)
    assert (await phone.wait_reply(message_id, DEADLINE)).text == "Received: are you there?"


async def test_impossible_requests_are_refused_with_their_reason(phone: Device) -> None:
    paired = await phone.create_agent("Echo")
    with pytest.raises(UnknownAgent):
        await phone.send("nobody", "hello")
    with pytest.raises(InvalidArgument) as info:
        await phone.send("Echo", "x" * 400_000)
    assert info.value.argument == "text"
    with pytest.raises(InvalidArgument):
        await phone.send("Echo", "hello", conversation_id="unknown")
    with pytest.raises(InvalidArgument):
        await phone.send_group(paired.conversation_id, "hello")
    with pytest.raises(WaitTimeout):
        await phone.wait_for(lambda m: True, 0.01)
    with pytest.raises(WaitTimeout):
        await phone.wait_reply("unknown", 0.01)
