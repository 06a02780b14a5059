"""The command line with the real daemon, a real relay and a phone."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pacerelle_phone.files import File
from tests.cli.world import Home
from tests.e2e.stack import Stack, stack, until


@pytest.fixture
async def machine(home: Home) -> AsyncIterator[Stack]:
    async with stack(home.path) as running:
        yield running


@pytest.fixture
def cli(home: Home, machine: Stack) -> Home:
    """Commands that talk to the machine's daemon."""
    return At(home.path, machine.root)


class At(Home):
    def __init__(self, path: Path, root: Path) -> None:
        super().__init__(path)
        self.root = root

    @property
    def store_root(self) -> Path:
        return self.root


async def test_a_persons_way_through_the_commands(machine: Stack, cli: Home) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    added = await cli.run(
        *("agent", "add", agent.agent_id, "--base-url", machine.relay_url, "--token-stdin"),
        stdin=agent.agent_token.encode(),
    )
    assert (added.code, added.out) == (0, f"Added {agent.agent_id}: connected.\n"), added.err
    assert added.err.startswith("Started pacerelled (pid ")

    status = await cli.run("status", "--json")
    body = json.loads(status.out)
    assert (status.code, body["version"], body["daemon"]["pid"]) == (0, 1, machine.daemon_pid())
    assert (await cli.run("status")).out.startswith("OK  pacerelled ")

    data = os.urandom(200_000)
    question = await phone.send(agent.agent_id, "what is\nthis? \x1b[31m", files=[File("pic ü.png", data, "image/png")])

    async def arrived() -> bool:
        return bool(json.loads((await cli.run("inbox", "--json")).out)["messages"])

    await until(arrived, "the request")
    shown = (await cli.run("inbox")).out.splitlines()
    assert shown[0].startswith(question)
    assert [line.strip() for line in shown[1:3]] == ["what is", "this? \\x1b[31m"]
    assert "pic ü.png (image/png, 200.0 kB)" in shown[3]
    saved = await cli.run("save", question)
    assert (saved.out, (cli.path / "pic ü.png").read_bytes() == data) == ("pic ü.png\n", True)

    sent = await cli.run("send", "a picture", "--reply-to", question, "--wait", "20")
    assert (sent.code, sent.out.endswith(": the relay has it\n")) == (0, True), sent.err
    assert (await phone.wait_reply(question, 20)).text == "a picture"
    back = await cli.run("send", "yours again", "--file", "pic ü.png", "--reply-to", question, "--wait", "20")
    assert back.code == 0, back.err
    got = await phone.wait_for(lambda m: bool(m.files), 20)
    assert (got.text, got.files[0].name) == ("yours again", "pic ü.png")

    wrong = await cli.run("send", "--widget", '{"kind": "confirm"}', "--reply-to", question)
    assert (wrong.code, "widget" in wrong.err) == (1, True)
    assert (await cli.run("done", question, "--note", "by hand")).code == 0
    assert (await cli.run("inbox")).out == "Nothing waits.\n"
    history = (await cli.run("history")).out
    assert "processed: by hand" in history
    assert "submitted" in history
    assert (await cli.run("quarantine", "list")).out == "Nothing is in quarantine.\n"

    pid = machine.daemon_pid()
    assert (await cli.run("stop")).out == f"pacerelled (pid {pid}) has ended.\n"
    assert (await cli.run("status")).code == 3


async def test_a_host_is_shown_with_what_it_holds(machine: Stack, cli: Home) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    host = await machine.host(agent, "Some Host")
    await host.connected()
    question = await phone.send(agent.agent_id, "do it")
    await host.tool("wait_for_messages", timeoutMs=20000)
    (row,) = json.loads((await cli.run("hosts", "--json")).out)["hosts"]
    assert (row["client"], row["claims"], row["agent_id"]) == ("Some Host", 1, agent.agent_id)
    assert "held by Some Host 1" in (await cli.run("inbox")).out
    (status,) = json.loads((await cli.run("status", "--json")).out)["agents"]
    assert (status["pending"], status["claimed"]) == (1, 1)
    assert (await cli.run("done", question)).code == 0  # a person may, whoever holds it


async def test_tokens_and_relays_that_fail(machine: Stack, cli: Home) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    add = ("agent", "add", agent.agent_id, "--base-url", machine.relay_url, "--token-stdin")
    refused = await cli.run(*add, stdin=b"not-the-token")
    assert (refused.code, "The relay refused the token." in refused.err) == (4, True)
    assert (await cli.run("status")).code == 4
    assert (
        await cli.run("agent", "token", agent.agent_id, "--token-stdin", stdin=agent.agent_token.encode())
    ).code == 0

    async def code(wanted: int) -> bool:
        return (await cli.run("status")).code == wanted

    await until(lambda: code(0), "the relay's welcome")
    question = await phone.send(agent.agent_id, "hello")

    async def arrived() -> bool:
        return "hello" in (await cli.run("inbox")).out

    await until(arrived, "the request")
    await machine.relay.kill()
    await until(lambda: code(5), "the loss of the relay")
    later = await cli.run("send", "later", "--reply-to", question, "--wait", "0.2")
    assert (later.code, "queued; it goes out" in later.out) == (0, True)
    assert (await cli.run("agent", "remove", agent.agent_id, "--purge", "--yes")).code == 0
    assert (await cli.run("status")).code == 4


async def test_many_commands_start_one_daemon(machine: Stack, cli: Home) -> None:
    results = await asyncio.gather(*(cli.run("send", "x") for _ in range(6)))
    assert {result.code for result in results} == {4}  # there is no agent yet
    assert sum(result.err.startswith("Started pacerelled") for result in results) == 1
    assert (await cli.run("stop")).out.endswith("has ended.\n")


async def test_a_daemon_that_cannot_start_says_why(machine: Stack, cli: Home) -> None:
    machine.configure("log_level = 5\n")
    result = await cli.run("send", "x")
    assert result.code == 1
    assert result.err.startswith("Error: pacerelled could not start: pacerelled: Setting `log_level` in ")
    assert machine.daemon_pid() is None
