"""The same with the real daemon: what the stand-in cannot show."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import psutil
import pytest

from .shim_host import INITIALIZE, SHIM, Host, World, line_of, until


@pytest.fixture
async def real(world: World) -> AsyncIterator[World]:
    yield world
    pid = owner(world)
    if pid is not None:
        psutil.Process(pid).kill()
        await until(lambda: owner(world) is None, "the daemon's end")


async def start(world: World) -> Host:
    env = world.env(PACERELLED_KEYRING="false")
    return await world.host(command=[sys.executable, "-I", "-S", str(SHIM)], env=env)


def owner(world: World) -> int | None:
    """The pid of the daemon that runs for this store root."""
    for process in psutil.process_iter(["cmdline", "status"]):
        if str(world.root) in (process.info["cmdline"] or []) and process.info["status"] != psutil.STATUS_ZOMBIE:
            return process.pid
    return None


async def test_calls_and_the_handshake_outlive_kills(real: World) -> None:
    hosts = [await start(real) for _ in range(3)]
    for host in hosts:
        assert (await host.initialize())["result"]["serverInfo"]
    for attempt in range(2):
        pid = owner(real)
        assert pid is not None
        for host in hosts:
            await host.send(line_of("tools/list", id=f"before {attempt}"))
        psutil.Process(pid).kill()
        for host in hosts:
            await host.send(line_of("tools/list", id=f"after {attempt}"))
        for host in hosts:
            ids = {(await host.read())["id"], (await host.read())["id"]}
            assert ids == {f"before {attempt}", f"after {attempt}"}
        assert owner(real) not in (None, pid)


async def test_the_daemons_own_words_reach_the_host(real: World) -> None:
    real.socket.write_text("precious")
    host = await start(real)
    error = (await host.call("initialize", INITIALIZE))["error"]
    assert "is not a socket" in error["message"]
    real.socket.unlink()
    (real.state / "config.toml").write_text("claim_leas = 1")
    await asyncio.sleep(2.1)  # for so long, the failure is shared
    error = (await host.call("initialize", INITIALIZE))["error"]
    assert "claim_lease" in error["message"]


async def test_a_store_that_does_not_open_is_named_though_the_socket_was_there(real: World) -> None:
    host = await start(real)
    await host.initialize()
    pid = owner(real)
    assert pid is not None
    psutil.Process(pid).kill()
    await until(lambda: owner(real) is None, "the daemon's end")
    for file in real.state.glob("store.db*"):
        file.write_bytes(b"\x55" * 8192)
    second = await start(real)
    error = (await second.call("initialize", INITIALIZE))["error"]
    assert "cannot be started" in error["message"]
    assert "store" in error["message"]
