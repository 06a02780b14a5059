"""Killing the phone, the agent or the relay at any point loses and doubles nothing."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import stat
import sys
from collections import Counter
from pathlib import Path

import pytest
from phone_world import DEADLINE, OpenPhone, SdkAgent, StartAgent, run_agent, until_read

from pacerelle_phone.device import Device
from pacerelle_phone.errors import AlreadyPaired, HomeInUse, HomeUnusable, InvalidArgument, NotPaired
from pacerelle_phone.model import Message
from pacerelle_relay.server import Relay, RelayConfig

WRITER = Path(__file__).parent / "phone_writer.py"


async def all_replied(phone: Device, conversation_id: str) -> list[Message]:
    """The conversation, once every message of ours has a reply."""
    told = await phone.conversation(conversation_id, 10_000)
    for message in told:
        if message.direction == "out":
            await phone.wait_reply(message.id, DEADLINE)
    return await phone.conversation(conversation_id, 10_000)


async def test_a_phone_killed_again_and_again(
    open_phone: OpenPhone, start_agent: StartAgent, relay: Relay, tmp_path: Path
) -> None:
    async with await Device.open(tmp_path / "writer", relay.url) as phone:
        await phone.register("Ann")
        paired = await phone.create_agent("Echo")
        await start_agent(paired)
    printed: list[int] = []
    rng = random.Random(7)
    for _ in range(6):
        process = await asyncio.create_subprocess_exec(
            sys.executable, str(WRITER), str(tmp_path / "writer"), "1000", stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None
        async with asyncio.timeout(DEADLINE):
            for _ in range(rng.randint(1, 12)):
                printed.append(int(await process.stdout.readline()))
        await asyncio.sleep(rng.random() * 0.05)
        process.kill()
        rest = await process.stdout.read()
        printed += [int(line) for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]
        await process.wait()

    phone = await open_phone("writer", register=False)
    told = await all_replied(phone, paired.conversation_id)
    written = [m.text for m in told if m.direction == "out"]
    assert len(written) == len(set(written)) >= len(printed)
    assert {f"message {n}" for n in printed} <= set(written)
    assert Counter(m.text for m in told if m.direction == "in") == Counter(f"Received: {text}" for text in written)


async def test_what_is_written_while_the_relay_is_away_is_sent_later(tmp_path: Path) -> None:
    config = RelayConfig(database=tmp_path / "relay" / "relay.db")
    async with Relay(config) as first:
        port = int(first.url.rpartition(":")[2])
        async with await Device.open(tmp_path / "phone", first.url) as phone:
            await phone.register("Ann")
            paired = await phone.create_agent("Echo")
    async with await Device.open(tmp_path / "phone") as phone:
        ids = [await phone.send("Echo", f"offline {n}") for n in range(3)]
        waiting = await phone.wait_sent(ids[0], 0.3)
        assert (waiting.state, waiting.reason) == ("queued", "relay_unreachable")
        assert (await phone.status()).queued == 3
    async with await Device.open(tmp_path / "phone") as phone, Relay(RelayConfig(config.database, port=port)) as relay:
        agent = await run_agent(paired, relay.url, tmp_path / "agent")
        assert [(await phone.wait_reply(i, DEADLINE)).text for i in ids] == [f"Received: offline {n}" for n in range(3)]
        assert (await phone.status()).queued == 0
        await agent.kill()


async def test_the_agent_answers_after_its_own_restart(phone: Device, start_agent: StartAgent) -> None:
    paired = await phone.create_agent("Echo")
    agent = await start_agent(paired)
    await phone.wait_reply(await phone.send("Echo", "one"), DEADLINE)
    await agent.kill()
    message_id = await phone.send("Echo", "two")
    await start_agent(paired)
    assert (await phone.wait_reply(message_id, DEADLINE)).text == "Received: two"
    assert [a.identity for a in await phone.agents()] == ["trusted"]


async def test_replies_that_came_while_the_phone_was_closed(
    start_agent: StartAgent, relay: Relay, tmp_path: Path
) -> None:
    async with await Device.open(tmp_path / "phone", relay.url) as phone:
        await phone.register("Ann")
        paired = await phone.create_agent("Echo")
        message_id = await phone.send("Echo", "are you there?")
        agent = await start_agent(paired)
        await phone.wait_reply(message_id, DEADLINE)
        await until_read(phone, message_id)
        await agent.kill()
        later = [await phone.send("Echo", f"later {n}") for n in range(3)]
        for i in later:
            await phone.wait_sent(i, DEADLINE)
        seen = await phone.last_seq()
    await start_agent(paired)
    async with await Device.open(tmp_path / "phone") as phone:
        for i in later:
            await phone.wait_reply(i, DEADLINE)
        fresh = [m.text async for m in _first(phone, 3, seen)]
        assert fresh == [f"Received: later {n}" for n in range(3)]


async def _first(phone: Device, count: int, after: int):  # type: ignore[no-untyped-def]
    async for message in phone.messages(after):
        yield message
        count -= 1
        if not count:
            return


async def test_many_messages_at_once(phone: Device, start_agent: StartAgent) -> None:
    await start_agent(await phone.create_agent("Echo"))
    ids = await asyncio.gather(*(phone.send("Echo", f"n {n}") for n in range(200)))
    replies = await asyncio.gather(*(phone.wait_reply(i, DEADLINE) for i in ids))
    assert [r.text for r in replies] == [f"Received: n {n}" for n in range(200)]


async def test_an_agent_with_another_key_waits_for_the_users_decision(phone: Device, start_agent: StartAgent) -> None:
    paired = await phone.create_agent("Echo")
    first = await start_agent(paired)
    await until_read(phone, await phone.send("Echo", "one"))
    await first.kill()
    second = await start_agent(paired, store="another")  # the same token, a new identity
    assert second.code != first.code

    notice = await phone.wait_for(lambda m: m.kind == "identity_changed", DEADLINE)
    assert notice.agent_id == paired.agent_id
    held = await phone.wait_sent(await phone.send("Echo", "two"), 0.3)
    assert (held.state, held.reason) == ("queued", "identity_changed")
    assert await phone.safety_code(paired.agent_id) == first.code
    assert await phone.new_safety_code(paired.agent_id) == second.code
    assert [a.identity for a in await phone.agents()] == ["changed"]

    await phone.trust_new_key(paired.agent_id)
    reply = await phone.wait_reply(held.id, DEADLINE)
    assert (reply.text, reply.archived) == ("Received: two", True)
    assert await phone.safety_code(paired.agent_id) == second.code
    assert await phone.new_safety_code(paired.agent_id) is None


async def test_a_changed_agent_gets_a_new_group_key(phone: Device, start_agent: StartAgent) -> None:
    paired = [await phone.create_agent(name) for name in ("One", "Two")]
    agents: list[SdkAgent] = [await start_agent(p, store=p.agent_id) for p in paired]
    group = await phone.create_group(["One", "Two"], "Both")
    await phone.wait_sent(await phone.send_group(group, "first"), DEADLINE)
    await phone.trust_new_key(agents[0].agent_id)  # it kept its key: the sessions start over, and the group's key too
    message_id = await phone.send_group(group, "second")
    answered: set[str] = set()
    async for message in phone.messages():
        if message.reply_to == message_id:
            assert message.text == "Received: second"
            answered.add(message.agent_id)
            if len(answered) == 2:
                break


async def test_one_process_a_home(phone: Device, tmp_path: Path, relay: Relay) -> None:
    with pytest.raises(HomeInUse) as info:
        await Device.open(tmp_path / "phone")
    assert info.value.pid == os.getpid()
    with pytest.raises(AlreadyPaired):
        await phone.register("Again")
    with pytest.raises(AlreadyPaired):
        await phone.link("code")


async def test_an_unpaired_home_says_what_to_do(tmp_path: Path) -> None:
    async with await Device.open(tmp_path / "new") as phone:
        for call in (phone.agents(), phone.create_link_code(), phone.own_safety_code()):
            with pytest.raises(NotPaired) as info:
                await call
            assert "pacerelle chat pair" in info.value.hint


async def test_a_home_belongs_to_one_relay(phone: Device, tmp_path: Path, relay: Relay) -> None:
    await phone.close()
    with pytest.raises(InvalidArgument):
        await Device.open(tmp_path / "phone", "http://127.0.0.1:1")
    async with await Device.open(tmp_path / "phone", relay.url + "/") as again:
        assert again.relay_url == relay.url


async def test_files_are_private(phone: Device, start_agent: StartAgent, tmp_path: Path) -> None:
    await start_agent(await phone.create_agent("Echo"))
    await phone.wait_reply(await phone.send("Echo", "one"), DEADLINE)
    home = tmp_path / "phone"
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in home.iterdir()}
    assert set(modes.values()) == {0o600}
    assert {"phone.db", "lock"} <= set(modes)


async def test_a_token_of_an_agent_is_nowhere_in_the_home(
    open_phone: OpenPhone, start_agent: StartAgent, tmp_path: Path
) -> None:
    phone = await open_phone()
    paired = await phone.create_agent("Echo")
    await start_agent(paired)
    await phone.wait_reply(await phone.send("Echo", "one"), DEADLINE)
    assert paired.agent_token not in repr(paired)
    for path in (tmp_path / "phone").iterdir():
        assert paired.agent_token.encode() not in path.read_bytes()


@pytest.mark.parametrize("harm", ["piece", "checksum", "version", "garbage", "directory"])
async def test_a_damaged_home_is_refused_and_left_as_it_is(
    phone: Device, relay: Relay, tmp_path: Path, harm: str
) -> None:
    await phone.close()
    database = tmp_path / "phone" / "phone.db"
    if harm == "garbage":
        database.write_bytes(b"not a database" * 1000)
    elif harm == "directory":
        database.unlink()
        database.mkdir()
    else:
        with sqlite3.connect(database, isolation_level=None) as db:
            db.execute(
                {
                    "piece": "UPDATE signal_pieces SET data = x'00'",
                    "checksum": "UPDATE signal_pieces SET sha256 = x'00'",
                    "version": "PRAGMA user_version = 99",
                }[harm]
            )
        db.close()
    before = None if harm == "directory" else database.read_bytes()
    with pytest.raises(HomeUnusable) as info:
        await Device.open(tmp_path / "phone")
    assert str(database) in info.value.message
    if before is not None:
        assert database.read_bytes() == before
