"""The command line as a process among others: no daemon, a suspended one, pipes, terminals, and what it imports."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import socket
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.cli.world import DEADLINE, Home, World, command, until
from tests.control.hub_double import listens, request

DOUBLE = Path(__file__).parents[1] / "control" / "hub_double.py"


# The daemon is away


@pytest.mark.parametrize(
    "args", [["status"], ["hosts"], ["inbox"], ["agent", "list"], ["done", "x"], ["quarantine", "list"]]
)
async def test_without_a_daemon_nothing_is_started(home: Home, args: list[str]) -> None:
    result = await home.run(*args)
    assert (result.code, result.out) == (3, "")
    assert result.err.splitlines()[0] == "Error: pacerelled is not running."
    assert not home.store_root.exists()


async def test_without_a_daemon_json_says_so_too(home: Home) -> None:
    for args in (["status", "--json"], ["--json", "status"]):
        result = await home.run(*args)
        assert result.code == 3
        assert json.loads(result.out)["error"]["code"] == "not_running"


async def test_stop_without_a_daemon_is_no_failure(home: Home) -> None:
    result = await home.run("stop")
    assert (result.code, result.out) == (0, "pacerelled was not running.\n")


async def test_a_stale_socket_and_lock_are_no_daemon(home: Home) -> None:
    home.state.mkdir(parents=True)
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(home.state / "control.sock"))
    dead.close()
    ended = await asyncio.create_subprocess_exec("true")
    await ended.wait()
    (home.state / "lock").write_text(f"{ended.pid}\n")
    assert (await home.run("status")).err.splitlines()[0] == "Error: pacerelled is not running."


async def test_a_daemon_that_does_not_listen_yet_is_named(home: Home) -> None:
    home.state.mkdir(parents=True)
    (home.state / "lock").write_text(f"{os.getpid()}\n")
    result = await home.run("status")
    assert (result.code, f"(pid {os.getpid()}) is alive" in result.err) == (3, True)


async def test_a_suspended_daemon_is_named_by_its_pid(home: Home) -> None:
    home.state.mkdir(parents=True)
    paths = home.state / "control.sock", home.state / "lock"
    child = await asyncio.create_subprocess_exec(sys.executable, str(DOUBLE), *map(str, paths))
    try:
        await until(lambda: listens(paths[0]))
        child.send_signal(signal.SIGSTOP)
        result = await home.run("status")
        assert result.code == 3
        assert f"pacerelled (pid {child.pid}) did not answer" in result.err
        assert f"kill -CONT {child.pid}" in result.err
        child.send_signal(signal.SIGCONT)
        assert (await home.run("hosts")).code == 0
        result = await home.run("stop")
        assert (result.code, result.out) == (0, f"pacerelled (pid {child.pid}) has ended.\n")
        assert await asyncio.wait_for(child.wait(), DEADLINE) == 0
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


@pytest.mark.parametrize(
    "answer",
    [b"", b"nonsense\n", b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{", b"HTTP/1.0 500 Oops\r\n\r\n<html>"],
)
async def test_a_broken_answer_is_an_error_without_a_traceback(home: Home, answer: bytes) -> None:
    home.state.mkdir(parents=True)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, home.state / "control.sock"):
        result = await home.run("status")
    assert result.code in (1, 3)
    assert result.err.startswith("Error: pacerelled ")
    assert "Traceback" not in result.err


# Pipes and terminals


async def test_a_reader_that_stops_reading_is_no_error(world: World) -> None:
    agent = await world.agent()
    agent.requests = [request(n, "x" * 2000) for n in range(1, 400)]
    for args in ("inbox --limit 500", "inbox --limit 500 --json", "--help"):
        line = " ".join(command(*args.split())) + " | head -n 1"
        child = await asyncio.create_subprocess_shell(
            line, env=world.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(child.communicate(), DEADLINE)
        assert (len(out.splitlines()), err) == (1, b"")


async def on_terminal(home: Home, columns: int, *args: str, **env: str) -> str:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    child = await asyncio.create_subprocess_exec(
        *command(*args), env=home.env(TERM="xterm-256color", **env), stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    try:
        while True:
            piece = await asyncio.wait_for(asyncio.to_thread(os.read, ours, 4096), DEADLINE)
            if not piece:
                break
            shown += piece
    except OSError:
        pass  # how Linux says that the terminal's other side is closed
    finally:
        os.close(ours)
        await asyncio.wait_for(child.wait(), DEADLINE)
    return shown.decode().replace("\r\n", "\n")


async def test_a_table_fits_the_terminal(world: World) -> None:
    await world.agent("agent-with-quite-a-long-name-0123456789")
    wide = (await on_terminal(world, 140, "status", NO_COLOR="1")).splitlines()
    assert wide[3].split()[:6] == ["agent-with-quite-a-long-name-0123456789", "connected", "ok", "4", "s", "ago"]
    narrow = await on_terminal(world, 50, "agent", "list", NO_COLOR="1")
    plain = narrow.replace("\x1b[1m", "").replace("\x1b[0m", "").splitlines()
    assert max(map(len, plain)) <= 50
    assert plain[0] == "agent: agent-with-quite-a-long-name-0123456789"
    assert "quarantined: 0" in plain


async def test_colour_only_on_a_terminal_and_only_if_wanted(world: World) -> None:
    await world.agent()
    assert "\x1b[32mOK" in await on_terminal(world, 100, "status")
    assert "\x1b[32m" not in await on_terminal(world, 100, "status", NO_COLOR="1")
    assert "\x1b" not in (await world.run("status")).out


async def test_a_terminal_that_does_not_know_a_character_gets_an_escape(world: World) -> None:
    (await world.agent()).requests = [request(1, "a → b ✓")]
    result = await world.run("inbox", env={"PYTHONIOENCODING": "latin-1"})
    assert (result.code, result.out.splitlines()[1]) == (0, "  a \\u2192 b \\u2713")


# What a command costs


@pytest.mark.parametrize("words", [["status"], ["status", "--json"], ["--json", "status"]])
async def test_the_short_way_to_status_ends_as_the_long_one(world: World, words: list[str]) -> None:
    """The other way has `--store-root`, which the short one does not take."""
    root = ["--store-root", str(world.store_root)]

    async def both() -> None:
        quick, slow = await world.run(*words), await world.run(*root, *words)
        assert (quick.code, quick.out, quick.err) == (slow.code, slow.out, slow.err)

    await both()
    agent = await world.agent(token=None)
    world.hub.problems = [{"code": "token_missing", "message": "No token.", "hint": "Log in.", "agent_id": "agent-1"}]
    await both()
    agent.connection = "reconnecting"
    await both()
    (world.state / "control.sock").unlink()
    await both()


@pytest.mark.parametrize(
    ("run", "also"),
    [
        ("from pacerelle_cli.root import root\nroot(['status'], standalone_mode=False)", set()),
        ("from pacerelle_cli.quick import status\nstatus(json=False)", {"click", "importlib.metadata"}),
    ],
)
async def test_status_imports_nothing_slow(world: World, run: str, also: set[str]) -> None:
    await world.agent()
    program = f"import sys\n{run}\nprint('imported', *sorted(m for m in sys.modules if '.' not in m), file=sys.stderr)"
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, env=world.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    _, err = await asyncio.wait_for(child.communicate(), DEADLINE)
    assert child.returncode == 0, err
    imported = set(err.decode().split("imported ")[1].split())
    slow = {
        "aiohttp",
        "asyncio",
        "cryptography",
        "email",
        "importlib_metadata",
        "mcp",
        "pacerelled",
        "rich",
        "sqlcipher3",
    }
    assert imported & (slow | also) == set()
    assert imported & {"ssl", "http", "subprocess", "agent_gateway_sdk", "ctypes"} == set()
