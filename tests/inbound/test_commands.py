"""`pacerelle devices`, `allow` and `quarantine`, and the calls beneath them, over a real control.sock."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pacerelled.agent.agent import Agent
from pacerelled.servers.control import ControlServer
from pacerelled.servers.sockets import bind_unix
from tests.cli.world import Home, Result
from tests.daemon.core import Core
from tests.daemon.human import Human
from tests.daemon.scripted_relay import ScriptedRelay

from .seen import code, deliver, reborn, texts


@dataclass
class Shell:
    home: Home
    http: aiohttp.ClientSession

    async def run(self, *args: str, stdin: bytes = b"") -> Result:
        return await self.home.run(*args, stdin=stdin)

    async def json(self, *args: str) -> dict[str, Any]:
        result = await self.run(*args, "--json")
        assert result.code == 0, result.err
        found: dict[str, Any] = json.loads(result.out)
        assert found.pop("version") == 1
        return found

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        async with self.http.request(method, f"http://localhost/v1/agents/-{path}", json=body) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def shell(core: Core) -> AsyncIterator[Shell]:
    folder = Path(tempfile.mkdtemp(prefix="pc-"))  # pytest's own folders can be too deep for a socket's path
    home = Home(folder)
    home.state.mkdir(mode=0o700, parents=True)
    path = home.state / "control.sock"
    server = ControlServer(core.hub, bind_unix(path), paths={}, stop=lambda: None)
    await server.start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
        yield Shell(home, http)
    await server.stop()
    shutil.rmtree(folder)


async def test_devices_are_shown_compared_and_decided_about(
    agent: Agent, ada: Human, relay: ScriptedRelay, shell: Shell
) -> None:
    assert (await shell.run("devices", "list")).out == "Nobody has written yet.\n"
    assert "has written yet" in (await shell.run("devices", "verify", "ada")).err
    await deliver(agent, relay, ada.frame("one"))
    listed = (await shell.run("devices", "list")).out
    assert listed.splitlines()[1].split()[:4] == ["ada", "d1", "new", "0"]
    assert f"Safety code of ada, device d1: {code(ada)}" in listed

    declined = await shell.run("devices", "verify", "ada", stdin=b"n\n")
    assert declined.code == 1
    assert code(ada) in declined.err
    assert (await shell.json("devices", "list"))["devices"][0]["state"] == "new"
    assert (await shell.run("devices", "verify", "ada", stdin=b"y\n")).out == "ada, device d1 is verified.\n"
    assert "verified" in (await shell.run("inbox")).out
    nothing = await shell.run("devices", "trust", "ada", "d1")
    assert (nothing.code, nothing.err.splitlines()[0]) == (1, "Error: There is nothing to trust about ada, device d1.")

    new = await reborn(relay, ada)
    await deliver(agent, relay, new.frame("two"))
    listed = (await shell.run("devices", "list")).out
    assert f"another key since, with the code: {code(new)}" in listed
    status = await shell.run("status")
    assert status.code == 1
    assert "Device d1 of ada has another identity key; 1 of its messages are held" in status.out
    wrong = await shell.run("devices", "trust", "ada", "--code", "1234")
    assert (wrong.code, "safety code" in wrong.err) == (1, True)
    trusted = await shell.run("devices", "trust", "ada", "d1", stdin=b"y\n")
    assert code(new) in trusted.err
    assert trusted.out.splitlines() == [
        "ada, device d1 is trusted.",
        "Messages that were held and are requests now: 1.",
    ]
    assert await texts(agent) == ["one", "two"]

    forged = await reborn(relay, ada)
    await deliver(agent, relay, forged.frame("three"))
    refused = await shell.run("devices", "refuse", "ada", "--code", code(forged))
    assert refused.out.splitlines() == [
        "ada, device d1 stays with its known key.",
        "Messages in quarantine: 1. See: pacerelle quarantine list",
    ]
    blocked = await shell.json("devices", "block", "ada")
    assert (blocked["device"]["state"], blocked["accepted"]) == ("blocked", 0)
    assert "NOT AUTHORIZED" in (await shell.run("inbox")).out
    assert (await shell.json("devices", "trust", "ada", "--code", code(new)))["device"]["state"] == "new"


async def test_a_client_without_a_device_id_is_named_by_a_dash_beside_others(
    agent: Agent, ada: Human, relay: ScriptedRelay, shell: Shell
) -> None:
    older = await Human.meet(relay, conversation="c2", device=None)
    await deliver(agent, relay, ada.frame("one"), older.frame("two"))
    several = await shell.run("devices", "block", "ada")
    assert (several.code, "d1, -" in several.err) == (1, True)
    assert (await shell.json("devices", "block", "ada", "-"))["device"]["device_id"] is None
    assert "the client without a device id" in (await shell.run("devices", "list")).out


async def test_the_allow_list_is_kept_from_the_command_line(
    agent: Agent, ada: Human, relay: ScriptedRelay, shell: Shell
) -> None:
    assert "no list" in (await shell.run("allow", "list")).out
    assert await shell.json("allow", "add", "bob/../x") == {"on": True, "people": ["bob/../x"], "accepted": 0}
    await deliver(agent, relay, ada.frame("one"), ada.frame("two"))
    listed = (await shell.run("allow", "list")).out
    assert listed.splitlines()[1] == "  bob/../x"
    added = (await shell.run("allow", "add", "ada")).out
    assert added.splitlines()[-1] == "Messages that were held and are requests now: 2."
    assert await texts(agent) == ["one", "two"]
    assert (await shell.json("allow", "remove", "bob/../x"))["people"] == ["ada"]
    assert "empty" in (await shell.run("allow", "remove", "ada")).out
    assert await shell.json("allow", "list") == {"on": True, "people": []}
    assert "no list" in (await shell.run("allow", "off")).out


async def test_quarantine_is_worked_off_from_the_command_line(
    agent: Agent, ada: Human, relay: ScriptedRelay, shell: Shell
) -> None:
    assert (await shell.run("quarantine", "list")).out == "Nothing is in quarantine.\n"
    await agent.allow_list.add("bob")
    await deliver(agent, relay, ada.frame("secret \x1b[31mwords\nand more"), ada.frame("two"), ada.envelope("%%%"))
    rows = (await shell.json("quarantine", "list", "--reason", "not_allowed"))["quarantine"]
    assert [row["decrypted"] for row in rows] == [True, True]
    number = str(rows[0]["id"])
    shown = (await shell.run("quarantine", "show", number)).out
    assert "reason: not_allowed\n" in shown
    assert "device: d1\n" in shown
    assert "secret" not in shown
    with_text = (await shell.run("quarantine", "show", number, "--text")).out
    assert "  secret \\x1b[31mwords\n  and more\n" in with_text
    assert "text" not in (await shell.json("quarantine", "show", number))["message"]
    assert (await shell.json("quarantine", "show", number, "--text"))["message"]["text"].startswith("secret")
    undecrypted = str((await shell.json("quarantine", "list"))["quarantine"][2]["id"])
    assert "not decrypted" in (await shell.run("quarantine", "show", undecrypted, "--text")).out

    for wrong in (["retry"], ["retry", number, "--all"], ["drop"], ["drop", number, "--from", "ada"], ["show", "x"]):
        assert (await shell.run("quarantine", *wrong)).code == 2, wrong
    assert (await shell.run("quarantine", "show", "999")).code == 1
    retried = (await shell.run("quarantine", "retry", "--all")).out
    assert retried == "Requests now: 0. Still in quarantine: 3.\n"
    assert (await shell.run("quarantine", "drop", number, stdin=b"n\n")).code == 1
    assert (await shell.run("quarantine", "drop", number, stdin=b"y\n")).out == "Dropped: 1.\n"
    assert await shell.json("quarantine", "drop", "--reason", "bad_base64", "--yes") == {"dropped": 1}
    assert await shell.json("quarantine", "retry", "--reason", "not_allowed") == {"accepted": 0, "left": 1}
    assert await shell.json("quarantine", "drop", "--from", "ada", "--yes") == {"dropped": 1}


async def test_calls_that_are_wrong_are_refused(agent: Agent, ada: Human, relay: ScriptedRelay, shell: Shell) -> None:
    await deliver(agent, relay, ada.frame("one"))
    for method, path, body, status, error in (
        ("POST", "/devices/verify", {"user_id": "ada", "device_id": "d1"}, 400, "invalid_argument"),
        ("POST", "/devices/verify", {"user_id": "ada", "safety_code": "1"}, 404, "unknown_message"),
        ("POST", "/devices/verify", {"user_id": "ada", "device_id": "d1", "safety_code": "1"}, 400, "invalid_argument"),
        (
            "POST",
            "/devices/trust",
            {"user_id": "ada", "device_id": "d1", "safety_code": code(ada)},
            409,
            "not_possible",
        ),
        ("POST", "/devices/refuse", {"user_id": "ada", "device_id": "d1", "safety_code": "1"}, 409, "not_possible"),
        ("POST", "/devices/block", {"user_id": "ada", "device": "d1"}, 400, "invalid_argument"),
        ("POST", "/quarantine/drop", {}, 400, "invalid_argument"),
        ("POST", "/quarantine/retry", {"id": 7}, 404, "unknown_message"),
        ("POST", "/quarantine/retry", {"id": -7}, 400, "invalid_argument"),
        ("GET", "/quarantine/7", None, 404, "unknown_message"),
        ("GET", "/quarantine/7?text=yes", None, 400, "invalid_argument"),
        ("GET", "/quarantine/seven", None, 404, "not_found"),
    ):
        found = await shell.call(method, path, body)
        assert (found[0], found[1]["error"]["code"]) == (status, error), (method, path, body, found)
    assert await shell.call("GET", "/quarantine?reason=not_json") == (200, {"quarantine": []})
    assert await shell.call("PUT", "/allow/ada") == (200, {"on": True, "people": ["ada"], "accepted": 0})
