"""On bad networks, every request is handed out, none as new twice, and every reply arrives once or is uncertain."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from tests.e2e.stack import Stack, until
from tests.faults.proxy import Direction, FaultProxy
from tests.faults.traffic import Traffic

CONFIG = "ping_interval = 0.4\nping_timeout = 0.6\nreconnect_max = 0.3\n"
Fault = Callable[[FaultProxy], Awaitable[None]]


async def drop(proxy: FaultProxy) -> None:
    for _ in range(6):
        await proxy.drop()
        await asyncio.sleep(0.15)


async def delay(proxy: FaultProxy) -> None:
    proxy.delay = 0.15
    await asyncio.sleep(1.0)


async def delay_beyond_the_ping_timeout(proxy: FaultProxy) -> None:
    proxy.delay = 1.0
    await asyncio.sleep(3.0)


async def throttle(proxy: FaultProxy) -> None:
    proxy.rate = 20_000
    await asyncio.sleep(1.5)


async def refuse(proxy: FaultProxy) -> None:
    for _ in range(2):
        await proxy.refuse()
        await asyncio.sleep(0.6)
        await proxy.listen()
        await connected(proxy)


async def accept_and_close(proxy: FaultProxy) -> None:
    proxy.closing = True
    await proxy.drop()
    before = proxy.accepted
    await until(lambda: proxy.accepted >= before + 3, "three attempts")


async def stop_forwarding(proxy: FaultProxy) -> None:
    """The daemon must find out by itself, while the dead connection still stands."""
    for _ in range(2):
        frozen = proxy.freeze()
        await until(lambda old=frozen: proxy.used_since(old), "a new connection")  # type: ignore[misc]


async def stop_forwarding_for_new_connections_too(proxy: FaultProxy) -> None:
    proxy.stalling = True
    before = proxy.freeze()
    await until(lambda: set(proxy.connections) - set(before), "a new connection")
    await asyncio.sleep(0.5)
    for connection in proxy.connections:
        connection.thaw()


async def reorder_connections(proxy: FaultProxy) -> None:
    for _ in range(3):
        await proxy.reorder()
        await connected(proxy)


def cut(direction: Direction) -> Fault:
    async def fault(proxy: FaultProxy) -> None:
        rng = random.Random(direction)
        for after in (1, 3, *(rng.randrange(5, 1500) for _ in range(6))):
            await proxy.cut(direction, after)
            await connected(proxy)

    return fault


FAULTS: dict[str, Fault] = {
    "drop": drop,
    "delay": delay,
    "delay beyond the ping timeout": delay_beyond_the_ping_timeout,
    "cut in a frame to the relay": cut("up"),
    "cut in a frame to the daemon": cut("down"),
    "stop forwarding": stop_forwarding,
    "stop forwarding, new connections too": stop_forwarding_for_new_connections_too,
    "refuse": refuse,
    "accept and close": accept_and_close,
    "reorder connections": reorder_connections,
    "throttle": throttle,
}


async def connected(proxy: FaultProxy) -> None:
    await until(lambda: proxy.connections, "a connection")


def heal(proxy: FaultProxy) -> None:
    proxy.delay, proxy.rate, proxy.closing, proxy.stalling = 0.0, None, False, False


@contextlib.asynccontextmanager
async def behind_a_proxy(machine: Stack) -> AsyncIterator[FaultProxy]:
    async with FaultProxy(machine.relay_url) as proxy:
        machine.agents_url = proxy.url
        yield proxy
        await machine.stop_daemon()


async def disturb(machine: Stack, fault: str, *, retrying: bool, times: int = 1) -> None:
    machine.configure(CONFIG + ("retry_uncertain = true\n" if retrying else ""))
    async with (
        behind_a_proxy(machine) as proxy,
        Traffic.going_on(machine, all_certain=retrying and times == 1) as traffic,
    ):
        async with traffic.asking(every=0.03, size=2000):
            await traffic.until_processed(5)
            for _ in range(times):
                async with asyncio.timeout(90):
                    await FAULTS[fault](proxy)
                heal(proxy)
        await traffic.ask(3)
        await traffic.check()


@pytest.mark.parametrize("fault", FAULTS)
async def test_nothing_is_lost_or_doubled(machine: Stack, fault: str) -> None:
    await disturb(machine, fault, retrying=True)


@pytest.mark.parametrize("fault", ["drop", "stop forwarding"])
async def test_what_may_have_left_stays_uncertain(machine: Stack, fault: str) -> None:
    await disturb(machine, fault, retrying=False)


async def test_a_reply_that_was_lost_arrives_when_it_is_sent_again(machine: Stack) -> None:
    machine.configure(CONFIG)
    async with behind_a_proxy(machine) as proxy:
        phone = await machine.phone("ada")
        agent = await phone.create_agent("home")
        host = await machine.host(agent)
        await host.connected()

        async def exchange() -> None:
            asked = await phone.send(agent.agent_id, "question")
            await host.tool("wait_for_messages", timeoutMs=30000)
            await host.tool("mark_processed", messageId=asked)
            await host.tool("send_message", text="answer", sourceMessageId=asked)
            assert (await phone.wait_reply(asked, 30)).text == "answer"

        await exchange()
        asked = await phone.send(agent.agent_id, "the one that matters")
        await host.tool("wait_for_messages", timeoutMs=30000)
        await host.tool("mark_processed", messageId=asked)
        old = list(proxy.connections)
        for connection in old:
            connection.freeze("up")
        lost = await host.tool("send_message", text="lost", sourceMessageId=asked)

        async def uncertain() -> bool:
            return bool((await host.tool("get_status"))["uncertain"])

        await until(uncertain, "an uncertain reply")
        for connection in old:
            connection.abort()
        for _ in range(3):  # Signal's limit: docs/promises.md
            await exchange()
        for _ in range(2):
            url = f"/v1/agents/-/replies/{lost['message_id']}/retry"
            async with machine.control() as control, control.post(url, json={"wait_s": 30}) as response:
                assert (await response.json())["state"] == "submitted"
        assert (await phone.wait_reply(asked, 30)).text == "lost"
        told = await phone.conversation(agent.conversation_id)
        assert [m.id for m in told if m.direction == "in"].count(lost["message_id"]) == 1
        await host.stop()


@pytest.mark.long
@pytest.mark.parametrize("retrying", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
async def test_nothing_is_lost_or_doubled_for_a_while(machine: Stack, fault: str, retrying: bool) -> None:
    await disturb(machine, fault, retrying=retrying, times=5)
