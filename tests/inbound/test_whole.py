"""The whole way: a real relay, the daemon as hosts start it, the command line, and devices that change their keys."""

from __future__ import annotations

import base64
import json
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pacerelle_phone.model import PairedAgent
from tests.daemon.human import Human
from tests.e2e.stack import Stack, stack, until

from .seen import code


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as running:
        yield running


class Person:
    """Somebody's device at the relay by its HTTP calls, so that it can do what phones do not."""

    def __init__(self, http: aiohttp.ClientSession, url: str, account: dict[str, Any]) -> None:
        self._http, self._url = http, f"{url}/human/v1"
        self._token = account["device_token"]
        self.user_id, self.device_id = account["user_id"], account["device_id"]

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self._token}"}
        async with self._http.request(method, self._url + path, json=body, headers=headers) as answer:
            assert answer.status in (200, 201, 202), await answer.text()
            return await answer.json()

    async def make_agent(self) -> PairedAgent:
        made = await self.call("POST", "/agents", {"name": "home"})
        return PairedAgent(made["agent_id"], made["agent_token"], made["conversation_id"])

    async def human(self, agent: PairedAgent, *, device: bool = True) -> Human:
        """A new identity key for this device, announced, with a session."""
        human = Human(agent.agent_id, self.user_id, agent.conversation_id, self.device_id if device else None)
        key = base64.b64encode(human.signal.identity_key).decode()
        await self.call("PUT", "/devices/self/identity", {"identity_key": key})
        bundle = await self.call("GET", f"/agents/{agent.agent_id}/prekey-bundle")
        human.use_bundle(bundle, bundle.pop("one_time_prekey"))
        return human

    async def send(self, human: Human, text: str) -> str:
        frame = json.loads(human.frame(text))
        body = {name: frame[name] for name in ("id", "conversation_id", "to", "payload_b64", "encrypted")}
        await self.call("POST", "/messages", {**body, "device_less": human.device is None})
        return str(frame["id"])


@asynccontextmanager
async def person(machine: Stack) -> AsyncIterator[Person]:
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{machine.relay_url}/human/v1/accounts", json={"name": "Ada"}) as answer:
            account = await answer.json()
        yield Person(http, machine.relay_url, account)


async def pacerelle(machine: Stack, *args: str) -> dict[str, Any]:
    process = await create_subprocess_exec(
        sys.executable, "-m", "pacerelle_cli", "--store-root", str(machine.root), *args, "--json", stdout=PIPE
    )
    out, _ = await process.communicate()
    found: dict[str, Any] = json.loads(out)
    return found


async def test_a_device_that_was_set_up_anew_is_held_told_of_and_let_in_again(machine: Stack) -> None:
    async with person(machine) as ada:
        agent = await ada.make_agent()
        host = await machine.host(agent)
        await host.connected()
        first = await ada.human(agent)
        await ada.send(first, "one")
        [message] = (await host.tool("wait_for_messages", timeoutMs=30000))["messages"]
        sender = {"person": ada.user_id, "device": ada.device_id, "verified": False, "group": False, "authorized": True}
        assert message["sender"] == sender
        await pacerelle(machine, "devices", "verify", ada.user_id, "--code", code(first))
        [message] = (await host.tool("wait_for_messages", timeoutMs=0))["messages"]
        assert message["sender"] == {**sender, "verified": True}
        await host.tool("mark_processed", messageId=message["message_id"])

        second = await ada.human(agent)
        await ada.send(second, "two")
        await ada.send(second, "three")

        async def held() -> bool:
            return bool((await host.tool("get_status"))["quarantine_reasons"].get("identity_changed") == 2)

        await until(held, "both messages to be held")
        status = await host.tool("get_status")
        assert {p["code"] for p in status["problems"]} == {"identity_changed", "identity_notice"}
        assert (await host.tool("wait_for_messages", timeoutMs=0))["messages"] == []
        await machine.stop_daemon()  # the host's next call starts another
        assert (await host.tool("wait_for_messages", timeoutMs=0))["messages"] == []

        trusted = await pacerelle(machine, "devices", "trust", ada.user_id, "--code", code(second))
        assert trusted["accepted"] == 2
        messages = (await host.tool("wait_for_messages", timeoutMs=30000))["messages"]
        assert [(m["text"], m["delivery"]) for m in messages] == [("two", "new"), ("three", "new")]
        await host.connected()
        assert (await host.tool("get_status"))["problems"] == []


async def test_a_client_from_before_devices_talks_and_becomes_a_device(machine: Stack) -> None:
    async with person(machine) as ada:
        agent = await ada.make_agent()
        host = await machine.host(agent)
        await host.connected()
        older = await ada.human(agent, device=False)
        await ada.send(older, "one")
        [message] = (await host.tool("wait_for_messages", timeoutMs=30000))["messages"]
        assert (message["from_device_id"], message["sender"]["device"]) == (None, None)
        await host.tool("mark_processed", messageId=message["message_id"])
        older.device = ada.device_id
        await ada.send(older, "two")
        [message] = (await host.tool("wait_for_messages", timeoutMs=30000))["messages"]
        assert (message["text"], message["sender"]["device"]) == ("two", ada.device_id)
        rows = (await pacerelle(machine, "devices", "list"))["devices"]
        assert [(row["device_id"], row["safety_code"]) for row in rows] == [
            (None, code(older)),
            (ada.device_id, code(older)),
        ]


async def test_no_host_sees_what_somebody_writes_who_is_not_on_the_allow_list(machine: Stack) -> None:
    async with person(machine) as ada:
        agent = await ada.make_agent()
        host = await machine.host(agent)
        await host.connected()
        await pacerelle(machine, "allow", "add", "somebody-else")
        human = await ada.human(agent)
        for text in ("one", "two"):
            await ada.send(human, text)

        async def held() -> bool:
            return bool((await host.tool("get_status"))["quarantine_reasons"] == {"not_allowed": 2})

        await until(held, "both messages to be held")
        assert (await host.tool("wait_for_messages", timeoutMs=0))["messages"] == []
        assert (await host.tool("get_history"))["requests"] == []
        assert (await pacerelle(machine, "allow", "add", ada.user_id))["accepted"] == 2
        messages = (await host.tool("wait_for_messages", timeoutMs=30000))["messages"]
        assert [m["text"] for m in messages] == ["one", "two"]
