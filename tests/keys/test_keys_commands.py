"""login, logout, rekey and keys status, with the real relay and daemon; and a token on a command line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import pacerelle_shim
from pacerelle_phone.model import PairedAgent
from tests.backup.commands import done, pacerelle
from tests.daemon.process import daemon
from tests.e2e.stack import Stack, until


async def paired(machine: Stack) -> PairedAgent:
    phone = await machine.phone("ada")
    machine.configure(f'base_url = "{machine.relay_url}"\nkeyring = false\n')
    return await phone.create_agent("home")


async def agent_row(machine: Stack) -> dict[str, Any]:
    [row] = (await done(machine.home, "agent", "list"))["agents"]
    found: dict[str, Any] = row
    return found


async def test_in_out_and_in_again(machine: Stack) -> None:
    agent = await paired(machine)
    answer = await done(machine.home, "login", agent.agent_id, stdin=agent.agent_token)
    assert answer["agent"]["connection"] == "connected"
    assert (answer["token"]["source"], answer["keyring"]["state"]) == ("given", "off")
    keys = await done(machine.home, "keys", "status")
    assert keys["store_key"] == {"source": "file", "place": str(machine.paths.key_file)}
    [token] = keys["tokens"]
    assert (token["login"], token["source"], token["visible"]) == ("ok", "given", False)
    assert agent.agent_token not in json.dumps(keys)

    answer = await done(machine.home, "logout")
    assert answer["agent_id"] == agent.agent_id
    assert answer["still_in"] is None
    await until(lambda: _is(machine, "disconnected", "needed"), "the end of the connection")
    code, answer, _ = await pacerelle(machine.home, "login", stdin="wrong")
    assert (code, answer["error"]["code"]) == (4, "token_refused")
    answer = await done(machine.home, "login", stdin=agent.agent_token)
    assert answer["agent"]["connection"] == "connected"
    code, answer, _ = await pacerelle(machine.home, "login", stdin="")
    assert (code, answer["error"]["code"]) == (1, "failed")


async def _is(machine: Stack, connection: str, login: str) -> bool:
    row = await agent_row(machine)
    return (row["connection"], row["login"]) == (connection, login)


async def test_another_key_while_a_host_works(machine: Stack) -> None:
    """The daemon is stopped and started again; the host notices nothing but a pause."""
    agent = await paired(machine)
    host = await machine.host(agent)
    await host.connected()
    before, pid = machine.paths.key_file.read_bytes(), machine.daemon_pid()
    answer = await done(machine.home, "rekey")
    assert answer == {
        "version": 1,
        "store_key": {"source": "file", "place": str(machine.paths.key_file)},
        "restarted": True,
    }
    assert machine.paths.key_file.read_bytes() != before
    assert machine.daemon_pid() != pid
    await host.connected()
    await host.stop()
    await machine.stop_daemon()
    answer = await done(machine.home, "rekey")
    assert answer["restarted"] is False
    assert machine.daemon_pid() is None


async def test_keys_without_a_daemon(tmp_path: Path) -> None:
    answer = await done(tmp_path, "keys", "status")
    assert answer["store_key"] == {"source": None, "place": None}
    assert (answer["keyring"]["state"], answer["tokens"]) == ("absent", None)
    assert not (tmp_path / "root").exists(), "looking makes nothing"
    code, answer, _ = await pacerelle(tmp_path, "rekey")
    assert (code, answer["error"]["code"]) == (1, "not_possible")


async def test_a_credential_is_named_and_survives_a_logout_until_the_next_start(tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    (credentials / "pacerelled-token-a1").write_text("secret-token\n")
    env = {
        "CREDENTIALS_DIRECTORY": str(credentials),
        "PACERELLE_AGENT_ID": "a1",
        "PACERELLE_BASE_URL": "http://127.0.0.1:9",
    }
    async with daemon(tmp_path, env=env):
        [token] = (await done(tmp_path, "keys", "status"))["tokens"]
        assert (token["source"], token["place"]) == ("credential", "pacerelled-token-a1")
        answer = await done(tmp_path, "logout")
        assert (answer["still_in"], answer["place"]) == ("credential", "pacerelled-token-a1")
        [token] = (await done(tmp_path, "keys", "status"))["tokens"]
        assert (token["source"], token["login"]) == (None, "needed")


@pytest.mark.parametrize("option", ["--token=", "--token "])
async def test_a_token_on_a_command_line_works_and_is_said_once(machine: Stack, option: str, tmp_path: Path) -> None:
    agent = await paired(machine)
    shim = Path(pacerelle_shim.__file__).with_name("__main__.py")
    said = tmp_path / "said"
    wrapper = tmp_path / "host.sh"
    wrapper.write_text(
        f"#!/bin/sh\nexec {sys.executable} -I -S {shim} --agent-id {agent.agent_id} {option}{agent.agent_token}"
        f" --store-root {machine.root} 2> {said}\n"
    )
    import asyncio

    process = await asyncio.create_subprocess_exec(
        "/bin/sh", str(wrapper), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin", "HOME": str(machine.home)},
    )  # fmt: skip
    try:

        async def noted() -> bool:
            if machine.daemon_pid() is None:
                return False
            code, status, _ = await pacerelle(machine.home, "status")
            return code == 0 and [w["code"] for w in status["health"]["warnings"]] == ["token_visible"]

        await until(noted, "the note in the status")
        assert said.read_text().count("--token") == 1
        assert agent.agent_token not in said.read_text()
        [token] = (await done(machine.home, "keys", "status"))["tokens"]
        assert (token["source"], token["visible"]) == ("host", True)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()
