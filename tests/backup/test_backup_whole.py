"""A backup made while messages come in, and put into place again: messages are there, encryption starts anew."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path
from typing import Any

from tests.backup.commands import FROM_STDIN, PHRASE, done, pacerelle
from tests.e2e.stack import Host, Stack, until


async def read_all(host: Host) -> dict[str, str]:
    """Every pending request by its text, marked processed."""
    found: dict[str, str] = {}
    while True:
        got = await host.tool("wait_for_messages", timeoutMs=0, limit=50)
        if not got["messages"]:
            return found
        for message in got["messages"]:
            found[message["text"]] = message["message_id"]
            await host.tool("mark_processed", messageId=message["message_id"])


async def test_made_under_traffic_and_restored_elsewhere(machine: Stack) -> None:
    original = machine.root / "agent-1" / "state.db"
    original.parent.mkdir(parents=True)
    original.write_bytes(b"of the original server")
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    host = await machine.host(agent)
    await host.connected()
    machine.configure("claim_lease = 1234.0\n")
    first = await phone.send(agent.agent_id, "before the backup")
    await host.tool("wait_for_messages", timeoutMs=30_000)
    await host.tool("send_message", text="an answer from before", sourceMessageId=first)
    assert (await phone.wait_reply(first, 30)).text == "an answer from before"

    sending = asyncio.create_task(_send_all(phone, agent.agent_id, 40))
    file = machine.home / "home.backup"
    answer = await done(machine.home, "backup", str(file), *FROM_STDIN)
    assert answer["size"] == file.stat().st_size
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    await sending

    async def all_there() -> bool:
        return bool((await host.tool("get_status"))["pending_requests"] == 41)

    await until(all_there, "what came in during and after the backup")
    code = (await _status(machine))["agents"][0]["safety_code"]
    await host.tool("send_message", text="after the backup", sourceMessageId=first)
    assert original.read_bytes() == b"of the original server"

    # The same machine lost its store; everything else goes on.
    await host.stop()
    await machine.stop_daemon()
    _, refused, _ = await pacerelle(machine.home, "restore", str(file), *FROM_STDIN)
    assert refused["error"]["code"] == "store_exists"
    restored = await done(machine.home, "restore", str(file), "--move-aside", *FROM_STDIN)
    assert restored["agents"] == 1
    assert any("have to write first" in what for what in restored["afresh"])
    assert (Path(restored["moved_to"]) / "store.db").exists()
    assert original.read_bytes() == b"of the original server"
    assert sorted(p.name for p in machine.root.iterdir()) == ["agent-1", "pacerelled"]
    assert machine.paths.config.read_text() == "claim_lease = 1234.0\n"

    host = await machine.host(agent)
    await host.connected()
    exported = await done(machine.home, "export", str(machine.home / "messages.jsonl"))
    lines = [json.loads(line) for line in (machine.home / "messages.jsonl").read_text().splitlines()]
    assert exported["messages"] == len(lines)
    assert stat.S_IMODE((machine.home / "messages.jsonl").stat().st_mode) == 0o600
    replies = {line["text"]: line["state"] for line in lines if line["type"] == "reply"}
    assert replies == {"an answer from before": "submitted"}
    texts = await read_all(host)
    assert "before the backup" in texts
    assert list(texts)[1:] == [f"number {n}" for n in range(len(texts) - 1)], "one moment: no gap"

    # Nothing is encrypted with the sessions of before, and the phone is told why.
    failed = await host.call(
        "tools/call", {"name": "send_message", "arguments": {"text": "x", "sourceMessageId": first}}
    )
    assert "write first" in json.dumps(failed)
    new = (await _status(machine))["agents"][0]["safety_code"]
    assert new != code

    async def shown() -> bool:
        return await phone.new_safety_code(agent.agent_id) == new

    await until(shown, "the new safety code on the phone")
    await phone.trust_new_key(agent.agent_id)
    again = await phone.send(agent.agent_id, "after the restore")
    await until(lambda: _got(host, "after the restore"), "the first message to the new identity")
    await host.tool("send_message", text="hello again", sourceMessageId=again)
    assert (await phone.wait_reply(again, 30)).text == "hello again"


async def _send_all(phone: Any, agent_id: str, count: int) -> None:
    for number in range(count):
        await phone.send(agent_id, f"number {number}")


async def _got(host: Host, text: str) -> bool:
    got = await host.tool("wait_for_messages", timeoutMs=1000)
    return text in [message["text"] for message in got["messages"]]


async def _status(machine: Stack) -> dict[str, Any]:
    async with machine.control() as control, control.get("/v1/status") as answer:
        found: dict[str, Any] = await answer.json()
        return found


async def test_a_wrong_passphrase_and_a_short_one(machine: Stack) -> None:
    phone = await machine.phone("ada")
    host = await machine.host(await phone.create_agent("home"))
    await host.connected()
    file = machine.home / "b"
    code, answer, _ = await pacerelle(machine.home, "backup", str(file), *FROM_STDIN, stdin="short")
    assert (code, answer["error"]["code"]) == (1, "invalid_argument")
    assert list(machine.home.glob("*b*.part")) == []
    assert not file.exists()
    await done(machine.home, "backup", str(file), *FROM_STDIN)
    assert PHRASE.encode() not in file.read_bytes()
    await host.stop()
    await machine.stop_daemon()
    before = sorted(path.name for path in machine.paths.state.iterdir())
    _, answer, _ = await pacerelle(machine.home, "restore", str(file), "--move-aside", *FROM_STDIN, stdin="wrong one")
    assert answer["error"]["code"] == "wrong_passphrase"
    assert sorted(path.name for path in machine.paths.state.iterdir()) == before
