"""A shim whose daemon is a service: it asks the service manager, and helps itself only where that fails."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.shim.shim_host import INITIALIZE, Daemon, World, a_world, line_of, until


@pytest.fixture
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory(prefix="shim-") as home:
        async with a_world(Path(home)) as world:
            yield world


def is_service(world: World, script: str) -> None:
    command = [sys.executable, "-c", f"import os, sys, time\nos.chdir({str(world.root)!r})\n{script}"]
    (world.state / "service.json").write_text(json.dumps({"manager": "systemd", "start": command}))


async def test_the_service_manager_is_asked_and_no_daemon_started(world: World) -> None:
    is_service(
        world,
        "open('asked', 'w').close()\nwhile os.path.exists('asked') and not os.path.exists('open'): time.sleep(0.02)",
    )
    host = await world.host()
    await host.send(line_of("initialize", INITIALIZE, id=1))
    await until((world.root / "asked").exists, "the question")
    daemon = Daemon(world.socket)
    await daemon.start()
    (world.root / "open").touch()
    try:
        connection = await daemon.accept()
        request = await connection.read()
        await connection.answer(request, {"served": True})
        assert (await host.read())["result"] == {"served": True}
        assert world.starts() == []
    finally:
        await daemon.close()


async def test_one_that_refuses_is_done_without(world: World) -> None:
    is_service(world, "print('Failed to connect to bus', file=sys.stderr)\nsys.exit(1)")
    host = await world.host()
    assert "result" in await host.initialize()
    assert len(world.starts()) == 1
    assert "Failed to connect to bus" in (world.state / "pacerelled.log").read_text()


@pytest.mark.parametrize("text", ["", "[]", '{"start": "systemctl"}', '{"start": []}', '{"start": ["/no/such"]}'])
async def test_a_record_that_is_of_no_use_is_no_hindrance(world: World, text: str) -> None:
    (world.state / "service.json").write_text(text)
    host = await world.host()
    assert "result" in await host.initialize()
    assert len(world.starts()) == 1


async def test_a_service_that_does_not_answer_is_named_with_its_log(world: World) -> None:
    is_service(world, "sys.exit(0)")
    daemon = Daemon(world.socket)
    await daemon.start()
    try:
        host = await world.host(command=world.patient(START_WAIT=0.5))
        await asyncio.wait_for(daemon.accept(welcome=False), 30)
        error = (await host.call("initialize", INITIALIZE))["error"]
        assert "does not answer" in error["message"]
        assert "`pacerelle service logs`" in error["message"]
    finally:
        await daemon.close()
