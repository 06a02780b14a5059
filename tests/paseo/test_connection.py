"""Finding the daemon, signing in, and what the bridge says when there is none."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from pacerelled.errors import PaseoError, PaseoRefused, PaseoUnavailable
from pacerelled.paseo.connection import PaseoConnection
from pacerelled.paseo.settings import PaseoSettings
from pacerelled.paseo.target import find_target
from tests.paseo.scene import Scene
from tests.paseo.scripted import ScriptedPaseo, until


def write_pid(paseo: ScriptedPaseo, *, listen: str | None = None, pid: int | None = None) -> None:
    about = {"pid": pid or os.getpid(), "listen": listen or f"127.0.0.1:{paseo.port}", "hostname": "host"}
    (paseo.home / "paseo.pid").write_text(json.dumps(about))


async def connect(settings: PaseoSettings, env: dict[str, str]) -> PaseoConnection:
    connection = PaseoConnection(lambda: find_target(settings, env))
    connection.start()
    try:
        await until(lambda: connection.state == "connected" or connection.problem, "an end")
    finally:
        await connection.stop()
    return connection


async def test_the_daemon_is_found_by_its_own_file(paseo: ScriptedPaseo) -> None:
    write_pid(paseo)
    connection = await connect(PaseoSettings(), {"PASEO_HOME": str(paseo.home)})
    assert connection.server is not None
    assert connection.server.features == {"providersSnapshot"}
    assert connection.target is not None
    assert (connection.target.url, connection.target.sign_in) == (paseo.url, "none")
    hello = paseo.hellos[-1]
    assert hello["clientId"]
    assert "auth" not in hello
    assert None not in hello.values()


@pytest.mark.parametrize("where", ["environment", "settings"])
async def test_a_password_signs_in(paseo: ScriptedPaseo, where: str) -> None:
    paseo.password = "open.sesame"
    in_settings = "open.sesame" if where == "settings" else "wrong"  # the environment wins
    settings = PaseoSettings(daemon_url=paseo.url, home=paseo.home, password=in_settings)
    env = {"PASEO_PASSWORD": "open.sesame"} if where == "environment" else {}
    connection = await connect(settings, env)
    assert connection.server is not None
    assert paseo.hellos[-1]["auth"] == {"kind": "password", "password": "open.sesame"}
    assert "sesame" not in repr(settings) + repr(connection.target)


async def test_the_local_credential_goes_only_to_the_daemon_that_wrote_it(paseo: ScriptedPaseo) -> None:
    paseo.password = "unknown to us"
    (paseo.home / "local-credential").write_text("A" * 43 + "\n")
    write_pid(paseo)
    env = {"PASEO_HOME": str(paseo.home)}
    assert (await connect(PaseoSettings(), env)).server is not None
    assert paseo.hellos[-1]["auth"] == {"kind": "localCredential", "token": "A" * 43}
    elsewhere = find_target(PaseoSettings(daemon_url=f"ws://127.0.0.1:{paseo.port + 1}/ws"), env)
    assert (elsewhere.sign_in, elsewhere.secret) == ("none", None)
    remote = find_target(PaseoSettings(daemon_url=f"ws://example.org:{paseo.port}/ws"), env)
    assert remote.secret is None
    write_pid(paseo, pid=2**22 + 1)  # nobody: the port may be somebody else's by now
    assert find_target(PaseoSettings(), env).secret is None
    for broken in ("", "{", "[]", '{"listen": 5}', '{"pid": true, "listen": "x:1"}'):
        (paseo.home / "paseo.pid").write_text(broken)
        assert find_target(PaseoSettings(), env).url == "ws://127.0.0.1:6767/ws"
    for listen, url in (("0.0.0.0:7001", "ws://127.0.0.1:7001/ws"), ("[::1]:7001", "ws://[::1]:7001/ws")):
        write_pid(paseo, listen=listen)
        assert find_target(PaseoSettings(), env).url == url


@pytest.mark.parametrize(("password", "words"), [(None, "without a password"), ("wrong one", "from config.toml")])
async def test_a_daemon_that_does_not_let_us_in_is_a_status(
    paseo: ScriptedPaseo, tmp_path: Path, password: str | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    paseo.password = "right"
    scene = Scene(tmp_path, paseo, password=password)
    await scene.start(connected=False)
    await until(lambda: scene.bridge.status()["connection"] == "refused", "the refusal")
    status = scene.bridge.status()
    assert words in status["problem"]
    assert "PASEO_PASSWORD" in status["hint"]
    with pytest.raises(PaseoError) as caught:
        await scene.bridge.test()
    error = caught.value
    assert words in error.message
    logged = [each.getMessage() for each in caplog.records if not each.name.startswith("websockets.server")]
    assert "wrong one" not in f"{logged} {status} {error.message}"
    paseo.password = None  # it lets everybody in now
    await scene.connected()
    await scene.stop()


async def test_a_missing_daemon_is_a_status_and_it_is_found_when_it_comes(paseo: ScriptedPaseo, tmp_path: Path) -> None:
    await paseo.stop()
    scene = Scene(tmp_path, paseo)
    await scene.start(connected=False)
    await until(lambda: scene.bridge.status()["problem"], "the status")
    assert scene.bridge.status()["connection"] in ("disconnected", "connecting")
    assert paseo.url in scene.bridge.status()["problem"]
    (warning,) = await scene.bridge.warnings()
    assert paseo.url in warning["message"]
    assert "paseo daemon start" in warning["hint"]
    with pytest.raises(PaseoUnavailable) as caught:
        await scene.bridge.looks._client.connection.look("fetch_agents_request", timeout=0.05)
    assert "paseo daemon start" in caught.value.hint
    await paseo.start()
    await scene.connected()
    assert scene.bridge.status()["problem"] is None
    assert await scene.bridge.warnings() == []
    await scene.stop()


async def test_the_test_shows_how_it_signed_in_and_not_with_what(paseo: ScriptedPaseo, scene: Scene) -> None:
    paseo.add()
    shown = await scene.bridge.test()
    assert shown["agents"] == 1
    assert shown["version"] == "0.1.65-beta.5"
    assert (shown["sign_in"], shown["credential"]) == ("none", None)
    assert shown["can"] == {"steer": False, "environment": False}
    paseo.steers = paseo.takes_env = True
    (paseo.home / "local-credential").write_text("SECRETSECRETSECRETxy")
    write_pid(paseo)
    shown = await scene.bridge.test()
    assert shown["can"] == {"steer": True, "environment": True}
    assert (shown["sign_in"], shown["credential"]) == ("local credential", "…xy (20 characters)")
    assert "SECRET" not in str(shown)
    assert len(paseo.agents) == 1


async def test_stopping_ends_at_once_whatever_is_under_way(scene: Scene, paseo: ScriptedPaseo) -> None:
    paseo.bad.silent.add("fetch_agent_request")
    agent_id = paseo.add()
    await paseo.push("agent_update", {"kind": "upsert", "agent": paseo.agents[agent_id]})
    await paseo.push("agent_update", {"kind": "remove", "agentId": agent_id})
    waiting = asyncio.create_task(scene.tool("paseo_wait_for_events", timeout_sec=200))
    await until(lambda: paseo.asked("fetch_agent_request"), "the request")
    await asyncio.wait_for(scene.bridge.stop(), 20)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("paseo-")]


async def test_a_request_that_the_daemon_refuses_says_so_in_its_words(scene: Scene) -> None:
    connection: Any = scene.bridge.looks._client.connection
    with pytest.raises(PaseoRefused, match="Unknown request schema"):
        await connection.ask("no_such_request")
