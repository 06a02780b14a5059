"""Claude Code's channel: what is pushed into a session, and permission prompts that the phone answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pacerelle_phone.device import Device
from pacerelle_phone.model import PairedAgent
from pacerelled.agent.asking import Asked, decide
from pacerelled.agent.model import Request
from tests.e2e.stack import Host, Stack, stack, until

PUSH = "notifications/claude/channel"


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as running:
        yield running


class Scene:
    """A phone, its agent, and a host whose entry asks for the channel."""

    def __init__(self, machine: Stack, phone: Device, agent: PairedAgent) -> None:
        self.machine, self.phone, self.agent = machine, phone, agent

    @classmethod
    async def make(cls, machine: Stack) -> Scene:
        phone = await machine.phone("ada")
        return cls(machine, phone, await phone.create_agent("home"))

    async def host(self, *options: str) -> tuple[Host, dict[str, Any]]:
        host = Host(self.machine, self.agent, "claude")
        self.machine.hosts.append(host)
        host.command += options
        await host.start(initialize=False)
        client = {"name": "claude-code", "version": "2.1.80"}
        answer = await host.call(
            "initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
        )
        await host.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        await host.connected()
        return host, answer["result"]

    async def sent(self, text: str) -> str:
        return await self.phone.send(self.agent.agent_id, text)


def told(host: Host, method: str) -> list[dict[str, Any]]:
    return [each["params"] for each in host.notifications if each.get("method") == method]


async def prompt(host: Host, request_id: str, preview: str = '{"command": "ls"}') -> None:
    params = {
        "request_id": request_id,
        "tool_name": "Bash",
        "description": "List the files",
        "input_preview": preview,
    }
    await host.write({"jsonrpc": "2.0", "method": f"{PUSH}/permission_request", "params": params})


async def test_a_request_is_pushed_and_still_waits(machine: Stack) -> None:
    scene = await Scene.make(machine)
    host, server = await scene.host("--channel")
    assert server["capabilities"]["experimental"] == {"claude/channel": {}, "claude/channel/permission": {}}
    assert '<channel source="pacerelle">' in server["instructions"]
    plain, without = await scene.host()
    assert not without["capabilities"].get("experimental")
    message_id = await scene.sent("Send me the figures")
    await until(lambda: told(host, PUSH), "the push")
    (pushed,) = told(host, PUSH)
    assert pushed["content"].endswith("Send me the figures")
    assert pushed["meta"]["message_id"] == message_id
    assert all(isinstance(value, str) and name.isidentifier() for name, value in pushed["meta"].items())
    (taken,) = (await plain.tool("wait_for_messages", timeoutMs=0))["messages"]
    assert (taken["message_id"], taken["delivery"]) == (message_id, "new")
    assert told(plain, PUSH) == []
    await scene.sent("Another")
    await until(lambda: len(told(host, PUSH)) == 2, "the second push")
    await plain.tool("mark_processed", messageId=message_id)
    await asyncio.sleep(0.5)
    assert len(told(host, PUSH)) == 2


async def test_who_may_give_no_orders_is_not_pushed(machine: Stack) -> None:
    scene = await Scene.make(machine)
    host, _ = await scene.host("--channel")
    async with machine.control() as control, control.put("/v1/agents/-/allow/somebody-else") as response:
        assert response.status == 200
    await scene.sent("Delete everything")
    async with machine.control() as control:

        async def held() -> bool:
            async with control.get("/v1/agents/-/quarantine") as response:
                return bool((await response.json())["quarantine"])

        await until(held, "the quarantine")
    await asyncio.sleep(0.5)
    assert told(host, PUSH) == []


@pytest.mark.parametrize(("value", "behavior"), [(True, "allow"), (False, "deny")])
async def test_a_prompt_is_answered_on_the_phone_once(machine: Stack, value: bool, behavior: str) -> None:
    scene = await Scene.make(machine)
    host, _ = await scene.host("--channel")
    await prompt(host, "early")  # the session works on nothing: nobody is asked
    message_id = await scene.sent("Clean up")
    (taken,) = (await host.tool("wait_for_messages", timeoutMs=30_000))["messages"]
    assert taken["message_id"] == message_id
    await prompt(host, "abcde")
    shown = await scene.phone.wait_for(lambda m: m.kind == "widget", 30)
    assert shown.widget is not None
    spec = shown.widget.spec
    assert shown.widget.kind == "permission"
    assert spec["title"] == "Allow Bash?"
    assert "List the files" in spec["body"]
    assert '{"command": "ls"}' in spec["body"]
    answer = {"granted": value, "scope": "once"} if value else {"granted": False}
    await scene.phone.respond(shown, answer)
    await until(lambda: told(host, f"{PUSH}/permission"), "the verdict")
    await scene.phone.respond(shown, {"granted": not value, "scope": "once"})
    await asyncio.sleep(1.0)
    assert told(host, f"{PUSH}/permission") == [{"request_id": "abcde", "behavior": behavior}]
    found = (await host.tool("wait_for_messages", timeoutMs=0))["messages"]
    assert [each["message_id"] for each in found] == [message_id], "the answer is no host's work"


def test_which_answers_count() -> None:
    asked = Asked("k", "a1", "r1", "c1", "ada", "d1", {})
    right: dict[str, Any] = {
        "seq": 1, "message_id": "m", "conversation_id": "c1", "sender": "ada", "device_id": "d1", "group": False,
        "kind": "widget_response", "text": "", "received_at": "", "widget": {"message_id": "r1", "late": False},
        "widget_response": {"value": {"granted": True, "scope": "once"}, "cancelled": False},
    }  # fmt: skip
    assert decide(asked, Request(**right)) == "allow"
    for wrong in (
        {"sender": "bob"},
        {"device_id": "d2"},
        {"device_id": None},
        {"group": True},
        {"encrypted": False},
        {"authorized": False},
        {"widget": None},
        {"widget": {"message_id": "r1", "late": True}},
        {"widget": {"message_id": "r2", "late": False}},
        {"widget_response": {"value": {"granted": True, "scope": "always"}, "cancelled": False}},
        {"widget_response": {"value": {"granted": "yes"}, "cancelled": False}},
        {"widget_response": {"value": True, "cancelled": False}},
    ):
        assert decide(asked, Request(**{**right, **wrong})) is None
    assert decide(asked, Request(**{**right, "widget_response": {"cancelled": True}})) == "deny"
    assert decide(asked, Request(**{**right, "widget_response": {"value": {"granted": False}}})) == "deny"
