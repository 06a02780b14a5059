"""The bridge in a daemon's own process: MCP sessions, control.sock, the command line."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pacerelled.agent.access import AccessTokens
from pacerelled.agent.model import Session
from pacerelled.agent.wanted import Wanted
from pacerelled.errors import InvalidArgument
from pacerelled.mcp.paseo.resources import CodingResources
from pacerelled.mcp.paseo.schemas import LOOKING, TOOLS
from pacerelled.mcp.paseo.tools import CodingTools
from pacerelled.mcp.schemas import TOOLS as OTHERS
from pacerelled.paseo.guard import Scope
from tests.daemon.process import Daemon, Host
from tests.paseo.scene import Scene
from tests.paseo.scripted import ScriptedPaseo, until


@pytest.fixture
async def daemon(tmp_path: Path, paseo: ScriptedPaseo) -> AsyncIterator[Daemon]:
    """With a bridge to the scripted Paseo, whose agents may be started in `code`."""
    (tmp_path / "code").mkdir()
    running = Daemon(tmp_path)
    running.paths.state.mkdir(mode=0o700, parents=True)
    running.paths.config.write_text(
        f'[paseo]\ndaemon_url = "{paseo.url}"\nhome = "{paseo.home}"\nallowed_roots = ["{tmp_path / "code"}"]\n'
        'password = "not to be seen"\ndefault_provider = "mock"\n'
    )
    await running.start()
    try:
        await running.serving()
        yield running
    finally:
        await running.kill()


async def cli(daemon: Daemon, *arguments: str) -> tuple[int, str, str]:
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pacerelle_cli", "--store-root", str(daemon.root), "paseo", *arguments),
        env=daemon.env | {"TZ": "UTC"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(child.communicate(), 60)
    return child.returncode or 0, out.decode(), err.decode()


async def tool(host: Host, name: str, **arguments: Any) -> dict[str, Any]:
    answer = await host.call("tools/call", {"name": name, "arguments": arguments})
    result: dict[str, Any] = answer["result"]
    return result


async def test_a_host_starts_an_agent_and_the_terminal_shows_it(
    daemon: Daemon, paseo: ScriptedPaseo, tmp_path: Path
) -> None:
    await until(lambda: paseo.clients, "the bridge")
    host = await Host.connect(daemon)
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    assert "paseo_create_agent" in (await host.call("initialize", params))["result"]["instructions"]
    host.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
    listed = (await host.call("tools/list", {}))["result"]["tools"]
    assert [each["name"] for each in listed] == [*OTHERS, *TOOLS]
    made = await tool(host, "paseo_create_agent", cwd=str(tmp_path / "code"), prompt="Mend\nthe build")
    agent_id = made["structuredContent"]["agent"]["id"]
    done = await tool(host, "paseo_wait_for_agent", agent_id=agent_id, timeout_sec=25)
    assert done["structuredContent"]["message"] == "Done: Mend\nthe build"
    wrong = await tool(host, "paseo_create_agent", cwd="/", prompt="x")
    assert wrong["isError"]
    assert "allowed_roots" in wrong["content"][0]["text"]
    assert "A right call" not in wrong["content"][0]["text"]
    odd = await tool(host, "paseo_get_agent", agentId="x")
    assert "did you mean agent_id?" in odd["content"][0]["text"]
    await host.close()

    code, out, _ = await cli(daemon, "status")
    assert code == 0
    assert out.startswith("connected  Paseo 0.1.65-beta.5 at ws://127.0.0.1:")
    code, out, _ = await cli(daemon, "agents", "--label", "origin=pacerelle", "--status", "idle")
    assert code == 0
    assert agent_id[:8] in out
    assert "finished" in out
    code, out, _ = await cli(daemon, "agents", "--all", "--json")
    assert json.loads(out)["agents"][0]["id"] == agent_id
    code, out, _ = await cli(daemon, "timeline", agent_id[:8])
    assert out == "user: Mend\n  the build\nagent: Done: Mend\n  the build\n"
    code, out, _ = await cli(daemon, "test")
    assert code == 0
    assert "Signed in: password … (14 characters), from config.toml" in out
    assert "paseo_create_agent" in out
    code, out, err = await cli(daemon, "timeline", "nope")
    assert (code, out) == (1, "")
    assert "no Paseo agent" in err

    await paseo.stop()
    code, out, _ = await cli(daemon, "status", "--json")
    assert code == 1
    assert json.loads(out)["paseo"]["connection"] != "connected"
    assert "paseo" in [warning["code"] for warning in (await daemon.status())["health"]["warnings"]]
    code, _, err = await cli(daemon, "test")
    assert code == 1
    assert "paseo daemon start" in err
    daemon.signal()
    assert await daemon.ended() == 0
    assert "not to be seen" not in await daemon.errors()


async def test_the_bridge_is_off_without_a_table(tmp_path: Path) -> None:
    running = await Daemon(tmp_path).start()
    try:
        await running.serving()
        host = await (await Host.connect(running)).initialize()
        listed = (await host.call("tools/list", {}))["result"]["tools"]
        assert [each["name"] for each in listed] == list(OTHERS)
        assert (await tool(host, "paseo_list_agents"))["isError"]
        await host.close()
        code, out, _ = await cli(running, "status")
        assert (code, out) == (0, "The bridge is off: config.toml has no table [paseo].\n")
        code, _, err = await cli(running, "agents")
        assert code == 1
        assert "[paseo]" in err
    finally:
        await running.kill()


async def test_who_may_only_look_gets_the_looking_tools(scene: Scene) -> None:
    session = Session(id="s", transport="http")
    looking = CodingTools(scene.bridge, session, lambda: "a1", Scope(read_only=True))
    assert tuple(looking.specs) == LOOKING
    assert looking.withheld == set(TOOLS) - set(LOOKING)
    assert tuple(CodingTools(scene.bridge, session, lambda: "a1", Scope()).specs) == tuple(TOOLS)


async def test_a_host_is_told_that_agents_changed_came_and_went(daemon: Daemon, paseo: ScriptedPaseo) -> None:
    await until(lambda: paseo.clients, "the bridge")
    host = await Host.connect(daemon)
    params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    hello = await host.call("initialize", params)
    assert hello["result"]["capabilities"]["resources"]["listChanged"] is True
    host.write({"jsonrpc": "2.0", "method": "notifications/initialized"})
    templates = (await host.call("resources/templates/list", {}))["result"]["resourceTemplates"]
    assert "paseo://agents/{id}" in [each["uriTemplate"] for each in templates]
    agent_id = paseo.add("Watched")
    await host.call("resources/subscribe", {"uri": "paseo://agents"})
    await host.call("resources/subscribe", {"uri": f"paseo://agents/{agent_id}"})
    assert "error" in await host.call("resources/subscribe", {"uri": "paseo://agents/a/b"})

    async def told() -> str:
        message = json.loads(await asyncio.wait_for(host.reader.readline(), 30))
        return str(message["method"] + " " + message.get("params", {}).get("uri", "")).removeprefix("notifications/")

    await paseo.update(agent_id)
    expected = {
        "resources/list_changed ",
        "resources/updated paseo://agents",
        f"resources/updated paseo://agents/{agent_id}",
    }
    while expected:  # the connection may be told of meanwhile
        expected.discard(await told())
    listed = (await host.call("resources/list", {}))["result"]["resources"]
    assert ("Watched", f"paseo://agents/{agent_id}") in [(each.get("title"), each["uri"]) for each in listed]
    read = await host.call("resources/read", {"uri": f"paseo://agents/{agent_id}"})
    content = json.loads(read["result"]["contents"][0]["text"])
    assert content["agent"]["title"] == "Watched"
    read = await host.call("resources/read", {"uri": "paseo://agents"})
    assert json.loads(read["result"]["contents"][0]["text"])["events_cursor"]
    assert "error" in await host.call("resources/read", {"uri": "paseo://agents/nobody"})
    await host.close()


async def test_a_token_with_labels_sees_only_its_agents_as_resources(scene: Scene, paseo: ScriptedPaseo) -> None:
    mine = paseo.add("Mine", labels={"origin": "hermes"})
    other = paseo.add("Other")
    resources = CodingResources(scene.bridge, Scope(labels={"origin": "hermes"}))
    for agent_id in (mine, other):
        await paseo.update(agent_id)
        await scene.until_told(agent_id, "created")
    assert [each.uri for each in resources.listed()] == ["paseo://agents", f"paseo://agents/{mine}"]
    assert resources.changed(mine) == ["paseo://agents", f"paseo://agents/{mine}"]
    assert resources.changed(other) == []
    assert resources.came_or_went() is True
    assert resources.came_or_went() is False
    assert [each["id"] for each in (await resources.read("paseo://agents"))["agents"]] == [mine]
    with pytest.raises(InvalidArgument):
        await resources.read(f"paseo://agents/{other}")


async def test_a_token_for_some_coding_agents_hears_of_no_others(
    scene: Scene, paseo: ScriptedPaseo, tmp_path: Path
) -> None:
    mine = paseo.add("Mine", labels={"origin": "hermes"})
    other = paseo.add("Other")
    for agent_id in (mine, other):
        await paseo.update(agent_id)
        await scene.until_told(agent_id, "created")
    wanted = Wanted(only_of="a1", only_coding={"origin": "hermes"})
    assert [e["data"]["agent_id"] for e in await scene.log() if wanted(e)] == [mine]
    tokens = AccessTokens(scene.store, check_agent=lambda agent_id: None)
    made, secret = await tokens.create("hermes", "read", labels={"origin": "hermes"})
    again = AccessTokens(scene.store, check_agent=lambda agent_id: None)
    await again.start()
    found = again.find(secret)
    assert found is not None
    assert found.as_dict()["labels"] == made.labels == {"origin": "hermes"}
    with pytest.raises(InvalidArgument):
        await tokens.create("much", "read", labels={"x" * 200: "y"})
    await again.stop()
