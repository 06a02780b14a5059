"""mcp.sock: hello and refusals, bad lines, slow hosts, hosts that vanish, and stopping."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp.client.subscriptions import PromptsListChanged, ResourcesListChanged, ToolsListChanged, listen
from mcp_client import DEADLINE, Daemon, Raw, client, hello, raw, until
from mcp_hub import HubDouble

from pacerelle_protocol.hello import encode_hello
from pacerelle_protocol.local import MAX_LINE
from pacerelled.errors import StoreUnavailable
from pacerelled.servers import mcp_sock

WAIT = {"name": "wait_for_messages", "arguments": {}}


def line(request_id: Any, method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode() + b"\n"


def descriptors() -> int:
    gc.collect()
    return psutil.Process().num_fds()


async def settled(daemon: Daemon, tasks: int) -> None:
    """Waits until the daemon serves nobody and no task is left that was not there before."""
    await until(lambda: not daemon.server._connections)
    await until(lambda: len(asyncio.all_tasks()) == tasks)
    assert daemon.hub.open == []
    assert daemon.hub.subscribers == 0
    assert daemon.server._by_session == {}


# The hello


async def test_the_hello_opens_a_session(daemon: Daemon) -> None:
    greeting = hello(host="zed", cwd="/home/x", agent_id="a9", token="t", base_url="http://r", e2ee=False)
    peer = await Raw.connect(daemon.path)
    await peer.send(encode_hello(greeting))
    welcome = await peer.receive()
    assert isinstance(welcome.pop("offers"), str)
    assert welcome == {"pacerelle": "welcome", "v": 1, "daemon": "9.9", "session": greeting.session}
    (session,) = daemon.hub.open
    assert (session.id, session.transport, session.agent_id) == (greeting.session, "stdio", "a9")
    assert (session.host, session.cwd, session.pid) == ("zed", "/home/x", 1)
    assert daemon.hub.known["a9"].settings == {"token": "t", "base_url": "http://r", "ws_url": None, "e2ee": False}
    await peer.close()
    await until(lambda: daemon.hub.closed == [session])


LISTS = {f"notifications/{what}/list_changed" for what in ("tools", "prompts", "resources")}


async def test_a_host_that_stayed_while_the_daemon_was_replaced_is_told_that_the_lists_are_others(
    daemon: Daemon,
) -> None:
    async def told(offers: str | None) -> set[str]:
        async with raw(daemon.path, hello(offers=offers)) as host:
            methods: set[str] = set()
            for number in (1, 2, 3):
                await host.send(line(number, "tools/list"))
                while (message := await host.receive()).get("id") != number:
                    methods.add(message["method"])
            while 0 < len(methods) < len(LISTS):
                methods.add((await host.receive())["method"])
            return methods

    peer = await Raw.connect(daemon.path)
    await peer.send(encode_hello(hello()))
    ours = (await peer.receive())["offers"]
    await peer.close()
    assert await told(None) == set()
    assert await told(ours) == set()
    assert await told("those of another daemon") == LISTS


async def test_so_is_one_of_the_newer_era(daemon: Daemon) -> None:
    wanted = [ToolsListChanged, PromptsListChanged, ResourcesListChanged]
    flags = {"tools_list_changed": True, "prompts_list_changed": True, "resources_list_changed": True}
    async with (
        client(daemon.path, "2026-07-28", hello(offers="others")) as host,
        listen(host.session, **flags) as changes,
    ):
        told = [type(await asyncio.wait_for(anext(changes), DEADLINE)) for _ in wanted]
    assert sorted(each.__name__ for each in told) == sorted(each.__name__ for each in wanted)


async def test_hello_handshake_and_calls_may_come_in_one_write(daemon: Daemon) -> None:
    peer = await Raw.connect(daemon.path)
    start = line(
        0, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo={"name": "n", "version": "1"}
    )
    await peer.send(encode_hello(hello()) + start + line(1, "tools/list"))
    assert (await peer.receive())["pacerelle"] == "welcome"
    assert {(await peer.receive())["id"] for _ in range(2)} == {0, 1}
    await peer.close()


@pytest.mark.parametrize(
    ("first", "code"),
    [
        (b"hello\n", "bad_hello"),
        (line(1, "initialize"), "bad_hello"),
        (b"\xff\xff\n", "bad_hello"),
        (b'{"pacerelle":"hello","v":1}\n', "bad_hello"),
        (b'{"pacerelle":"hello","v":3}\n', "version"),
        (encode_hello(hello()).replace(b'"session":"', b'"session":"X'), "bad_hello"),
    ],
)
async def test_another_first_line_is_refused(daemon: Daemon, first: bytes, code: str) -> None:
    peer = await Raw.connect(daemon.path)
    await peer.send(first)
    answer = await peer.receive()
    assert (answer["pacerelle"], answer["code"], answer["retry"]) == ("refused", code, False)
    assert answer["message"]
    assert answer["hint"]
    assert await peer.receive() is None
    await peer.close()
    assert daemon.hub.open == []


async def test_a_hello_over_the_limit_is_refused(daemon: Daemon) -> None:
    peer = await Raw.connect(daemon.path)
    await peer.send(b"x" * (MAX_LINE + 1) + b"\n")
    assert (await peer.receive())["code"] == "bad_hello"
    await peer.close()


async def test_a_client_without_hello_is_refused_after_a_while(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_sock, "HELLO_TIMEOUT", 0.1)
    peer = await Raw.connect(daemon.path)
    await peer.send(b'{"pacerelle":')
    assert (await peer.receive())["code"] == "bad_hello"
    assert await peer.receive() is None
    await peer.close()


async def test_an_agent_with_another_relay_is_a_conflict(daemon: Daemon) -> None:
    async with raw(daemon.path, hello(agent_id="a9", base_url="http://one")):
        pass
    peer = await Raw.connect(daemon.path)
    await peer.send(encode_hello(hello(agent_id="a9", base_url="http://two")))
    answer = await peer.receive()
    assert (answer["code"], answer["retry"]) == ("agent_conflict", False)
    assert answer["hint"] == "Remove it first."
    await peer.close()


async def test_a_failure_that_passes_may_be_tried_again(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("The disk is full.", hint="Make room.")

    monkeypatch.setattr(daemon.hub, "add_agent", fail)
    peer = await Raw.connect(daemon.path)
    await peer.send(encode_hello(hello(agent_id="a9")))
    answer = await peer.receive()
    assert (answer["code"], answer["message"], answer["retry"]) == ("store_unavailable", "The disk is full.", True)
    await peer.close()


async def test_a_mistake_of_ours_is_told_and_not_repeated(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any, **__: Any) -> None:
        raise IndexError("the-secret-text")

    monkeypatch.setattr(daemon.hub, "add_agent", fail)
    peer = await Raw.connect(daemon.path)
    await peer.send(encode_hello(hello(agent_id="a9")))
    answer = await peer.receive()
    assert (answer["pacerelle"], answer["code"], answer["retry"]) == ("refused", "internal", False)
    reference = answer["message"].split("reference ")[1].split(")")[0]
    assert f"unexpected error {reference}: IndexError" in caplog.text
    assert "the-secret-text" not in caplog.text + str(answer)
    assert await peer.receive() is None
    await peer.close()


async def test_another_user_is_refused(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_sock, "peer_uid", lambda _: os.geteuid() + 1)
    peer = await Raw.connect(daemon.path)
    await peer.send(encode_hello(hello(agent_id="a9", token="t")))
    assert (await peer.receive())["code"] == "not_owner"
    assert await peer.receive() is None
    assert "a9" not in daemon.hub.known
    await peer.close()


async def test_tokens_are_not_logged(daemon: Daemon, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, logger="pacerelled"):
        async with raw(daemon.path, hello(agent_id="a9", token="the-secret-token")) as host:
            await host.call(1, "send_message", text="the-secret-text")
        peer = await Raw.connect(daemon.path)
        await peer.send(encode_hello(hello(token="the-secret-token")).replace(b'"v":1', b'"v":3'))
        await peer.receive()
        await peer.close()
    assert "secret" not in caplog.text


async def test_a_reconnecting_session_replaces_its_older_connection(daemon: Daemon) -> None:
    greeting = hello()
    async with raw(daemon.path, greeting) as older:
        await older.send(line(1, "tools/call", **WAIT))
        await until(lambda: daemon.hub.open[0].waiting)
        async with raw(daemon.path, greeting) as newer:
            assert await older.receive() is None  # and no answer to the call, which the shim makes again
            assert daemon.agent.cancelled == 1
            assert (len(daemon.hub.open), len(daemon.hub.closed)) == (1, 1)
            assert (await newer.call(1, "get_status"))["result"]["isError"] is False


async def test_a_wait_that_is_made_again_goes_on(daemon: Daemon) -> None:
    async with raw(daemon.path, hello(in_flight={"5": 29.5, '"5"': 99.0})) as host:
        for request_id in ("5", 5, 5):
            await host.send(line(request_id, "tools/call", name="wait_for_messages", arguments={"timeoutMs": 30000}))
        await until(lambda: len(daemon.agent.calls) == 3)
        assert [call["timeout"] for _, call in daemon.agent.calls] == [0.0, 0.5, 30.0]


async def test_a_session_that_connects_many_times_at_once_is_served_once(daemon: Daemon) -> None:
    greeting = encode_hello(hello())
    peers = [await Raw.connect(daemon.path) for _ in range(20)]
    await asyncio.gather(*(peer.send(greeting) for peer in peers))
    await until(lambda: len(daemon.hub.closed) == 19 and len(daemon.hub.open) == 1)
    for peer in peers:
        await peer.close()
    await until(lambda: len(daemon.hub.closed) == 20)


# Lines


@pytest.mark.parametrize("piece", [1, 2, 10**9])
async def test_bad_lines_are_answered_and_the_next_one_is_served(daemon: Daemon, piece: int) -> None:
    lines = [
        (b"\xff\xfe\xfd\n", -32700),
        (b"\n\r\n   \n", None),
        (b"{not json\n", -32700),
        (b"[" + line(1, "ping").strip() + b"]\n", -32600),
        (b'{"jsonrpc":"2.0","id":9,"method":5}\n', -32600),
        (line(3, "nothing/like/this"), -32601),
        ("é\u2028".encode()[:-1] + b"\n", -32700),
    ]
    async with raw(daemon.path) as host:
        for number, (data, code) in enumerate(lines, 100):
            data += line(number, "tools/call", name="send_message", arguments={"text": "ñ\u2028😀\x00"})
            for at in range(0, len(data), piece):
                await host.send(data[at : at + piece])
            if code is not None:
                assert (await host.receive())["error"]["code"] == code
            answer = await host.receive()
            assert (answer["id"], answer["result"]["isError"]) == (number, False)
    assert all(arguments["text"] == "ñ\u2028😀\x00" for _, arguments in daemon.agent.calls)


async def test_bad_lines_before_the_handshake(daemon: Daemon) -> None:
    async with raw(daemon.path, initialized=False) as host:
        await host.send(b"\xff\n")
        assert (await host.receive())["error"]["code"] == -32700
        info = {"name": "n", "version": "1"}
        answer = await host.ask(1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=info)
        assert answer["result"]["serverInfo"]["name"] == "pacerelle"


async def test_a_line_of_16_mib_is_taken_and_one_byte_more_is_an_error(daemon: Daemon) -> None:
    def sized(size: int) -> bytes:
        rest = len(line(1, "tools/call", name="send_message", arguments={"text": ""}))
        return line(1, "tools/call", name="send_message", arguments={"text": "x" * (size - rest)})

    async with raw(daemon.path) as host:
        await host.send(sized(MAX_LINE))
        assert (await host.receive())["result"]["isError"] is False
        assert len(daemon.agent.calls[0][1]["text"]) > MAX_LINE - 200
        await host.send(sized(MAX_LINE + 1))
        answer = await host.receive()
        assert (answer["id"], answer["error"]["code"]) == (1, -32600)
        assert str(MAX_LINE) in answer["error"]["message"]
        assert len(daemon.agent.calls) == 1

        answer = await host.call(2, "get_history")  # has the long one: no result is near the limit
        (reply,) = answer["result"]["structuredContent"]["replies"]
        assert reply["shortened"]["characters"] > MAX_LINE - 200


# Hosts that do not behave


async def test_a_host_that_reads_nothing_is_not_read_from_and_blocks_nobody(daemon: Daemon) -> None:
    await daemon.agent.put("x" * 100_000)
    async with raw(daemon.path) as stuck, raw(daemon.path) as other:
        stuck.reader._transport.pause_reading()  # type: ignore[attr-defined]
        request = line(1, "tools/call", name="get_history", arguments={})
        taken = 0
        with suppress(TimeoutError):
            while taken < 20_000:
                async with asyncio.timeout(1):
                    await stuck.send(request)
                taken += 1
        assert taken < 20_000
        assert len(daemon.agent.calls) < 1000
        assert (await other.call(1, "get_status"))["result"]["isError"] is False
        before = len(daemon.agent.calls)
        await asyncio.sleep(0.1)
        assert len(daemon.agent.calls) == before
        stuck.writer.transport.abort()  # a close would wait for the daemon to read


@pytest.mark.parametrize("era", ["legacy", "2026-07-28"])
async def test_nothing_is_left_of_clients_that_came_and_went(daemon: Daemon, era: str) -> None:
    async def once(manner: int) -> None:
        match manner:
            case 0:  # only looks whether the socket is there
                await (await Raw.connect(daemon.path)).close()
            case 1:  # half a hello
                peer = await Raw.connect(daemon.path)
                await peer.send(b'{"pacerelle"')
                await peer.close()
            case 2:  # says hello and leaves
                peer = await Raw.connect(daemon.path)
                await peer.send(encode_hello(hello()))
                await peer.close()
            case 3:  # vanishes with a call in flight
                async with raw(daemon.path) as peer:
                    await peer.send(line(1, "tools/call", **WAIT))
                    peer.writer.transport.abort()
            case 4:  # closes its sending half with a call in flight
                async with raw(daemon.path) as peer:
                    await peer.send(line(1, "tools/call", **WAIT))
                    peer.writer.write_eof()
                    while await peer.receive() is not None:
                        pass
            case 5:  # leaves half a line and a subscription behind
                async with raw(daemon.path) as peer:
                    await peer.ask(1, "resources/subscribe", uri="widget://pending")
                    await peer.send(b'{"jsonrpc"')
            case 6:  # has answers that it never read
                async with raw(daemon.path) as peer:
                    for n in range(20):
                        await peer.send(line(n, "tools/list"))
                    peer.writer.transport.abort()
            case _:
                async with client(daemon.path, era) as host:
                    await host.list_tools()

    for manner in range(8):
        await once(manner)
    tasks = len(asyncio.all_tasks())
    await until(lambda: not daemon.server._connections)
    tasks = len(asyncio.all_tasks())
    before = descriptors()
    for _ in range(5):
        await asyncio.gather(*(once(manner) for manner in range(8)))
    await settled(daemon, tasks)
    await until(lambda: descriptors() <= before)


async def test_a_dead_client_process_is_noticed(daemon: Daemon) -> None:
    script = """if True:
        import socket, sys, time
        peer = socket.socket(socket.AF_UNIX)
        peer.connect(sys.argv[1])
        peer.sendall(sys.stdin.buffer.read())
        time.sleep(600)
    """
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, daemon.path, stdin=subprocess.PIPE)
    try:
        assert process.stdin is not None
        process.stdin.write(encode_hello(hello()))
        process.stdin.close()
        await until(lambda: daemon.hub.open)
    finally:
        process.kill()
        await process.wait()
    await until(lambda: daemon.hub.closed)


# Stopping


@pytest.mark.parametrize("reads", [True, False])
async def test_stopping_closes_every_connection_and_answers_nothing(tmp_path: Path, reads: bool) -> None:
    daemon = Daemon(tmp_path / "mcp.sock", HubDouble("a1"))
    daemon.server.start()
    before = len(asyncio.all_tasks())
    await daemon.agent.put("x" * 300_000)
    async with raw(daemon.path) as idle, raw(daemon.path) as waiting, raw(daemon.path, initialized=False) as fresh:
        early = await Raw.connect(daemon.path)
        await early.send(b'{"pacerelle":')
        await until(lambda: sum(c.writer is not None for c in daemon.server._connections) == 4)
        if not reads:
            waiting.reader._transport.pause_reading()  # type: ignore[attr-defined]
            for n in range(50):
                await waiting.send(line(n, "tools/call", name="get_history", arguments={}))
        daemon.agent.processed.add("m1")
        await waiting.send(line("w", "tools/call", **WAIT))
        if reads:
            await until(lambda: any(s.waiting for s in daemon.hub.open))
        async with asyncio.timeout(DEADLINE):
            await daemon.server.stop()
        assert daemon.hub.open == []
        assert len(asyncio.all_tasks()) == before
        with pytest.raises(ConnectionRefusedError):
            await Raw.connect(daemon.path)
        assert (await early.receive())["code"] == "stopping"
        assert await early.receive() is None
        for peer in (idle, fresh, *([waiting] if reads else [])):
            assert await peer.receive() is None
        await early.close()
    await daemon.server.stop()


async def test_stopping_right_after_clients_connected(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "mcp.sock", HubDouble("a1"))
    daemon.server.start()
    before = descriptors()
    peers = [socket.socket(socket.AF_UNIX) for _ in range(10)]
    for peer in peers:
        peer.connect(str(daemon.path))
    for _ in peers:
        daemon.server._acceptor._accept()  # what the loop would do in its next turn: the tasks have not begun
    await daemon.server.stop()
    for peer in peers:
        assert peer.recv(100) == b""
        peer.close()
    await until(lambda: descriptors() < before)


# Out of descriptors

STARVED = """
import asyncio, logging, os, resource, sys
from pathlib import Path
from mcp_hub import HubDouble
from mcp_client import Daemon, raw

