"""Sockets that a service manager keeps: the first call, a killed daemon, one that was there before; launchd."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from pacerelled.activation import by_launchd, launchd_descriptors
from pacerelled.errors import ConfigError
from pacerelled.servers.sockets import inherited_sockets
from tests.daemon.polling import until
from tests.daemon.process import Daemon, Host, Manager, daemon

from .handing import Sockets, ask


async def test_the_very_first_call_is_answered(tmp_path: Path) -> None:
    running = Daemon(tmp_path)
    with Sockets(running) as sockets:
        first = asyncio.create_task(ask(running, "GET", "/v1/status"))
        host = asyncio.create_task(Host.connect(running))
        await asyncio.sleep(0.1)  # so that both wait already
        try:
            await sockets.start(running)
            status, body = await first
            assert (status, body["daemon"]["pid"]) == (200, running.process.pid)
            assert (await host).welcome["pacerelle"] == "welcome"
            await (await host).close()
        finally:
            await running.kill()


async def test_who_calls_while_a_killed_daemon_is_replaced_is_answered_by_the_next(tmp_path: Path) -> None:
    first, second = Daemon(tmp_path), Daemon(tmp_path)
    with Sockets(first) as sockets:
        try:
            await sockets.start(first)
            await first.serving()
            first.signal(signal.SIGKILL)
            await first.ended()
            queued = asyncio.create_task(ask(first, "GET", "/v1/status"))
            await asyncio.sleep(0.1)
            await sockets.start(second)
            assert (await queued)[1]["daemon"]["pid"] == second.process.pid
        finally:
            await first.kill()
            await second.kill()


async def test_a_daemon_that_was_there_before_gives_way_to_the_service(tmp_path: Path) -> None:
    async with daemon(tmp_path) as before:
        host = await (await Host.connect(before)).initialize()
        service = Daemon(tmp_path)
        with Sockets(service) as sockets:
            try:
                await sockets.start(service)
                assert await before.ended() == 0
                await service.serving()
                assert (await service.status())["daemon"]["pid"] == service.process.pid
                assert await host.reader.read() == b""
                await host.close()
            finally:
                await service.kill()


async def test_ready_is_not_said_before_a_call_would_be_answered(tmp_path: Path) -> None:
    manager = Manager(tmp_path / "notify")
    running = Daemon(tmp_path, env={"NOTIFY_SOCKET": str(tmp_path / "notify")})
    with Sockets(running) as sockets:
        call = asyncio.create_task(ask(running, "GET", "/v1/status"))
        try:
            await sockets.start(running)
            await until(lambda: call.done() or "READY=1" in manager.read())
            assert (await call)[0] == 200
            await manager.told("READY=1")
        finally:
            manager.close()
            await running.kill()


class FakeLaunchd:
    """What launch_activate_socket(3) does, with the sockets that it is given."""

    def __init__(self, **sockets: list[int]) -> None:
        self._sockets = sockets
        self.freed = 0

    def launch_activate_socket(self, name: bytes, descriptors: Any, count: Any) -> int:
        numbers = self._sockets.pop(name.decode(), None)
        if numbers is None:
            return errno.ENOENT
        self._kept = (ctypes.c_int * len(numbers))(*numbers)
        ctypes.memmove(descriptors, ctypes.byref(ctypes.cast(self._kept, ctypes.POINTER(ctypes.c_int))), 8)
        ctypes.cast(count, ctypes.POINTER(ctypes.c_size_t))[0] = len(numbers)
        return 0

    def free(self, _: Any) -> None:
        self.freed += 1


def test_launchd_hands_its_sockets_over_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listening = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for number, sock in enumerate(listening):
        sock.bind(str(tmp_path / str(number)))
        sock.listen()
    spare = os.dup(listening[0].fileno())
    mcp, control = (sock.detach() for sock in listening)
    library = FakeLaunchd(mcp=[mcp, spare], control=[control])
    monkeypatch.setattr(ctypes, "CDLL", lambda *_, **__: library)
    given = inherited_sockets({"XPC_SERVICE_NAME": "pacerelled"})
    assert {name: sock.fileno() for name, sock in given.items()} == {"mcp": mcp, "control": control}
    assert library.freed == 2
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(spare)
    for sock in given.values():
        assert not sock.getblocking()
        sock.close()


def test_launchd_without_such_a_socket_is_named() -> None:
    with pytest.raises(ConfigError, match="No such file") as caught:
        launchd_descriptors(["mcp"], FakeLaunchd())
    assert "service install" in caught.value.hint


def test_only_our_own_agent_asks_launchd() -> None:
    assert not by_launchd({"XPC_SERVICE_NAME": "application.com.apple.Terminal.1"})
    assert not by_launchd({})
