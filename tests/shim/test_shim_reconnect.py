"""What a host notices of a daemon's end and return: nothing, if it returns in time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from .shim_host import INITIALIZE, Connection, Daemon, World, line_of, until


async def initialized(world: World, daemon: Daemon, **more: Any) -> tuple[Any, Connection]:
    host = await world.host(**more)
    connection = await daemon.accept()
    await host.send(line_of("initialize", INITIALIZE, id=0))
    await connection.answer(await connection.read(), {"first": True})
    assert (await host.read())["result"] == {"first": True}
    await host.send(line_of("notifications/initialized"))
    assert (await connection.read())["method"] == "notifications/initialized"
    return host, connection


async def test_the_handshake_is_repeated_and_its_answer_swallowed(world: World, daemon: Daemon) -> None:
    host, connection = await initialized(world, daemon)
    session = connection.hello["session"]
    assert connection.hello["offers"] is None
    await host.send(line_of("resources/subscribe", {"uri": "widget://pending"}, id=1))
    await connection.answer(await connection.read())
    await host.read()
    for uri, method in (("a://b", "subscribe"), ("a://b", "unsubscribe")):
        await host.send(line_of(f"resources/{method}", {"uri": uri}, id=method))
        await connection.answer(await connection.read())
        await host.read()
    await host.send(line_of("tools/call", {"name": "wait_for_messages"}, id=2))
    call = await connection.read()

    connection.close()
    connection = await daemon.accept()
    assert (connection.hello["session"], connection.hello["offers"]) == (session, "those")
    repeated = [await connection.read() for _ in range(4)]
    assert [r["method"] for r in repeated] == [
        "initialize",
        "notifications/initialized",
        "resources/subscribe",
        "tools/call",
    ]
    assert repeated[-1] == call
    for request in (repeated[0], repeated[2]):
        await connection.answer(request, {"again": True})
    await connection.send({"jsonrpc": "2.0", "method": "notifications/resources/updated"})
    await connection.answer(call, {"done": True})
    assert (await host.read())["method"] == "notifications/resources/updated"
    assert (await host.read())["result"] == {"done": True}
    # Nothing is left over: the ids can be used again.
    await host.send(line_of("ping", id=0))
    await connection.answer(await connection.read())
    assert (await host.read())["id"] == 0


async def test_without_a_handshake_only_the_calls_are_repeated(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    await host.send(
        line_of("subscriptions/listen", id="s") + line_of("tools/call", id=1) + line_of("tools/call", id="1")
    )
    sent = [await connection.read() for _ in range(3)]
    await connection.answer(sent[1])
    await host.read()
    connection.close()
    connection = await daemon.accept()
    assert [await connection.read(), await connection.read()] == [sent[0], sent[2]]


async def test_what_was_cancelled_or_answered_is_not_repeated(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    await host.send(b"".join(line_of("tools/call", id=n) for n in range(4)))
    calls = [await connection.read() for _ in range(4)]
    await host.send(line_of("notifications/cancelled", {"requestId": 1}))
    await connection.read()
    await connection.answer(calls[2])
    await connection.send({"jsonrpc": "2.0", "id": 3, "error": {"code": -32602, "message": "no"}})
    await host.read()
    await host.read()
    connection.close()
    connection = await daemon.accept()
    assert await connection.read() == calls[0]
    await host.send(line_of("next", id=9))
    assert (await connection.read())["id"] == 9


async def test_half_an_answer_is_never_written(world: World, daemon: Daemon) -> None:
    host = await world.host()
    for attempt in range(3):
        connection = await daemon.accept()
        if attempt == 0:
            await host.send(line_of("tools/call", id=1))
        call = await connection.read()
        if attempt < 2:
            await connection.send_bytes(b'{"jsonrpc":"2.0","id":1,"result":{"text":"' + b"x" * 300_000)
            await asyncio.sleep(0.1)
            connection.close()
    await connection.answer(call, {"whole": True})
    assert (await host.read())["result"] == {"whole": True}


async def test_answers_written_before_the_end_are_not_lost(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    await host.send(line_of("a", id=1) + line_of("b", id=2))
    first, second = await connection.read(), await connection.read()
    await connection.answer(first, {"n": 1})
    connection.close()
    assert (await host.read())["result"] == {"n": 1}
    connection = await daemon.accept()
    assert await connection.read() == second


async def test_calls_made_while_there_is_no_daemon_wait_for_it(world: World, daemon: Daemon) -> None:
    (world.root / "slow").write_text("1000")  # the daemon that the shim starts does not come up
    host, connection = await initialized(world, daemon)
    daemon.stop()
    connection.close()
    await until(world.starts, "the shim's notice of it")
    await host.send(line_of("a", id=1) + line_of("n") + line_of("b", id=2))
    await daemon.start()
    connection = await daemon.accept()
    methods = [(await connection.read())["method"] for _ in range(5)]
    assert methods == ["initialize", "notifications/initialized", "a", "b", "n"]


async def test_a_call_that_waited_too_long_is_answered_and_the_next_succeeds(world: World, daemon: Daemon) -> None:
    (world.root / "slow").write_text("1000")
    host, connection = await initialized(world, daemon, command=world.patient(CALL_WAIT=0.5))
    await host.send(line_of("a", id="in flight"))
    await connection.read()
    daemon.stop()
    connection.close()
    error = (await host.read())["error"]
    assert error["code"] == -32010
    assert "pacerelle status" in error["message"]
    await host.send(line_of("b", id="b"))
    assert (await host.read())["id"] == "b"
    await daemon.start()
    connection = await daemon.accept()
    assert [(await connection.read())["method"] for _ in range(2)] == ["initialize", "notifications/initialized"]
    await host.send(line_of("c", id="c"))
    call = await connection.read()
    await connection.answer({"id": 0})
    await connection.answer(call)
    assert (await host.read())["id"] == "c"


async def test_a_killed_daemon_is_started_again_and_repeats_the_call(world: World) -> None:
    host = await world.host()
    first = (await host.initialize())["result"]
    second = (await host.call("die"))["result"]
    assert second["pid"] != first["pid"]
    assert second["session"] == first["session"]
    assert second["seen"] == ["initialize", "notifications/initialized", "die"]
    assert len(world.starts()) == 2


async def test_twenty_hosts_outlive_a_killed_daemon_with_one_start(world: World) -> None:
    hosts = [await world.host() for _ in range(20)]
    await asyncio.gather(*(host.initialize() for host in hosts))
    for host in hosts:
        await host.send(line_of("hold", id="held"))
    answers = await asyncio.gather(*(host.call("ping", id=1) for host in hosts))
    assert len({answer["result"]["pid"] for answer in answers}) == 1
    (daemon,) = world.daemons()
    daemon.kill()
    answers = await asyncio.gather(*(host.call("ping", id=2) for host in hosts))
    assert {answer["result"]["pid"] for answer in answers} == {p.pid for p in world.daemons()}
    assert all("hold" in answer["result"]["seen"] for answer in answers)
    assert len(world.starts()) == 2


@pytest.mark.parametrize("cleanly", [True, False])
async def test_a_stopped_daemon_returns_with_the_next_call_a_crashed_one_at_once(world: World, cleanly: bool) -> None:
    host = await world.host()
    await host.initialize()
    (daemon,) = world.daemons()
    if cleanly:
        daemon.terminate()
        await asyncio.sleep(1.0)
        assert len(world.starts()) == 1
        assert (await host.call("ping"))["id"] == 1
    else:
        daemon.kill()
        async with asyncio.timeout(30):
            while len(world.starts()) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_an_acknowledged_stream_is_not_acknowledged_again(world: World, daemon: Daemon) -> None:
    def acknowledged(of: object) -> dict[str, object]:
        params = {"_meta": {"io.modelcontextprotocol/subscriptionId": of}, "notifications": {}}
        return {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}

    host = await world.host()
    connection = await daemon.accept()
    await host.send(line_of("subscriptions/listen", id=1) + line_of("subscriptions/listen", id="1"))
    assert [(await connection.read())["id"], (await connection.read())["id"]] == [1, "1"]
    await connection.send(acknowledged(1))  # the other one gets none before the daemon ends
    assert (await host.read())["params"] == acknowledged(1)["params"]
    connection.close()
    connection = await daemon.accept()
    assert [(await connection.read())["id"], (await connection.read())["id"]] == [1, "1"]
    for of in (1, "1", 1, "1", 7):
        await connection.send(acknowledged(of))
    await connection.answer({"id": 1})
    assert (await host.read())["params"] == acknowledged("1")["params"]
    assert (await host.read())["params"] == acknowledged(7)["params"]  # not ours to judge
    assert (await host.read())["id"] == 1
    await host.send(line_of("subscriptions/listen", id=1))  # a new stream under an old id
    assert (await connection.read())["id"] == 1
    await connection.send(acknowledged(1))
    assert (await host.read())["params"] == acknowledged(1)["params"]


async def test_a_new_daemon_is_told_how_long_calls_have_waited(world: World, daemon: Daemon) -> None:
    host = await world.host()
    connection = await daemon.accept()
    assert connection.hello["in_flight"] is None
    await host.send(line_of("a", id=1) + line_of("b", id='"1'))
    await connection.read()
    await asyncio.sleep(0.2)
    for _ in range(2):
        connection.close()
        connection = await daemon.accept()
        ages = connection.hello["in_flight"]
        assert set(ages) == {"1", '"\\"1"'}
        assert min(ages.values()) >= 0.2
    assert connection.hello["in_flight"]["1"] >= ages["1"]


@pytest.mark.parametrize("version", [0, 2])
async def test_a_daemon_of_the_next_version_serves(world: World, daemon: Daemon, version: int) -> None:
    host = await world.host()
    connection = await daemon.accept(welcome=False)
    await connection.send({"pacerelle": "welcome", "v": version, "new": {}})
    await host.send(line_of("a", id=1))
    await connection.answer(await connection.read())
    assert (await host.read())["id"] == 1


@pytest.mark.parametrize("version", [-1, 3, None, "1"])
async def test_a_daemon_of_a_version_too_far_away_is_named(world: World, daemon: Daemon, version: object) -> None:
    host = await world.host()
    await host.send(line_of("initialize", INITIALIZE, id=1))
    while True:  # a shim may have asked already before its host did
        connection = await daemon.accept(welcome=False)
        await connection.send({"pacerelle": "welcome", "v": version})
        await asyncio.sleep(0.1)
        if host.stdout._buffer:  # type: ignore[attr-defined]
            break
    error = (await host.read())["error"]
    assert "upgrade the older" in error["message"]
    assert "pacerelle stop" in error["message"]
    await host.send(line_of("a", id=2))
    connection = await daemon.accept()  # it was upgraded meanwhile
    assert (await connection.read())["id"] == 2
