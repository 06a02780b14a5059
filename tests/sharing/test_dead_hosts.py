"""Real hosts, shims and daemon: who dies in its wait gets nothing, and nobody waits for the dead."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Host, HostGone, Stack, stack, until


@pytest.fixture
async def whole(tmp_path: Path) -> AsyncIterator[Stack]:
    async with stack(tmp_path) as running:
        yield running


def wait(host: Host) -> asyncio.Task[dict[str, Any]]:
    return asyncio.create_task(host.tool("wait_for_messages", timeoutMs=30_000))


async def attached(host: Host, **how_many: int) -> bool:
    """Whether so many hosts are attached, and so many of them wait."""
    hosts = (await host.tool("get_status"))["hosts"]
    return (len(hosts), sum(h["waiting"] for h in hosts)) == (how_many["hosts"], how_many["waiting"])


async def test_a_request_goes_to_a_living_one_at_once(whole: Stack) -> None:
    phone = await whole.phone("ada")
    agent = await phone.create_agent("home")
    first, second, watching = [await whole.host(agent, name) for name in ("first", "second", "watching")]
    await watching.connected()
    dying = wait(first)  # it is the first in line
    await until(lambda: attached(watching, hosts=3, waiting=1), "the first wait")
    living = wait(second)
    await until(lambda: attached(watching, hosts=3, waiting=2), "the second wait")
    first.kill()
    sent = await phone.send(agent.agent_id, "Who is there?")
    async with asyncio.timeout(20):
        (message,) = (await living)["messages"]
    assert message["message_id"] == sent
    with pytest.raises(HostGone):
        await dying
    label = message["claim"]["label"]
    assert label.startswith("second 1 (")
    assert str(Path.cwd())[-20:] in label
    hosts = {h["client"]: h for h in (await watching.tool("get_status"))["hosts"]}
    assert hosts.keys() == {"second", "watching"}
    assert hosts["second"]["claims"] == 1
    assert hosts["second"]["host"]  # its process's name
    # And the one that has it dies: the next one gets it, and is told that it is not the first.
    later = wait(watching)
    second.kill()
    async with asyncio.timeout(20):
        (again,) = (await later)["messages"]
    assert (again["message_id"], again["delivery"]) == (sent, "again")


async def test_many_die_and_nothing_is_lost_or_done_twice(whole: Stack) -> None:
    phone = await whole.phone("ada")
    agent = await phone.create_agent("home")
    watching = await whole.host(agent, "watching")
    await watching.connected()
    hosts = [await whole.host(agent, f"h{number}") for number in range(6)]
    waits = [wait(host) for host in hosts]
    await until(lambda: attached(watching, hosts=7, waiting=6), "the waits")
    for host in hosts[:4]:
        host.kill()
    sent = [await phone.send(agent.agent_id, f"job {number}") for number in range(4)]
    done: list[str] = []

    async def work(host: Host, first: asyncio.Task[dict[str, Any]]) -> None:
        found = await first
        while len(done) < len(sent):
            for message in found["messages"]:
                await host.tool("mark_processed", messageId=message["message_id"])
                done.append(message["message_id"])
            found = await host.tool("wait_for_messages", timeoutMs=500)

    async with asyncio.timeout(40):
        await asyncio.gather(*(work(host, first) for host, first in zip(hosts[4:], waits[4:], strict=True)))
    assert sorted(done) == sorted(sent)
    gone = await asyncio.gather(*waits[:4], return_exceptions=True)
    assert all(isinstance(each, HostGone) for each in gone)
