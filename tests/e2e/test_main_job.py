"""The main job: a message from the phone reaches one of two hosts, the reply comes back."""

from __future__ import annotations

import pytest

from tests.e2e.stack import Stack

CONFIRM = {"type": "widget.standard", "v": 1, "id": "go", "kind": "confirm", "spec": {"title": "Go on?"}}


async def test_a_request_reaches_one_of_two_hosts_and_the_reply_the_phone(machine: Stack) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    first, second = await machine.host(agent, "first"), await machine.host(agent, "second")
    await first.connected()

    question = await phone.send(agent.agent_id, "what is the time?")
    got = await first.tool("wait_for_messages", timeoutMs=20000)
    assert [m["text"] for m in got["messages"]] == ["what is the time?"]
    assert got["messages"][0]["delivery"] == "new"
    assert got["messages"][0]["claim"]["label"].startswith("first 1")
    other = await second.tool("wait_for_messages", timeoutMs=0)
    assert other["messages"] == []

    await first.tool("send_message", text="late", sourceMessageId=question)
    reply = await phone.wait_reply(question, 20)
    assert reply.text == "late"
    assert (await first.tool("wait_for_messages", timeoutMs=0))["messages"][0]["delivery"] == "again"
    await first.tool("mark_processed", messageId=question)
    assert (await first.tool("get_status"))["pending_requests"] == 0


@pytest.mark.parametrize("as_text", [False, True])
async def test_a_widget_is_answered(machine: Stack, as_text: bool) -> None:
    import json

    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    host = await machine.host(agent)
    await host.connected()
    question = await phone.send(agent.agent_id, "do it")
    await host.tool("wait_for_messages", timeoutMs=20000)
    sent = await host.tool(
        "send_widget", widgetJson=json.dumps(CONFIRM) if as_text else CONFIRM, sourceMessageId=question
    )
    assert sent["widget_id"] == "go"
    widget = await phone.wait_for(lambda m: m.kind == "widget", 20)
    await phone.respond(widget, True)
    await host.tool("mark_processed", messageId=question)
    answer = (await host.tool("wait_for_messages", timeoutMs=20000))["messages"][0]
    assert answer["kind"] == "widget_response"
    assert answer["widget_response"]["ref"] == "go"
    assert answer["widget_response"]["value"] is True
    assert answer["reply_to_message_id"] == sent["message_id"]
