"""Lines between a host and a daemon that is there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys

import psutil
import pytest

from .shim_host import DEADLINE, INITIALIZE, Daemon, World, line_of, until

MIB = 1 << 20


async def test_says_hello_with_the_settings_of_flags_and_environment(world: World, daemon: Daemon) -> None:
    env = world.env(PACERELLE_AGENT_ID="from-env", PACERELLE_AGENT_TOKEN="secret", PACERELLE_WS_URL="wss://w.example")
    host = await world.host("--agent-id=agent", "--base-url", "https://b.example", "--no-e2ee", env=env, cwd=world.home)
    hello = (await daemon.accept()).hello
    session = hello.pop("session")
    assert len(session) == 32
    assert int(session, 16) >= 0
    assert hello == {
        "pacerelle": "hello",
        "v": 1,
        "shim": "0.1.0",
        "pid": host.process.pid,
        "host": psutil.Process().name()[:15],
        "cwd": os.path.realpath(world.home),
        "agent_id": "agent",
        "token": "secret",
        "base_url": "https://b.example",
        "ws_url": "wss://w.example",
        "e2ee": False,
        "in_flight": None,
        "offers": None,
    }


async def test_hello_without_settings(world: World, daemon: Daemon) -> None:
    await world.host("--store-root", str(world.root), env={"HOME": str(world.home)})
    hello = (await daemon.accept()).hello
    assert [hello[name] for name in ("agent_id", "token", "base_url", "ws_url")] == [None] * 4
    assert hello["e2ee"] is True


@pytest.mark.parametrize("form", ["by path", "by module path", "-m", "command"])
async def test_every_way_to_run_it(world: World, daemon: Daemon, form: str) -> None:
    command = {
        "by path": [str(world.python), "-I", "-S", str(world.shim)],
        "by module path": [str(world.python), "-I", "-S", str(world.shim.with_name("__main__.py"))],
        "-m": [str(world.python), "-m", "pacerelle_shim"],
        "command": [os.path.join(os.path.dirname(sys.executable), "pacerelle-mcp")],
    }[form]
    host = await world.host(command=command)
    connection = await daemon.accept()
    await host.send(line_of("tools/list", id=1))
    await connection.answer(await connection.read())
    assert (await host.read())["id"] == 1


@pytest.mark.parametrize("flag", ["--help", "--version"])
async def test_help_and_version(world: World, flag: str) -> None:
    host = await world.host(flag)
    out, err = await host.process.communicate()
    assert (host.process.returncode, err) == (0, b"")
    assert out == b"0.1.0\n" if flag == "--version" else b"--store-root" in out


async def test_bytes_pass_untouched(world: World, daemon: Daemon) -> None:
    lines = [
        line_of("a", {"text": "\u2028 \0 \ud800 é"}, id="x\u2028"),
        '{"jsonrpc": "2.0",\t"id": 7 , "method":"b","params":{"t":"\u2028é"}}\r\n'.encode(),
        b"garbage\n",
        b"\xff\xfe\n",
        b"\n",
        b'{"jsonrpc":"2.0","id":1e400,"method":"c"}\n',
        b"[" * 100_000 + b"\n",
        b'{"id":NaN}\n',
    ]
    host = await world.host()
    connection = await daemon.accept()
    for line in lines:
        await host.send(line)
        assert await connection.read_line() == line
    back = ['{"jsonrpc":"2.0","id":7,"result":{"t":"\u2028\\ud800"}} \r\n'.encode(), b'{"id":"x\\u2028","error":{}}\n']
    for line in back:
        await connection.send_bytes(line)
        assert await host.stdout.readline() == line


async def test_lines_before_the_daemon_is_there_are_passed_when_it_is(world: World) -> None:
    (world.root / "fail").write_text("not yet")
    daemon = Daemon(world.socket)
    await daemon.start()
    host = await world.host()
    connection = await daemon.accept(welcome=False)
    await host.send(b"garbage\n" + line_of("a", id=1))
    await connection.send({"pacerelle": "welcome", "v": 1})
    assert {await connection.read_line(), await connection.read_line()} == {b"garbage\n", line_of("a", id=1)}
    await daemon.close()


async def test_what_is_no_json_never_reaches_the_host(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    await connection.send_bytes(b"Traceback\n\n\xff\n[1]\n{} trailing\n" + b'{"jsonrpc":"2.0","method":"n"}\n')
    assert (await host.read())["method"] == "n"


async def test_lines_in_pieces_of_one_byte(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    line = line_of("tools/call", {"text": "é" * 500}, id=1)
    for byte in line:
        await host.send(bytes([byte]))
        await asyncio.sleep(0)
    assert await connection.read_line() == line
    answer = json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"text": "é" * 500}}, ensure_ascii=False).encode() + b"\n"
    for byte in answer:
        await connection.send_bytes(bytes([byte]))
        await asyncio.sleep(0)
    assert await host.stdout.readline() == answer


async def test_lines_of_16_mib(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    line = line_of("a", {"text": ""}, id=1)
    line = line.replace(b'""', b'"' + b"x" * (16 * MIB - len(line)) + b'"')
    sending = asyncio.create_task(host.send(line))
    assert await connection.read_line() == line
    await sending
    answer = b'{"jsonrpc":"2.0","id":1,"result":"' + b"y" * (16 * MIB - 37) + b'"}\n'
    assert len(answer) == 16 * MIB
    sending = asyncio.create_task(connection.send_bytes(answer))
    assert await host.stdout.readline() == answer
    await sending


async def test_a_longer_line_is_the_daemons_to_refuse(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    line = line_of("a", {"text": "x" * 40 * MIB}, id=1)
    sending = asyncio.create_task(host.send(line + line_of("b", id=2)))
    assert await connection.read_line() == line
    assert (await connection.read())["method"] == "b"
    await sending


async def test_an_endless_answer_ends_the_call(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    await host.send(line_of("a", id=1))
    await connection.read()
    with contextlib.suppress(ConnectionError):
        await connection.send_bytes(b"z" * 20 * MIB)
    assert "longer than 16 MiB" in (await host.read())["error"]["message"]
    await host.send(line_of("b", id=2))
    connection = await daemon.accept()
    assert (await connection.read())["id"] == 2


async def test_a_host_that_does_not_read_stops_the_daemon_not_memory(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    host.stdout._transport.pause_reading()  # type: ignore[attr-defined]
    line = json.dumps({"jsonrpc": "2.0", "method": "n", "params": {"t": "x" * 100_000}}).encode() + b"\n"
    count = 1000
    connection.writer.transport.set_write_buffer_limits(0)
    sending = asyncio.create_task(connection.send_bytes(line * count))
    process = psutil.Process(host.process.pid)
    await asyncio.sleep(1.0)
    assert not sending.done()
    assert process.memory_info().rss < 40 * MIB
    host.stdout._transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(count):
        assert await host.stdout.readline() == line
    await sending


async def test_a_daemon_that_does_not_read_stops_the_host_not_memory(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    line = line_of("n", {"t": "x" * 100_000})
    sending = asyncio.create_task(host.send(line * 1000))
    await asyncio.sleep(1.0)
    assert not sending.done()
    assert psutil.Process(host.process.pid).memory_info().rss < 40 * MIB
    connection.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(1000):
        assert await connection.read_line() == line
    await sending


async def test_ends_at_eof_after_the_answers_in_flight(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    await host.send(line_of("a", id=1) + line_of("b", id=2).rstrip())  # the last line without its end
    host.stdin.close()
    for _ in range(2):
        await connection.answer(await connection.read())
    assert [(await host.read())["id"], (await host.read())["id"]] == [1, 2]
    assert await host.ended(2.0) == 0


@pytest.mark.parametrize("in_flight", [False, True])
async def test_ends_within_two_seconds_of_eof(world: World, daemon: Daemon, in_flight: bool) -> None:
    host = await world.host()
    connection = await daemon.accept()
    if in_flight:
        await host.send(line_of("wait", id=1))
        await connection.read()
    host.stdin.close()
    assert await host.ended(2.0) == 0
    assert await connection.read_line() == b""
    assert (await host.stdout.read(), await host.stderr.read()) == (b"", b"")


async def test_ends_at_eof_while_the_daemon_does_not_read(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    connection.writer.transport.pause_reading()  # type: ignore[attr-defined]
    host.stdin.write(line_of("n", {"t": "x" * 100_000}) * 100)
    await asyncio.sleep(0.5)
    host.stdin.transport.abort()
    assert await host.ended(2.0) == 0


async def test_ends_when_stdout_breaks_though_nothing_is_written(world: World, daemon: Daemon) -> None:
    read_end, write_end = os.pipe()
    stdin_read, stdin_write = os.pipe()
    command = [str(world.python), "-I", "-S", str(world.shim)]
    process = await asyncio.create_subprocess_exec(*command, stdin=stdin_read, stdout=write_end, env=world.env())
    os.close(write_end)
    os.close(stdin_read)
    await daemon.accept()
    os.close(read_end)
    async with asyncio.timeout(2.0):
        assert await process.wait() == 0
    os.close(stdin_write)


async def test_ends_when_its_parent_dies_though_the_pipes_stay_open(world: World, daemon: Daemon) -> None:
    stdin_read, stdin_write = os.pipe()
    script = (
        "import subprocess, sys, time; print(subprocess.Popen(sys.argv[1:], stdout=2).pid, flush=True); time.sleep(99)"
    )
    parent = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", script, str(world.python), "-I", "-S", str(world.shim)],
        stdin=stdin_read,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=world.env(),
    )
    assert parent.stdout
    shim = psutil.Process(int(await parent.stdout.readline()))
    await daemon.accept()
    parent.kill()
    await parent.wait()
    async with asyncio.timeout(2.0):
        while shim.is_running() and shim.status() != psutil.STATUS_ZOMBIE:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    os.close(stdin_read)
    os.close(stdin_write)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_signals_end_it_quietly(world: World, daemon: Daemon, number: signal.Signals) -> None:
    host = await world.host()
    await daemon.accept()
    host.process.send_signal(number)
    assert await host.ended(2.0) == (0 if number == signal.SIGINT else -number)
    assert (await host.stdout.read(), await host.stderr.read()) == (b"", b"")


async def test_closed_descriptors_do_not_become_sockets(world: World, daemon: Daemon) -> None:
    script = 'exec "$0" "$@" 1>&- 2>&-'
    host = await world.host(command=["/bin/sh", "-c", script, str(world.python), "-I", "-S", str(world.shim)])
    connection = await daemon.accept()
    await connection.send({"jsonrpc": "2.0", "method": "n"})
    host.stdin.close()
    assert await host.ended(DEADLINE) == 0
    assert await connection.read_line() == b""


async def test_a_refusal_is_the_answer_and_the_next_call_tries_again(world: World, daemon: Daemon) -> None:
    host = await world.host()
    await host.send(line_of("initialize", INITIALIZE, id="i"))

    async def refuse() -> None:  # a shim may have asked already before its host did
        while True:
            connection = await daemon.accept(welcome=False)
            refusal = {"pacerelle": "refused", "v": 1, "code": "agent_conflict", "retry": False}
            await connection.send(refusal | {"message": "Another relay.", "hint": "Remove it."})
            connection.close()

    for attempt in range(2):
        refusing = asyncio.create_task(refuse())
        error = (await host.read())["error"]
        refusing.cancel()
        assert error["message"] == "The Pacerelle daemon refused: Another relay. Remove it."
        await host.send(line_of("initialize", INITIALIZE, id=attempt))
    connection = await daemon.accept()
    assert (await connection.read())["id"] == 1


async def test_a_daemon_that_is_stopping_is_asked_again(world: World, daemon: Daemon) -> None:
    host = await world.host()
    await host.send(line_of("a", id=1))
    for _ in range(3):
        connection = await daemon.accept(welcome=False)
        await connection.send({"pacerelle": "refused", "code": "stopping", "message": "", "hint": "", "retry": True})
        connection.close()
    connection = await daemon.accept()
    assert (await connection.read())["id"] == 1


async def test_a_silent_daemon_is_waited_for_and_then_named(world: World, daemon: Daemon) -> None:
    host = await world.host(command=world.patient(START_WAIT=0.3))
    await host.send(line_of("initialize", INITIALIZE, id=1))
    connection = await daemon.accept(welcome=False)
    answer = await host.read()
    assert answer["id"] == 1
    assert "does not answer" in answer["error"]["message"]
    assert str(world.state / "pacerelled.log") in answer["error"]["message"]
    # It wakes up: the same connection serves, from a new handshake on.
    await host.send(line_of("initialize", INITIALIZE, id=2))
    await connection.send({"pacerelle": "welcome", "v": 1})
    assert (await connection.read())["id"] == 2
    assert world.starts() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can listen as somebody else")
async def test_another_users_socket_gets_no_hello(world: World) -> None:
    script = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1]); os.setuid(65534); s.listen();"
        "print(flush=True); print(s.accept()[0].recv(9), flush=True); sys.stdin.read()"
    )
    imposter = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", script, str(world.socket)],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert imposter.stdout
    assert imposter.stdin
    await imposter.stdout.readline()
    host = await world.host()
    answer = await host.call("initialize", INITIALIZE)
    assert "another user" in answer["error"]["message"]
    assert await imposter.stdout.readline() == b"b''\n"
    imposter.stdin.close()
    await imposter.wait()


async def test_leaves_no_child_and_idles(world: World, daemon: Daemon) -> None:
    host = await world.host()
    await daemon.accept()
    process = psutil.Process(host.process.pid)
    assert process.children() == []
    before = sum(process.cpu_times()[:2])
    await asyncio.sleep(1.0)
    assert sum(process.cpu_times()[:2]) - before < 0.1
    await until(lambda: process.num_threads() == 1, "one thread")
