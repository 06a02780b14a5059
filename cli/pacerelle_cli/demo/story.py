"""What the demo shows: two requests, two hosts, two replies, and what the relay knows of them.

Each `passed` is a check that has been made: a step that goes wrong raises before it is reached.
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import Process
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import evidence
from .errors import DemoFailed
from .host import Host, attach
from .phone import Phone
from .screen import Screen
from .stage import Stage, step

PERSON, AGENT = "Ada", "home"
HOSTS = ("Editor", "Terminal")
FIRST = "The spare key is under the blue flowerpot. Please tell the plumber."
FIRST_REPLY = "Done. The plumber knows which flowerpot."
SECOND = "Book the night train to Barcelona on Saturday, but ask before you spend money."
QUESTION = "Spend 148 euros on a sleeper to Barcelona?"
THANKS = "Booked: Barcelona, Saturday, carriage 12, upper berth."
TEXTS = (FIRST, FIRST_REPLY, SECOND, QUESTION, THANKS)
TOOLS = {
    *("get_status", "wait_for_messages", "send_message", "send_widget"),
    *("mark_processed", "get_history", "save_checkpoint", "get_checkpoints"),
}
_POLL = 0.05  # seconds


@dataclass(frozen=True, slots=True)
class Running:
    """What is there for a real host."""

    relay: Process
    phone: Phone
    host_env: dict[str, str]


def check(true: bool, otherwise: str) -> None:
    """Raises DemoFailed."""
    if not true:
        raise DemoFailed(otherwise)


async def play(stage: Stage, screen: Screen) -> Running:
    """All of it. Raises DemoFailed."""
    screen.heading("1. A relay, a phone, a daemon, two assistants' hosts")
    relay, url = await start_relay(stage, screen)
    phone, env = await pair_phone(stage, screen, url)
    hosts = await attach_hosts(stage, screen, env)
    screen.heading("2. A request goes to one host")
    one, other, other_waits = await first_request(screen, phone, hosts)
    screen.heading("3. The next one goes to the host that still waits; it asks back")
    await second_request(screen, phone, one, other, other_waits)
    screen.heading("4. What the relay saw of it")
    show_evidence(stage, screen, env["PACERELLE_AGENT_TOKEN"])
    for host in hosts:
        await stage.end(host.process)
    return Running(relay, phone, env)


async def start_relay(stage: Stage, screen: Screen) -> tuple[Process, str]:
    async with step("the relay starts"):
        command = [sys.executable, "-m", "pacerelle_cli", "relay", "--data", str(stage.home / "relay")]
        process = await stage.spawn("relay", [*command, "--port", "0", "--json"])
        assert process.stdout is not None
        line = await process.stdout.readline()
        if not line:
            raise DemoFailed("The relay did not start.")
        url: str = json.loads(line)["url"]
    screen.passed(f"A relay of our own runs at {url} (process {process.pid}).")
    return process, url


async def pair_phone(stage: Stage, screen: Screen, url: str) -> tuple[Phone, dict[str, str]]:
    phone = Phone(stage, url)
    async with step("the phone makes an account and an agent"):
        agent = await phone.pair(PERSON, AGENT)
    screen.passed(f"{PERSON}'s phone has made the agent “{AGENT}”: an id and a token for this computer.")
    env = {
        "PACERELLE_AGENT_ID": agent["agent_id"],
        "PACERELLE_AGENT_TOKEN": agent["agent_token"],
        "PACERELLE_BASE_URL": url,
        "PACERELLE_STORE_ROOT": str(stage.store_root),
    }
    return phone, env


async def attach_hosts(stage: Stage, screen: Screen, env: dict[str, str]) -> list[Host]:
    async with step("two hosts connect, and the daemon starts"):
        hosts = [await attach(stage, name, env) for name in HOSTS]
        await asyncio.gather(*(host.initialize() for host in hosts))
        daemons = stage.daemons()
    check(len(daemons) == 1, f"There are {len(daemons)} daemons instead of one.")
    shims = " and ".join(f"{host.name} (process {host.process.pid})" for host in hosts)
    screen.passed(f"Two MCP hosts are attached, each through its own shim: {shims}.")
    screen.passed(f"The shims have started one daemon, for both (process {daemons[0].pid}).")
    async with step("the hosts ask for the tools"):
        for host in hosts:
            listed = {tool["name"] for tool in (await host.call("tools/list"))["tools"]}
            check(listed >= TOOLS, f"{host.name} was not shown these tools: {sorted(TOOLS - listed)}.")
    screen.passed(f"Each of them sees the {len(listed)} tools.")
    async with step("the daemon connects to the relay"):
        await _status(hosts[0], lambda status: status["connection"] == "connected")
    screen.passed("The daemon is connected to the relay and has published its keys.")
    return hosts


Waiting = asyncio.Task[list[dict[str, Any]]]


async def first_request(screen: Screen, phone: Phone, hosts: list[Host]) -> tuple[Host, Host, Waiting]:
    """The host that got the request, the other one, and the other's call, which still waits."""
    calls = {host.name: _wait(host) for host in hosts}
    async with step("both hosts wait"):
        await _status(hosts[0], lambda status: all(attached["waiting"] for attached in status["hosts"]))
    screen.passed("Both hosts wait for messages, at the same time.")
    async with step("the first request arrives"):
        talk = await phone.send(FIRST)
        sent = await talk.line()
        screen.said(f"{PERSON} writes", FIRST)
        done, _ = await asyncio.wait(calls.values(), return_when=asyncio.FIRST_COMPLETED)
        got = done.pop().result()
    check(not done, "Both hosts' calls ended.")
    one, other = sorted(hosts, key=lambda host: not calls[host.name].done())
    check([m["text"] for m in got] == [FIRST] and got[0]["encrypted"], f"{one.name} got something else.")
    check(got[0]["message_id"] == sent["id"] and got[0]["delivery"] == "new", f"{one.name} got another message.")
    screen.said(f"{one.name} gets", got[0]["text"])
    screen.passed(f"It came out decrypted in {one.name}.")
    async with step("the reply reaches the phone"):
        await _reply(one, FIRST_REPLY, sent["id"])
        reply = await talk.line()
        await talk.finished()
    check(reply["text"] == FIRST_REPLY and reply["reply_to"] == sent["id"], "The phone got another reply.")
    check(not calls[other.name].done(), f"{other.name} got something too.")
    screen.said("Phone shows", reply["text"])
    screen.passed(f"{one.name}'s reply is on the phone. {other.name} got nothing, and still waits.")
    return one, other, calls[other.name]


