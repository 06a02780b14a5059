"""`pacerelle doctor` as a process: with a daemon, without one, with one that hangs, with one of another version."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import stat
import sys
from pathlib import Path

import pytest

from tests.cli.world import Home, World, home, world
from tests.e2e.stack import Stack

__all__ = ["home", "world"]


async def doctor(home_path: Path, root: Path, *words: str) -> tuple[int, str]:
    env = {"HOME": str(home_path), "PATH": os.environ["PATH"], "PACERELLED_KEYRING": "off"}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pacerelle_cli", "--store-root", str(root), "doctor", *words),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await asyncio.wait_for(child.communicate(), 120)
    return child.returncode or 0, out.decode()


async def asked(home_path: Path, root: Path) -> tuple[int, dict[str, list[str]], str]:
    code, out = await doctor(home_path, root, "--json")
    body = json.loads(out)
    assert body["ok"] is (code == 0)
    found: dict[str, list[str]] = {}
    for check in body["checks"]:
        assert check["state"] in ("ok", "note", "failed", "skipped")
        assert check["remedy"] or check["state"] in ("ok", "skipped"), check
        found.setdefault(check["check"], []).append(check["state"])
    return code, found, out


async def test_a_machine_where_all_is_well(machine: Stack) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    host = await machine.host(agent)
    await host.connected()
    await phone.send(agent.agent_id, "the canary's words")
    await host.tool("wait_for_messages", timeoutMs=20000)
    code, found, out = await asked(machine.home, machine.root)
    assert code == 0, out
    assert {name for name, states in found.items() if states != ["ok"] * len(states)} <= {"host", "token", "disk"}
    expected = (
        "python version folder lock socket daemon runtime store disk keyring token proxy dns tls clock http webhook"
    )
    assert {*expected.split(), "store key", "store log", "round trip", "health", "service", "host"} == set(found)

    report = machine.home / "report.txt"
    code, text = await doctor(machine.home, machine.root, "--report", str(report))
    assert (code, stat.S_IMODE(report.stat().st_mode)) == (0, 0o600)
    assert "All is well." in text
    whole = report.read_text()
    assert "serves (pid" in whole
    for shown in (text, whole, out):
        for secret in (agent.agent_token, "canary", machine.paths.key_file.read_text().strip(), agent.agent_id):
            assert secret not in shown
    assert str(machine.home) not in whole
    assert (await doctor(machine.home, machine.root, "--report", str(report)))[0] == 1, "it replaces no file"
    assert report.read_text() == whole


async def test_a_relay_that_is_away(machine: Stack) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    host = await machine.host(agent)
    await host.connected()
    await phone.close()
    await machine.relay.kill()
    code, found, _ = await asked(machine.home, machine.root)
    assert (code, found["relay"], found["round trip"]) == (1, ["failed"], ["failed"])
    assert found["store"] == ["ok"]


async def test_without_a_daemon_its_program_is_asked(machine: Stack) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    host = await machine.host(agent)
    await host.connected()
    host.kill()
    await machine.stop_daemon()
    code, found, out = await asked(machine.home, machine.root)
    assert code == 0, out
    assert (found["daemon"], found["store"], found["clock"]) == (["note"], ["ok"], ["ok"])
    assert "round trip" not in found
    assert machine.daemon_pid() is None, "nobody started one"

    machine.configure("claim_leas = 1\n")
    code, found, out = await asked(machine.home, machine.root)
    assert (code, found["settings"]) == (1, ["failed"])
    assert "claim_lease" in out


async def test_where_nothing_was_ever_done_nothing_is_made(home: Home) -> None:
    _, found, _ = await asked(home.path, home.store_root)
    assert (found["folder"], found["store"], found["daemon"]) == (["note"], ["note"], ["note"])
    assert list(home.path.iterdir()) == []


async def test_a_daemon_that_hangs_is_said_to(machine: Stack) -> None:
    host = await machine.host(None)
    pid = machine.daemon_pid()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        code, found, out = await asked(machine.home, machine.root)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert (code, found["daemon"], found["checkup"]) == (1, ["failed"], ["skipped"])
    assert f"kill -CONT {pid}" in out
    host.kill()


async def test_a_daemon_of_another_version_is_asked_what_it_knows(world: World) -> None:
    await world.agent()
    code, found, out = await asked(world.path, world.store_root)
    assert found["checkup"] == ["skipped"]
    assert "cannot say" in out
    assert found["daemon"] == ["ok"]
    assert code in (0, 1)


@pytest.mark.parametrize("answer", [b"", b"nonsense\n", b"HTTP/1.0 200 OK\r\n\r\n[]", b"HTTP/1.0 200 OK\r\n\r\n{}"])
async def test_a_broken_answer_is_a_line_and_no_traceback(home: Home, answer: bytes) -> None:
    home.state.mkdir(parents=True, mode=0o700)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    async with await asyncio.start_unix_server(serve, home.state / "control.sock"):
        code, text = await doctor(home.path, home.store_root)
    assert "Traceback" not in text, text
    assert code in (0, 1)
