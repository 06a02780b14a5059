"""Shim, daemon and command line of different versions (docs/local-protocol.md)."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from pacerelle_protocol.hello import PROTOCOL_VERSION
from tests.cli.world import Home
from tests.e2e.stack import Host, Stack, until
from tests.restart.machine import EraHost, answer_of

FAR: dict[str, Any] = {  # of a daemon to come: what is promised to stay, and what nobody knows yet
    "version": 7,
    "daemon": {"version": "9.0", "pid": 4711, "mood": "good"},
    "health": {"ok": False, "problems": [{"code": "unheard_of", "message": "Something new", "hint": "Do this."}]},
    "agents": [{"agent_id": "a1"}, {}],
    "hosts": [{"label": "codex 12"}],
}
OLD: dict[str, Any] = {"daemon": {"version": "0.0.1", "pid": 4711}, "health": {"ok": True, "problems": []}}


async def as_version(stack: Stack, version: int) -> Host:
    """A host whose shim speaks another version of the local protocol."""
    return await EraHost(stack, None, "skewed", "handshake", PROTOCOL=version).start(initialize=False)


@pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
async def test_a_shim_of_the_version_before_or_after_works_and_outlives_a_kill(bare: Stack, version: int) -> None:
    host = await as_version(bare, version)
    assert "result" in await answer_of(host, "initialize")
    bare.kill_daemon()
    assert "result" in await answer_of(host, "tools/list")


@pytest.mark.parametrize(
    ("version", "names"),
    [
        (PROTOCOL_VERSION - 2, ["pacerelle-mcp is too old", "restart the host"]),
        (PROTOCOL_VERSION + 2, ["the daemon is too old", "`pacerelle stop`"]),
    ],
)
async def test_a_version_too_far_away_says_who_must_be_upgraded_and_how(
    bare: Stack, version: int, names: list[str]
) -> None:
    host = await as_version(bare, version)
    for _ in range(2):  # each call is told so
        error = (await answer_of(host, "initialize"))["error"]
        for words in (*names, "pip install --upgrade pacerelled"):
            assert words in error["message"]
    assert bare.daemon_pid()  # which others can use
    await bare.host(None)


@asynccontextmanager
async def daemon_of_another_version(home: Home, answers: dict[str, tuple[int, Any]]) -> AsyncIterator[None]:
    """What listens at control.sock and holds the lock: a process that SIGTERM ends, and answers written by hand."""
    home.state.mkdir(mode=0o700, parents=True)
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "import time; time.sleep(60)")
    (home.state / "lock").write_text(str(process.pid))

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        status, body = answers.get(" ".join(head.split(" ")[:2]), (404, "What is that?"))
        text = (body if isinstance(body, str) else json.dumps(body)).encode()
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        if status == 202:
            process.terminate()
        await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, home.state / "control.sock")
    try:
        yield
    finally:
        server.close()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_status_of_a_newer_daemon_shows_what_it_knows(home: Home) -> None:
    async with daemon_of_another_version(home, {"GET /v1/status": (200, FAR)}):
        shown = await home.run("status")
        assert shown.code == 1
        for words in ("1 problem  pacerelled 9.0, pid 4711\n", "Something new", "Do this.", "a1", "codex 12"):
            assert words in shown.out
        assert "this pacerelle is older" in shown.err
        assert "pip install --upgrade pacerelled" in shown.err
        as_json = await home.run("status", "--json")
        assert (as_json.code, json.loads(as_json.out)) == (1, FAR)


async def test_status_of_an_older_daemon(home: Home) -> None:
    async with daemon_of_another_version(home, {"GET /v1/status": (200, OLD)}):
        shown = await home.run("status")
        assert (shown.code, shown.out) == (0, "OK  pacerelled 0.0.1, pid 4711\n\nNo host is attached.\n")
        assert "the daemon is older" in shown.err
        assert "pacerelle stop" in shown.err


@pytest.mark.parametrize(
    "answers",
    [
        {"POST /v1/stop": (202, {"stopping": True})},
        {"POST /v1/stop": (202, {})},
        {"POST /v1/stop": (405, {"error": "elsewhere now"})},
        {},
    ],
)
async def test_stop_stops_every_version(home: Home, answers: dict[str, tuple[int, Any]]) -> None:
    async with daemon_of_another_version(home, answers):
        pid = int((home.state / "lock").read_text())
        stopped = await home.run("stop", "--json")
        assert (stopped.code, json.loads(stopped.out)) == (0, {"version": 1, "stopped": True, "pid": pid}), stopped.err


async def test_our_own_daemon_keeps_the_promise(bare: Stack, home: Home) -> None:
    """The fields that other versions rely on."""
    await bare.host(None)
    async with bare.control() as control:
        async with control.get("/v1/status") as response:
            body = await response.json()
        assert isinstance(body["version"], int)
        assert (body["daemon"]["pid"], type(body["daemon"]["version"])) == (bare.daemon_pid(), str)
        assert set(body["health"]) >= {"ok", "problems"}
        assert all({"code", "message", "hint"} <= set(problem) for problem in body["health"]["problems"])
        pid = bare.daemon_pid()
        async with control.post("/v1/stop") as response:  # without a body, as `curl -X POST` does it
            assert (response.status, (await response.json())["pid"]) == (202, pid)
    await until(lambda: bare.daemon_pid() != pid, "the daemon's end")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)
