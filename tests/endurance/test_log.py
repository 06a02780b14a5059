"""The store's log: nobody can make it grow without end, and it is folded in when there is time."""

from __future__ import annotations

import asyncio
import base64
import sys

from tests.e2e.stack import Stack, until

from .bent import World, bent_daemon

# A program with the key that begins to read and never finishes.
READER = """
import sys
from pathlib import Path
from pacerelled.store.driver import connect
conn = connect(Path(sys.argv[1]), bytes.fromhex(sys.argv[2]))
conn.execute("PRAGMA busy_timeout = 100").fetchall()
conn.execute("BEGIN")
try:
    conn.execute("SELECT count(*) FROM events").fetchone()
    print("reading", flush=True)
except Exception as error:
    print(error, flush=True)
sys.stdin.read()
"""


async def reader(machine: Stack) -> asyncio.subprocess.Process:
    key = base64.b64decode(machine.paths.key_file.read_bytes()).hex()
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", READER, str(machine.paths.store), key,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def said(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), 30)).decode().strip()


async def end(process: asyncio.subprocess.Process) -> None:
    assert process.stdin is not None
    process.stdin.close()
    await asyncio.wait_for(process.wait(), 30)


async def test_a_forgotten_reader_cannot_hold_the_log(machine: Stack, world: World) -> None:
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    world.bend(set={"pacerelled.store.upkeep.INTERVAL": 0.2})
    log = machine.paths.store.with_name("store.db-wal")
    async with bent_daemon(machine, world):
        host = await machine.host(agent)
        await host.connected()
        forgotten = await reader(machine)
        assert await said(forgotten) == "database is locked"
        largest = 0
        for number in range(30):
            await phone.send(agent.agent_id, f"{number} ".ljust(100_000, "x"))
            [request] = (await host.tool("wait_for_messages", timeoutMs=30_000))["messages"]
            await host.tool("mark_processed", messageId=request["message_id"])
            largest = max(largest, log.stat().st_size)
        assert largest < 8 << 20
        await until(lambda: log.stat().st_size == 0, "the log's end")
        await end(forgotten)