async def main(path):
    daemon = Daemon(path, HubDouble("a1"))
    daemon.server.start()
    accepts = 0
    accept = daemon.server._acceptor._accept
    def counted():
        nonlocal accepts
        accepts += 1
        accept()
    daemon.server._acceptor._accept = counted
    daemon.server.start()
    import socket
    clients = [socket.socket(socket.AF_UNIX) for _ in range(5)]
    taken = []
    while True:
        try:
            taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            break
    for c in clients:
        c.connect(str(path))
    await asyncio.sleep(1.5)
    print("accepts", accepts, flush=True)
    for fd in taken:
        os.close(fd)
    for c in clients:
        c.close()
    async with raw(path) as host:
        print("served", (await host.call(1, "get_status"))["result"]["isError"])
    await daemon.server.stop()

resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
logging.basicConfig(stream=sys.stdout, format="%(message)s")
asyncio.run(main(Path(sys.argv[1])))
"""


def test_running_out_of_descriptors_neither_spins_nor_ends_the_service(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STARVED, str(tmp_path / "mcp.sock")],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    (accepts,) = [int(each.split()[1]) for each in lines if each.startswith("accepts")]
    assert 1 <= accepts <= 3
    assert lines.count("cannot accept a connection on mcp.sock: Too many open files") <= 3
    assert "served False" in lines
