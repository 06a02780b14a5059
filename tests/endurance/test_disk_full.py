"""The disk is full: people are told, nothing is lost, and everything goes on by itself when there is space again."""

from __future__ import annotations

import resource
import shutil
import sys
from pathlib import Path

import pytest

from pacerelle_phone.device import Device
from tests.daemon.process import Daemon
from tests.e2e.stack import Host, Stack, stack, until

from .bent import World, bent_daemon, pacerelle, problems
from .disks import Disk, SizeLimit, SmallFileSystem, idle

NO_FILE_SYSTEM = SmallFileSystem.missing()
DISKS = [
    pytest.param(SmallFileSystem, marks=pytest.mark.skipif(bool(NO_FILE_SYSTEM), reason=str(NO_FILE_SYSTEM))),
    pytest.param(
        SizeLimit, marks=pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="this system has no prlimit")
    ),
]


async def refused(host: Host, tool: str, **arguments: object) -> str:
    """The text of a tool error."""
    answer = await host.call("tools/call", {"name": tool, "arguments": arguments})
    assert answer["result"]["isError"], answer
    text: str = answer["result"]["content"][0]["text"]
    return text


@pytest.mark.parametrize("kind", DISKS)
async def test_a_full_disk_end_to_end(tmp_path: Path, world: World, kind: type[SmallFileSystem | SizeLimit]) -> None:
    home = tmp_path / ("long" * 25)  # so long that the sockets lie elsewhere, outside of the small file system
    home.mkdir()
    world.bend(set={"pacerelled.store.upkeep.PROBE": 0.3})
    async with stack(home) as machine:
        disk: Disk = kind(machine.paths)
        phone = await machine.phone("ada")
        agent = await phone.create_agent("home")
        async with bent_daemon(machine, world, before=disk.before) as daemon:
            host = await machine.host(agent)
            await host.connected()
            first = await phone.send(agent.agent_id, "first")
            [request] = (await host.tool("wait_for_messages", timeoutMs=30_000))["messages"]
            disk.fill(daemon)

            # A request that comes now is not acknowledged; it stays with the relay.
            second = await phone.send(agent.agent_id, "second " + "x" * 20_000)

            async def told() -> bool:
                return "store_unavailable" in problems(await daemon.status())

            await until(told, "the problem in status")
            code, status = await pacerelle(machine, "status")
            assert code == 1
            problem = problems(status)["store_unavailable"]
            assert "cannot be written" in problem["message"]
            assert "disk space" in problem["hint"]
            tool_status = await host.tool("get_status")
            assert tool_status["connection"] == "connected"
            await idle()
            assert (await state_of(phone, agent.agent_id, second)) == "sent"

            # A reply is refused, with what is wrong and what to do.
            error = await refused(host, "send_message", text="y" * 20_000, sourceMessageId=first)
            assert "cannot be written" in error
            assert "disk space" in error
            await refused(host, "mark_processed", messageId=first, note="z" * 2_000)
            code, sent = await pacerelle(machine, "send", "y" * 20_000, "--reply-to", first)
            assert (code, sent["error"]["code"]) == (1, "store_unavailable")

            disk.free(daemon)
            got = await host.tool("wait_for_messages", timeoutMs=30_000, afterCursor=request["cursor"])
            assert [m["text"][:6] for m in got["messages"]] == ["second"]
            await host.tool("send_message", text="re: first", sourceMessageId=first)
            assert (await phone.wait_reply(first, 30)).text == "re: first"

            async def well() -> bool:
                return (await pacerelle(machine, "status"))[0] == 0

            await until(well, "no problem in status")
            for message in (first, second):
                assert (await state_of(phone, agent.agent_id, message)) == "read"
                await host.tool("mark_processed", messageId=message)
            assert [r["text"][:6] for r in (await host.tool("get_history"))["requests"]] == ["first", "second"]
            told_phone = await phone.conversation(agent.conversation_id, limit=100)
            assert [m.text for m in told_phone if m.direction == "in"] == ["re: first"]
            daemon.signal()
            assert await daemon.ended() == 0
            assert "Traceback" not in await daemon.errors()


async def state_of(phone: Device, agent_id: str, message_id: str) -> str:
    """`sent`: the relay keeps it; `read`: the agent has acknowledged it."""
    conversation = next(a.conversation_id for a in await phone.known_agents() if a.agent_id == agent_id)
    messages = await phone.conversation(conversation, limit=100)
    return next(str(m.state) for m in messages if m.id == message_id)


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="there is no prlimit here")
async def test_a_start_on_a_full_disk_is_refused_and_loses_nothing(machine: Stack, world: World) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    async with bent_daemon(machine, world):
        host = await machine.host(agent)
        await host.connected()
        await phone.send(agent.agent_id, "before")
        await host.tool("wait_for_messages", timeoutMs=30_000)
        await host.stop()
    limited = ("prlimit", "--fsize=4096:unlimited", sys.executable, "-m", "pacerelled")
    code, said = await Daemon(machine.home, root=machine.root).run(command=limited)
    assert code == 74
    assert "cannot be written" in said
    assert "disk space" in said
    await phone.send(agent.agent_id, "late")
    async with bent_daemon(machine, world):
        host = await machine.host(agent)
        texts: set[str] = set()

        async def both() -> bool:
            got = await host.tool("wait_for_messages", timeoutMs=1000)
            texts.update(message["text"] for message in got["messages"])
            return texts == {"before", "late"}

        await until(both, "both requests")
