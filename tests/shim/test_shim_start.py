"""Starting the daemon, and saying why it cannot be."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
from pathlib import Path

import psutil
import pytest

import pacerelle_shim
from pacerelle_protocol.errors import LocalProtocolError
from pacerelle_protocol.local import local_paths

from .shim_host import INITIALIZE, World, line_of, until


async def test_the_daemon_is_detached_and_inherits_little(world: World) -> None:
    world.state.rmdir()
    leaked = os.open(os.devnull, os.O_RDONLY)
    env = world.env(
        PACERELLE_AGENT_TOKEN="secret-token", PACERELLED_LOG_LEVEL="debug", LC_ALL="C.UTF-8", HTTPS_PROXY="http://p",
        https_proxy="http://p", SSH_AUTH_SOCK="/s", ANTHROPIC_API_KEY="k", XDG_RUNTIME_DIR="/run/x",
    )  # fmt: skip
    host = await world.host("--agent-id", "a", env=env, pass_fds=[leaked])
    os.close(leaked)
    await host.initialize()
    (found,) = world.starts()
    assert found["ppid"] != host.process.pid
    assert found["sid"] not in (os.getsid(0), found["ppid"], host.process.pid)
    assert found["cwd"] == "/"
    assert found["stdin"] == os.devnull
    assert set(found["open"]) - {4, 5} == {0, 1, 2, 3}  # the script has its own file open
    assert found["argv"][1:] == ["--store-root", str(world.root)]
    expected = {"HOME", "PATH", "PACERELLED_LOG_LEVEL", "LC_ALL", "HTTPS_PROXY", "https_proxy", "XDG_RUNTIME_DIR"}
    assert found["env"].keys() - {"LC_CTYPE"} == expected
    assert stat.S_IMODE(world.state.stat().st_mode) == 0o700
    assert {stat.S_IMODE((world.state / name).stat().st_mode) for name in ("pacerelled.log", "start.lock")} == {0o600}
    assert psutil.Process(host.process.pid).children(recursive=True) == []
    host.stdin.close()
    assert await host.ended() == 0
    assert len(world.daemons()) == 1


async def test_twenty_at_once_start_one(world: World) -> None:
    (world.root / "slow").write_text("0.3")
    hosts = await asyncio.gather(*(world.host() for _ in range(20)))
    answers = await asyncio.gather(*(host.initialize() for host in hosts))
    assert len({answer["result"]["pid"] for answer in answers}) == 1
    assert len({answer["result"]["session"] for answer in answers}) == 20
    assert len(world.starts()) == 1


async def test_the_starter_may_die(world: World) -> None:
    (world.root / "slow").write_text("1")
    first = await world.host()
    await until(world.starts, "a start")
    first.process.kill()
    second = await world.host()
    assert (await second.initialize())["result"]["pid"] == world.starts()[0]["pid"]


async def test_a_daemon_that_ends_is_quoted_without_secrets_and_tried_again(world: World) -> None:
    complaint = "pacerelled: The store's key is missing\n  Put store.key back; secret-token"
    (world.root / "fail").write_text(complaint)
    host = await world.host("--token=secret-token")
    await until(world.starts, "a start")
    error = (await host.call("initialize", INITIALIZE))["error"]
    expected = "The Pacerelle daemon cannot be started: pacerelled: The store's key is missing Put store.key back; …"
    assert error["message"] == f"{expected} Its log: {world.state / 'pacerelled.log'}"
    (world.root / "fail").unlink()
    await asyncio.sleep(2.1)  # for so long, the failure is shared
    assert "result" in await host.initialize()


async def test_twenty_share_one_failure(world: World) -> None:
    (world.root / "fail").write_text("no")
    hosts = await asyncio.gather(*(world.host() for _ in range(20)))
    answers = await asyncio.gather(*(host.call("initialize", INITIALIZE) for host in hosts))
    assert all("cannot be started: no" in answer["error"]["message"] for answer in answers)
    assert len(world.starts()) < 10


async def test_no_daemon_installed(world: World) -> None:
    (world.shim.parent.parent / "pacerelled" / "__main__.py").unlink()
    host = await world.host()
    answer = await host.call("initialize", INITIALIZE)
    assert "pacerelled" in answer["error"]["message"]
    assert "cannot be" in answer["error"]["message"]


async def test_no_interpreter(world: World) -> None:
    host = await world.host(command=[os.path.realpath(world.python), "-I", "-S", str(world.shim)])
    await host.initialize()
    assert world.starts()[0]["executable"] == str(world.python)  # found through where the shim lies
    world.daemons()[0].kill()
    world.python.unlink()
    error = (await host.call("a"))["error"]
    assert "No such file or directory" in error["message"]


async def test_store_root_that_cannot_be(world: World) -> None:
    (world.home / "file").touch()
    host = await world.host("--store-root", str(world.home / "file" / "root"))
    error = (await host.call("initialize", INITIALIZE))["error"]
    assert "Not a directory" in error["message"]
    assert "--store-root" in error["message"]


async def test_home_that_does_not_exist_is_made(world: World) -> None:
    world.root = world.home / "new" / "home" / ".pacerelle" / "mcp"
    host = await world.host(env={"HOME": str(world.home / "new" / "home")})
    await host.initialize()
    assert stat.S_IMODE((world.root / "pacerelled").stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
async def test_home_that_is_read_only(world: World) -> None:
    home = world.home / "home"
    home.mkdir(mode=0o500)
    host = await world.host(env={"HOME": str(home)})
    assert "Permission denied" in (await host.call("initialize", INITIALIZE))["error"]["message"]


async def test_a_file_at_the_sockets_path_is_left_alone(world: World) -> None:
    world.socket.write_text("precious")
    host = await world.host()
    error = (await host.call("initialize", INITIALIZE))["error"]
    assert "is not a socket; it was left alone" in error["message"]
    assert world.socket.read_text() == "precious"


async def test_a_socket_path_that_is_too_long(world: World) -> None:
    host = await world.host("--socket", "/" + "x" * 200)
    error = (await host.call("initialize", INITIALIZE))["error"]
    assert "too long" in error["message"]


async def test_another_socket(world: World) -> None:
    path = world.home / "other.sock"
    host = await world.host(f"--socket={path}")
    await host.initialize()
    assert world.starts()[0]["argv"][1:] == ["--store-root", str(world.root), "--socket", str(path)]


@pytest.mark.parametrize(
    ("flags", "named", "secret"),
    [
        (["--tokn", "hunter2"], "--tokn", "hunter2"),
        (["--tokn=hunter2"], "--tokn", "hunter2"),
        (["hunter2"], "no option", "hunter2"),
        (["--agent-id"], "--agent-id", "hunter2"),
        (["--no-e2ee=1"], "--no-e2ee", "hunter2"),
        (["-x"], "no option", "hunter2"),
    ],
)
async def test_wrong_flags_are_named_to_the_host(world: World, flags: list[str], named: str, secret: str) -> None:
    host = await world.host(*flags)
    for attempt in range(2):
        error = (await host.call("initialize", INITIALIZE, id=attempt))["error"]
        assert named in error["message"]
        assert secret not in error["message"]
    host.stdin.close()
    assert await host.ended(2.0) == 2
    assert named.encode() in await host.stderr.read()
    assert world.starts() == []


async def test_ends_at_eof_while_the_daemon_starts(world: World) -> None:
    (world.root / "slow").write_text("5")
    host = await world.host()
    await host.send(line_of("initialize", INITIALIZE, id=1))
    await until(world.starts, "a start")
    host.stdin.close()
    assert await host.ended(2.0) == 0


async def test_a_slow_daemon_is_not_started_twice(world: World) -> None:
    (world.root / "slow").write_text("1.5")
    hosts = [await world.host() for _ in range(3)]
    await asyncio.gather(*(host.initialize() for host in hosts))
    assert len(world.starts()) == 1


async def test_a_daemon_stopped_by_a_signal_is_waited_for(world: World) -> None:
    host = await world.host()
    await host.initialize()
    (daemon,) = world.daemons()
    daemon.send_signal(signal.SIGSTOP)
    other = await world.host(command=world.patient(START_WAIT=0.5))
    assert "does not answer" in (await other.call("initialize", INITIALIZE))["error"]["message"]
    await host.send(line_of("a", id=1))
    daemon.send_signal(signal.SIGCONT)
    assert (await host.read())["id"] == 1
    assert "result" in await other.initialize()
    assert len(world.starts()) == 1


@pytest.mark.parametrize(
    ("root", "sock", "home"),
    [
        (None, None, "/home/x"),
        (None, None, ""),
        (None, None, None),
        ("~", None, "/home/x"),
        ("~/a/../b", None, "/home/x"),
        ("~x/a", None, "/home/x"),
        ("relative", None, "/home/x"),
        ("/a//b/./c/", None, None),
        ("/" + "l" * 80, None, None),
        ("/" + "l" * 79, None, None),
        ("/" + "é" * 60, None, None),
        ("/r", "~/s.sock", "/home/x"),
        ("/r", "s.sock", None),
    ],
)
def test_paths_are_those_of_the_protocol_package(
    root: str | None, sock: str | None, home: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("PACERELLE_STORE_ROOT", raising=False)
    if home is not None:
        monkeypatch.setenv("HOME", home)
    given = {name: value for name, value in (("store_root", root), ("socket", sock)) if value is not None}
    ours = pacerelle_shim.Daemon(given)
    try:
        theirs = local_paths(root, sock, env=os.environ, uid=os.getuid())
    except LocalProtocolError:
        pytest.fail("a path that the daemon refuses")
    assert (ours.state, ours.path, ours.log) == (str(theirs.state), str(theirs.mcp_sock), str(theirs.log))
