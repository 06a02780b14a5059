"""`pacerelle token` and the calls beneath it, over a real control.sock; and what `status` says of HTTP."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from pacerelled.servers.control import ControlServer
from pacerelled.servers.http.server import HttpServer
from pacerelled.servers.sockets import bind_unix
from tests.cli.world import Home
from tests.daemon.polling import until

from .served import Served


class Shell:
    def __init__(self, home: Home, http: aiohttp.ClientSession) -> None:
        self.home = home
        self.http = http

    async def json(self, *args: str, code: int = 0) -> dict[str, Any]:
        result = await self.home.run(*args, "--json")
        assert result.code == code, result.err
        found: dict[str, Any] = json.loads(result.out)
        assert found.pop("version") == 1
        return found

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, dict[str, Any]]:
        async with self.http.request(method, f"http://localhost{path}", json=body) as answer:
            return answer.status, await answer.json()


@pytest.fixture
async def shell(served: Served) -> AsyncIterator[Shell]:
    folder = Path(tempfile.mkdtemp(prefix="pc-"))  # pytest's own folders can be too deep for a socket's path
    home = Home(folder)
    home.state.mkdir(mode=0o700, parents=True)
    path = home.state / "control.sock"
    server = ControlServer(served.core.hub, bind_unix(path), paths={}, stop=lambda: None)
    await server.start()
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
        yield Shell(home, http)
    await server.stop()
    shutil.rmtree(folder)


async def test_a_token_is_made_shown_once_used_listed_and_revoked(served: Served, shell: Shell) -> None:
    made = await shell.home.run("token", "create", "laptop", "--agent", "a1")
    assert made.code == 0
    secret = made.out.strip()
    assert secret.startswith("pcl_")
    assert served.url in made.err
    async with served.raw(secret) as raw:
        await raw.initialize()
        (token,) = (await shell.json("token", "list"))["tokens"]
        assert (token["label"], token["scope"], token["agents"]) == ("laptop", "full", ["a1"])
        assert token["last_used_at"] is not None
        listed = await shell.home.run("token", "list")
        assert "laptop" in listed.out
        assert secret not in listed.out
        assert "raw 1 (laptop)" in (await shell.home.run("hosts")).out
        assert "Revoked laptop" in (await shell.home.run("token", "revoke", "laptop")).out
        assert (await raw.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}))[0] == 401
    assert "There is no token" in (await shell.home.run("token", "list")).out
    gone = await shell.json("token", "revoke", "laptop", code=1)
    assert gone["error"]["code"] == "unknown_token"


async def test_the_calls(shell: Shell) -> None:
    status, made = await shell.call("POST", "/v1/tokens", {"label": "a/b ü", "scope": "read"})
    assert (status, made["token"]["scope"], made["token"]["agents"]) == (201, "read", [])
    for body, argument in (
        ({}, "label"),
        ({"label": "x", "scope": "all"}, "scope"),
        ({"label": "x", "agents": "a1"}, "agents"),
        ({"label": "x", "agents": [1]}, "agents"),
        ({"label": "x\n"}, None),
    ):
        status, answer = await shell.call("POST", "/v1/tokens", body)
        if argument is None:
            assert status == 201
        else:
            assert (status, answer["error"]["argument"]) == (400, argument)
    assert (await shell.call("POST", "/v1/tokens", {"label": "y", "agents": ["a9"]}))[0] == 404
    assert (await shell.call("POST", "/v1/tokens", {"label": "a/b ü"}))[0] == 409
    status, tokens = await shell.call("GET", "/v1/tokens")
    assert [token["label"] for token in tokens["tokens"]] == ["a/b ü", "x"]
    status, gone = await shell.call("DELETE", "/v1/tokens/a%2Fb%20%C3%BC")
    assert (status, gone["token"]) == (200, made["token"])
    assert (await shell.call("DELETE", f"/v1/tokens/{made['token']['id']}"))[0] == 404


async def test_status_says_where_it_is_and_why_not(served: Served, shell: Shell) -> None:
    assert f"MCP over HTTP: {served.url}" in (await shell.home.run("status")).out
    await served.server.stop()
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        hub, port = served.core.hub, taken.getsockname()[1]
        served.server = HttpServer(hub, host="0.0.0.0", port=port, names=(), idle=1.0)
        served.server.start()
        await until(lambda: hub.http is not None and hub.http.problem, "the problem")
        shown = await shell.home.run("status")
        assert shown.code != 0
        assert f"port {port}: the port is in use" in shown.out
        assert "Warning: MCP over HTTP listens at 0.0.0.0" in shown.out
        status = await shell.json("status", code=shown.code)
        assert (status["http"]["on"], status["http"]["url"]) == (True, None)
        assert "http" in [problem["code"] for problem in status["health"]["problems"]]


async def test_a_port_that_gets_free_is_taken(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pacerelled.servers.http.server.RETRY_TIME", 0.02)
    await served.server.stop()
    hub = served.core.hub
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        served.server = HttpServer(hub, host="127.0.0.1", port=port, names=(), idle=1.0)
        served.server.start()
        await until(lambda: hub.http is not None and hub.http.problem, "the problem")
    await until(lambda: hub.http is not None and hub.http.url, "the port")
    assert hub.http is not None
    assert hub.http.problem is None
