"""With processes: a relay that is away, a daemon that is killed, hosts that ask again, and a phone."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pacerelle_phone.device import Device
from pacerelle_phone.model import Message, PairedAgent
from pacerelled.store.custody import obtain_store_key
from pacerelled.store.database import Store
from pacerelled.store.keyring import Keyring
from tests.e2e.stack import Host, Stack, stack, until


@pytest.fixture
async def machine(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as running:
        running.configure("reconnect_max = 0.2\n")
        yield running


async def asked(machine: Stack) -> tuple[Device, PairedAgent, Host, str]:
    """A phone that has asked something, and the host that was handed it."""
    phone = await machine.phone()
    agent = await phone.create_agent("home")
    host = await machine.host(agent)
    await host.connected()
    await phone.send("home", "what is new?")
    got = await host.tool("wait_for_messages", timeoutMs=20_000)
    return phone, agent, host, got["messages"][0]["message_id"]


async def from_agent(phone: Device, agent: PairedAgent) -> list[Message]:
    return [m for m in await phone.conversation(agent.conversation_id) if m.direction == "in"]


async def command(machine: Stack, *arguments: str) -> tuple[int, Any]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pacerelle_cli", "--store-root", str(machine.root), "--json", *arguments,
        env={"HOME": str(machine.home), "PATH": os.environ["PATH"]},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    out, _ = await child.communicate()
    return child.returncode or 0, json.loads(out)


async def test_what_was_sent_while_the_relay_was_away_comes_in_order(machine: Stack) -> None:
    phone, agent, host, source = await asked(machine)
    await machine.relay.kill()

    async def noticed() -> bool:
        return bool((await host.tool("get_status"))["connection"] != "connected")

    await until(noticed, "the end of the connection")
    sent = [await host.tool("send_message", text=str(n), sourceMessageId=source) for n in range(5)]
    code, dropped = await command(machine, "outbox", "drop", sent[2]["message_id"])
    assert (code, dropped["reply"]["state"]) == (0, "dropped")
    machine.kill_daemon()
    sent += [
        await host.tool("send_message", text=str(n), sourceMessageId=source, idempotencyKey=f"n{n}")
        for n in range(5, 9)
    ]
    again = await host.tool("send_message", text="8", sourceMessageId=source, idempotencyKey="n8")
    assert (again["message_id"], again["repeated"]) == (sent[-1]["message_id"], True)
    assert {s["state"] for s in sent} == {"queued"}
    _, listed = await command(machine, "outbox", "list")
    assert [r["text"] for r in listed["replies"]] == [str(n) for n in range(9) if n != 2]
    await machine.relay.start()
    await until(lambda: all_through(host, 8), "the replies")
    assert await arrived(phone, agent, 8) == [str(n) for n in range(9) if n != 2]


async def all_through(host: Host, count: int) -> bool:
    replies = (await host.tool("get_history"))["replies"]
    return sum(r["state"] == "submitted" for r in replies) == count


async def arrived(phone: Device, agent: PairedAgent, count: int) -> list[str]:
    async def enough() -> bool:
        return len(await from_agent(phone, agent)) >= count

    await until(enough, "the messages")
    await asyncio.sleep(0.2)  # one too many would come now
    return [m.text for m in await from_agent(phone, agent)]


async def test_an_assistant_sends_again_what_is_uncertain_and_the_person_sees_it_once(machine: Stack) -> None:
    phone, agent, host, source = await asked(machine)
    reply = await host.tool("send_message", text="once", sourceMessageId=source)
    await until(lambda: all_through(host, 1), "the reply")
    await machine.stop_daemon()
    await forget_the_proof(machine, reply["message_id"])
    status = await host.tool("get_status")
    (unsure,) = status["uncertain_sends"]
    assert unsure["message_id"] == reply["message_id"]
    assert "retryMessageId" in unsure["what_to_do"]
    await host.connected()
    again = await host.tool("send_message", retryMessageId=reply["message_id"])
    assert (again["message_id"], again["state"]) == (reply["message_id"], "queued")
    await until(lambda: all_through(host, 1), "the proof")
    assert await arrived(phone, agent, 1) == ["once"]
    assert (await host.tool("send_message", retryMessageId=reply["message_id"]))["repeated"]


async def forget_the_proof(machine: Stack, message_id: str) -> None:
    """As after a crash between the frame and the pong."""
    paths = machine.paths
    key = await obtain_store_key(paths.state, paths.key_file, paths.store, keyring=Keyring(False, {}), env={})
    store = await Store.open(paths.store, key.raw, new=False)
    await store.run(lambda tx: tx.execute("UPDATE replies SET state = 'sending' WHERE message_id = ?", (message_id,)))
    await store.close()


async def test_a_widget_is_changed_answered_and_known_to_have_been_answered(machine: Stack) -> None:
    phone, agent, host, source = await asked(machine)
    widget = {"type": "widget.standard", "v": 1, "id": "w1", "kind": "confirm", "spec": {"title": "Publish?"}}
    shown = await host.tool("send_widget", widgetJson=widget, sourceMessageId=source)
    changed = await host.tool("update_widget", messageId=shown["message_id"], spec={"title": "Publish now?"})
    assert (changed["widget_id"], changed["repeated"]) == ("w1", False)

    async def open_widget() -> Message | None:
        found = await phone.open_widgets(agent.conversation_id)
        now = found[0].widget if found else None
        return found[0] if now is not None and now.spec["title"] == "Publish now?" else None

    message = await until(open_widget, "the changed widget")
    await phone.respond(message, True)
    await host.tool("mark_processed", messageId=source)
    (request,) = (await host.tool("wait_for_messages", timeoutMs=20_000))["messages"]
    assert request["widget_response"]["value"] is True
    assert (request["widget"]["message_id"], request["widget"]["title"]) == (shown["message_id"], "Publish now?")
    assert request["widget"]["source_message_id"] == source
    answer = await host.call("resources/read", {"uri": "widget://pending"})
    pending = json.loads(answer["result"]["contents"][0]["text"])["widget_response"]
    assert pending["widget"] == request["widget"]
