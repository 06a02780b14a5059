"""The whole daemon: ready when it serves, sockets of the service manager, and stopping with everybody attached."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pacerelled.sd_notify import notify

from .human import Human
from .polling import until
from .process import Daemon, Host, Manager, daemon
from .scripted_relay import ScriptedRelay

# Makes itself the daemon, so that LISTEN_PID is right: the first words are the descriptors to hand over.
LISTEN = """
import os, sys
names, fds = sys.argv[1], [int(n) for n in sys.argv[2].split(",")]
spare = [os.dup(fd) for fd in fds]
high = [os.dup2(fd, 100 + i, inheritable=False) for i, fd in enumerate(spare)]
for number, fd in enumerate(high):
    os.dup2(fd, 3 + number, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(fds)), LISTEN_FDNAMES=names)
os.execv(sys.executable, [sys.executable, "-m", "pacerelled", *sys.argv[3:]])
"""


def arguments(name: str, **given: Any) -> dict[str, Any]:
    return {"name": name, "arguments": given}


async def stop_in_time(running: Daemon) -> str:
    """Five seconds is what the daemon promises; nothing else is timed."""
    started = time.monotonic()
    running.signal()
    assert await running.ended() == 0
    assert time.monotonic() - started < 5.0
    assert not running.paths.mcp_sock.exists()
    assert not running.paths.control_sock.exists()
    assert running.paths.lock.read_text() == ""
    return await running.errors()


async def test_ready_is_said_when_it_serves_and_stopping_when_it_stops(tmp_path: Path) -> None:
    manager = Manager(tmp_path / "notify")
    running = await Daemon(tmp_path, env={"NOTIFY_SOCKET": str(tmp_path / "notify")}).start()
    try:
        await manager.told("READY=1")
        host = await (await Host.connect(running)).initialize()
        assert (await running.status())["daemon"]["pid"] == running.process.pid
        await host.close()
        await stop_in_time(running)
        assert manager.read()[-1] == "STOPPING=1"
        assert manager.said.count("READY=1") == 1
    finally:
        manager.close()
        await running.kill()


def test_notify_without_or_with_a_dead_manager(tmp_path: Path) -> None:
    assert not notify("READY=1", {})
    assert not notify("READY=1", {"NOTIFY_SOCKET": "vsock:2:1"})
    assert not notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        name = f"pacerelled-test-{os.getpid()}"
        if sys.platform == "linux":
            manager.bind(f"\0{name}")
            assert notify("READY=1", {"NOTIFY_SOCKET": f"@{name}"})
            assert manager.recv(100) == b"READY=1"


@pytest.mark.parametrize("names", ["mcp:control", "pacerelled.socket:pacerelled.socket"])
async def test_sockets_of_the_service_manager_are_used_and_left(tmp_path: Path, names: str) -> None:
    running = Daemon(tmp_path)
    folder = running.paths.state
    folder.mkdir(parents=True)
    sockets = []
    for path in (running.paths.mcp_sock, running.paths.control_sock):
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(str(path))
        sock.listen()
        sockets.append(sock)
    numbers = [sock.fileno() for sock in sockets]
    # Somebody connects before the daemon is there: that is what socket activation is for.
    early = asyncio.create_task(asyncio.open_unix_connection(str(running.paths.mcp_sock)))
    try:
        await running.start(
            command=(sys.executable, "-c", LISTEN, names, ",".join(map(str, numbers))), pass_fds=numbers
        )
        await running.serving()
        host = await (await Host.connect(running)).initialize()
        running.signal()
        assert await running.ended() == 0
        assert running.paths.mcp_sock.exists()
        assert running.paths.control_sock.exists()
        await host.close()
    finally:
        await running.kill()
        _, writer = await early
        writer.close()
        for sock in sockets:
            sock.close()


async def test_a_descriptor_that_is_no_listening_socket_is_refused(tmp_path: Path) -> None:
    running = Daemon(tmp_path)
    with socket.socket(socket.AF_UNIX) as sock:
        number = sock.fileno()
        code, said = await running.run(command=(sys.executable, "-c", LISTEN, "mcp", str(number)), pass_fds=(number,))
    assert code == 78
    assert "not a listening Unix stream socket" in said


async def test_stopping_with_idle_and_waiting_hosts_attached(tmp_path: Path, relay: ScriptedRelay) -> None:
    async with daemon(tmp_path) as running:
        silent = await asyncio.open_unix_connection(str(running.paths.mcp_sock))  # has not said hello
        greeted = await Host.connect(running)
        agent = {"agent_id": "a1", "token": "token", "base_url": relay.url}
        idle = await (await Host.connect(running, **agent)).initialize()
        waiting = await (await Host.connect(running, **agent)).initialize()
        waiting.send("tools/call", arguments("wait_for_messages", timeoutMs=30000))
        poll = await asyncio.open_unix_connection(str(running.paths.control_sock))
        poll[1].write(b"GET /v1/events?wait_s=30 HTTP/1.1\r\nHost: x\r\n\r\n")
        await relay.connected()
        await asyncio.sleep(0.1)
        said = await stop_in_time(running)
        for host in (greeted, idle, waiting):
            with_rest = await host.reader.read()
            assert b'"result"' not in with_rest  # the shim makes its call again at the next daemon
            await host.close()
        for _, writer in (silent, poll):
            writer.close()
        assert "token" not in said
        assert "Traceback" not in said
        async with daemon(tmp_path) as second:
            assert [a["agent_id"] for a in (await second.status())["agents"]] == ["a1"]


async def test_a_stop_over_control_sock(tmp_path: Path) -> None:
    async with daemon(tmp_path) as running:
        reader, writer = await asyncio.open_unix_connection(str(running.paths.control_sock))
        writer.write(b"POST /v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
        assert b"202" in await reader.readline()
        writer.close()
        assert await running.ended() == 0
        assert not running.paths.control_sock.exists()


async def test_stopping_while_the_relay_does_not_answer(tmp_path: Path) -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    async with await asyncio.start_server(deaf, "127.0.0.1", 0) as relay, daemon(tmp_path) as running:
        url = f"http://127.0.0.1:{relay.sockets[0].getsockname()[1]}"
        host = await Host.connect(running, agent_id="a1", token="token", base_url=url)
        assert host.welcome["pacerelle"] == "welcome"
        await stop_in_time(running)
        await host.close()


async def test_the_environment_s_agent_is_there_after_the_start_and_its_token_in_no_log(
    tmp_path: Path, relay: ScriptedRelay
) -> None:
    env = {
        "PACERELLE_AGENT_ID": "a1",
        "PACERELLE_AGENT_TOKEN": "secret-of-the-agent",
        "PACERELLE_BASE_URL": relay.url,
    }
    async with daemon(tmp_path, "--log-level", "debug", env=env) as running:
        await relay.connected("secret-of-the-agent")
        human = await Human.meet(relay)
        await relay.push(human.frame("words that stay secret", id="m1"), token="secret-of-the-agent")
        await relay.push("garbage with secret words", token="secret-of-the-agent")
        await until(lambda: relay.acked == ["m1"])

        async def quarantined() -> bool:
            return bool((await running.status())["agents"][0]["quarantined"] == 1)

        await until(quarantined)
        said = await stop_in_time(running)
    assert "serves" in said
    for secret in ("secret", "m1", "ada", json.dumps(human.conversation)):
        assert secret not in said
    for path in running.paths.state.iterdir():
        if path.is_file():
            assert b"secret" not in path.read_bytes()


async def test_a_bad_agent_in_the_environment_is_said(tmp_path: Path) -> None:
    code, said = await Daemon(tmp_path, env={"PACERELLE_AGENT_ID": "no/agent"}).run()
    assert code == 1
    assert "no agent id" in said
    assert "Traceback" not in said


async def test_more_signals_change_nothing(tmp_path: Path) -> None:
    async with daemon(tmp_path) as running:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
            running.signal(number)
        assert await running.ended() == 0
        assert "Traceback" not in await running.errors()
