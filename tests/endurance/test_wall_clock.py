"""Somebody sets the machine's clock by years, forward and back, while everything is in use: nobody notices."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from tests.e2e.stack import Host, Stack, until

from .bent import YEARS, World, bent_daemon, pacerelle, restart

CONFIG = "claim_lease = 60\nclaim_grace = 60\nreconnect_max = 0.5\nping_interval = 0.5\nping_timeout = 5\n"


async def take(host: Host, *, wait: int = 30_000) -> list[str]:
    """The texts that the host is given."""
    got = await host.tool("wait_for_messages", timeoutMs=wait)
    return [message["text"] for message in got["messages"]]


async def take_and_finish(host: Host) -> str:
    [message] = (await host.tool("wait_for_messages", timeoutMs=30_000, limit=1))["messages"]
    await host.tool("send_message", text=f"re: {message['text']}", sourceMessageId=message["message_id"])
    await host.tool("mark_processed", messageId=message["message_id"])
    text: str = message["text"]
    return text


@pytest.mark.parametrize("jumps", [(30, -30), pytest.param((-40, 50), marks=pytest.mark.long)], ids=str)
async def test_jumps_of_years_disturb_nothing(machine: Stack, world: World, jumps: tuple[int, int]) -> None:
    machine.configure(CONFIG)
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    world.bend(set={"pacerelled.store.upkeep.INTERVAL": 0.2, "pacerelled.store.upkeep.SAVE_CLOCK": 1})
    async with bent_daemon(machine, world) as daemon:
        working, other = await machine.host(agent, "working"), await machine.host(agent, "other")
        await working.connected()
        await phone.send(agent.agent_id, "before")
        assert await take_and_finish(other) == "before"
        await phone.send(agent.agent_id, "long work")
        assert await take(working) == ["long work"]
        waiting = asyncio.create_task(other.tool("wait_for_messages", timeoutMs=1_500))
        await asyncio.sleep(0.3)
        for jump in jumps:
            world.bend(clock=jump * YEARS)
            wall = datetime.now(UTC) + timedelta(days=jump * 365)
            # A wait neither ends nor lasts for years, the relay's connection stands, and a claim is a claim.
            assert (await waiting)["messages"] == []
            assert (await working.tool("get_status"))["connection"] == "connected"
            sent = await phone.send(agent.agent_id, f"after {jump}")
            assert await take_and_finish(other) == f"after {jump}"
            assert (await phone.wait_reply(sent, 30)).text == f"re: after {jump}"
            history = (await other.tool("get_history"))["requests"]
            assert [r["text"] for r in history][-1] == f"after {jump}"
            assert abs(datetime.fromisoformat(history[-1]["received_at"]) - wall) < timedelta(minutes=5)
            # Lost connections are made again, at their pace.
            await machine.relay.kill()
            await until(lambda: daemon_sees(machine, "reconnecting"), "the loss")
            await machine.relay.start()
            await working.connected()
            waiting = asyncio.create_task(other.tool("wait_for_messages", timeoutMs=1_500))
        await waiting
        code, status = await pacerelle(machine, "status")
        assert code == 0, status
        assert 0 <= status["daemon"]["uptime_s"] < 600
        # After a restart in another age the sessions are known again by their processes, and keep what they hold.
        world.bend(clock=jumps[0] * YEARS)
        assert "failed" not in await restart(daemon, world)
        assert await take(other, wait=1_500) == []
        assert await take(working) == ["long work"]
        async with machine.control() as control, control.get("/v1/agents/-/history") as response:
            history = await response.json()
        texts = ["before", "long work", *(f"after {jump}" for jump in jumps)]
        assert [r["text"] for r in history["requests"]] == texts, "kept, in the order in which they came"
        assert [r["text"] for r in history["replies"]] == [f"re: {t}" for t in texts if t != "long work"]
        async with machine.control() as control, control.get("/v1/events?cursor=start&limit=500") as response:
            numbers = [event["seq"] for event in (await response.json())["events"]]
        assert numbers == list(range(1, len(numbers) + 1))


async def daemon_sees(machine: Stack, connection: str) -> bool:
    async with machine.control() as control, control.get("/v1/agents") as response:
        return bool((await response.json())["agents"][0]["connection"] == connection)