async def second_request(screen: Screen, phone: Phone, one: Host, other: Host, other_waits: Waiting) -> None:
    async with step("the second request arrives"):
        talk = await phone.send(SECOND)
        sent = await talk.line()
        screen.said(f"{PERSON} writes", SECOND)
        got = await other_waits
    check([m["text"] for m in got] == [SECOND], f"{other.name} got something else.")
    screen.said(f"{other.name} gets", got[0]["text"])
    async with step("each host has its own request"):
        held = [(await host.tool("wait_for_messages", timeoutMs=0))["messages"] for host in (one, other)]
    check([[m["text"] for m in messages] for messages in held] == [[FIRST], [SECOND]], "A request has two holders.")
    screen.passed(f"It came out decrypted in {other.name} alone; {one.name} holds the first one alone.")

    async with step("the question reaches the phone"):
        widget = {"type": "widget.standard", "v": 1, "id": "spend", "kind": "confirm", "spec": {"title": QUESTION}}
        await other.tool("send_widget", widgetJson=widget, sourceMessageId=sent["id"])
        asked = await talk.line()
        await talk.finished()
    check(asked["kind"] == "widget" and asked["widget"]["spec"]["title"] == QUESTION, "The phone got another widget.")
    screen.said("Phone shows", f"{QUESTION} [yes / no]")
    async with step("the answer reaches the host"):
        await other.tool("mark_processed", messageId=sent["id"])
        answer_comes = _wait(other)
        talk = await phone.answer("yes")
        answered = await talk.line()
        screen.said(f"{PERSON} answers", "yes")
        got = await answer_comes
    check([m["message_id"] for m in got] == [answered["id"]], f"{other.name} got another message.")
    response = got[0].get("widget_response") or {}
    check(response.get("ref") == "spend" and response.get("value") is True, f"{other.name} got another answer.")
    screen.passed(f"The phone has shown the question; {other.name} has its answer.")
    async with step("the last reply reaches the phone"):
        await _reply(other, THANKS, answered["id"])
        reply = await talk.line()
        await talk.finished()
    check(reply["text"] == THANKS, "The phone got another reply.")
    screen.said("Phone shows", reply["text"])
    screen.passed(f"{other.name}'s reply is on the phone.")
    async with step("the requests are marked processed"):
        await one.tool("mark_processed", messageId=(held[0][0]["message_id"]))
        await other.tool("mark_processed", messageId=answered["id"])
        status = await one.tool("get_status")
    check(status["pending_requests"] == 0 and status["uncertain_sends"] == [], "Something is left over.")
    screen.passed("All requests are marked processed; none is left.")


def show_evidence(stage: Stage, screen: Screen, token: str) -> None:
    folder = stage.home / "relay"
    seen = evidence.messages(folder)
    for message in seen:
        size = f"{message.size:,} bytes"
        screen.said(
            "Relay", f"{message.sender[:10]}… to {message.recipient[:10]}…, {size}: {message.payload_b64[:24]}…"
        )
    check(len(seen) == 6 and all(m.encrypted for m in seen), "The relay has other messages than were sent.")
    screen.passed(f"Its database has all {len(seen)} messages, and each of them is encrypted.")
    ids = {message.id for message in seen}
    check(evidence.found_in(folder, ids) == ids, "The search does not find what is there.")
    texts = evidence.words(TEXTS)
    check(not evidence.found_in(folder, texts), "The relay can read something.")
    screen.passed(
        f"In all its files, a search finds each message's id, and none of the texts nor any of {len(texts)} of their"
        " words and sentences, whether as they are or in base64."
    )
    check(not evidence.found_in(folder, {token}), "The relay has the agent's token as it is.")
    screen.passed("The agent's token is not in there either; the relay keeps its hash.")
    check(not evidence.found_in(stage.paths.state, {*texts, *ids, token}), "The daemon's folder can be read.")
    screen.passed("The daemon's own folder (store, log) has no text, id or token that can be read.")
    screen.note(f"What the relay does know: the names “{PERSON}” and “{AGENT}”, who writes to whom, when and how much.")


async def _status(host: Host, wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Asks for the status until it is as wanted."""
    while not wanted(await host.tool("get_status")):  # noqa: ASYNC110 - another process's state: nothing tells of it
        await asyncio.sleep(_POLL)


def _wait(host: Host) -> Waiting:
    async def work() -> list[dict[str, Any]]:
        while True:
            result = await host.tool("wait_for_messages", timeoutMs=30_000)
            if result["messages"]:
                messages: list[dict[str, Any]] = result["messages"]
                return messages

    waiting = asyncio.create_task(work())
    waiting.add_done_callback(lambda task: task.cancelled() or task.exception())  # it may fail when nobody looks
    return waiting


async def _reply(host: Host, text: str, source: str) -> None:
    state = (await host.tool("send_message", text=text, sourceMessageId=source))["state"]
    check(state in ("queued", "sending", "submitted"), f"{host.name}'s reply is {state}.")
