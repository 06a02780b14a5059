"""What the relay has accepted outlives it: killed and restarted at random points, stopped, pruned, short of disk."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sqlite3
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from relay_people import Agent, Device, text_message

from pacerelle_relay.database import Database
from pacerelle_relay.errors import Conflict, DataError, StorageFailed
from pacerelle_relay.limits import Limits
from pacerelle_relay.schema import VERSION
from pacerelle_relay.server import Relay, RelayConfig

RUN = "from pacerelle_relay.cli import relay; relay()"


@asynccontextmanager
async def relay_process(data: Path, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """`pacerelle relay` in a process of its own; killed at the end unless it has ended."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN, "--data", str(data), "--port", str(port), "--json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        assert json.loads(await process.stdout.readline())["url"] == f"http://127.0.0.1:{port}"
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Life:
    """A person writes, an agent answers and acknowledges, a device acknowledges, however often the relay goes away."""

    def __init__(self, ann: Device, agent: Agent, total: int) -> None:
        self.ann = ann
        self.agent = agent
        self.total = total
        self.acknowledged: set[str] = set()  # questions whose acknowledgement a pong has proved
        self.answers: dict[str, None] = {}  # ids, in the order in which they were first seen
        self.acknowledged_seq = 0
        self.repeated: list[str] = []  # what came again although its acknowledgement had been proved

    async def run(self) -> None:
        answering = asyncio.create_task(self._persist(self._answer))
        await asyncio.gather(self._persist(self._write), self._persist(self._read))
        answering.cancel()  # it cannot know that it is done: a pong may have died with the relay
        await asyncio.wait([answering])

    async def _persist(self, part: Callable[[], Awaitable[object]]) -> None:
        while True:
            try:
                await part()
                return
            except (aiohttp.ClientError, OSError):
                await asyncio.sleep(0.02)

    async def _write(self) -> None:
        for i in range(self.total):
            question = text_message(self.agent.conversation_id, self.agent.id, id=f"{i:04}")
            await self._persist(partial(self.ann.post, question))

    async def _answer(self) -> None:
        async with self.agent.connected() as wire:
            while True:
                message = await wire.ws.receive()
                if message.type is aiohttp.WSMsgType.TEXT:
                    question = json.loads(message.data)
                    id = question["id"]
                    if id in self.acknowledged:
                        self.repeated.append(id)
                    await wire.say(text_message(self.agent.conversation_id, self.ann.user_id, id=f"answer-{id}"))
                    await wire.ack_read(question)
                    await wire.ws.ping(id.encode())
                elif message.type is aiohttp.WSMsgType.PONG:
                    self.acknowledged.add(message.data.decode())
                else:
                    raise ConnectionError

    async def _read(self) -> None:
        async with self.ann.connected() as wire:
            while len(self.answers) < self.total:
                message = await wire.ws.receive()
                if message.type is aiohttp.WSMsgType.TEXT:
                    frame = json.loads(message.data)
                    if frame["seq"] <= self.acknowledged_seq:
                        self.repeated.append(message.data)
                    if frame["type"] == "MSG":
                        self.answers.setdefault(frame["id"])
                    await wire.ack(frame)
                    await wire.ws.ping(str(frame["seq"]).encode())
                elif message.type is aiohttp.WSMsgType.PONG:
                    self.acknowledged_seq = int(message.data)
                else:
                    raise ConnectionError


async def test_killed_at_any_moment_it_loses_nothing_and_repeats_nothing_acknowledged(
    data: Path, http: aiohttp.ClientSession
) -> None:
    port = free_port()
    async with relay_process(data, port):
        ann = await Device.first(http, f"http://127.0.0.1:{port}")
        life = Life(ann, await ann.new_agent(), 400)
    chance = random.Random(7)
    lives = 0
    async with asyncio.timeout(90):
        people = asyncio.create_task(life.run())
        while not people.done():
            async with relay_process(data, port):
                lives += 1
                await asyncio.wait([people], timeout=chance.uniform(0.05, 0.4) if lives < 8 else None)
        await people
    assert lives > 3
    assert life.repeated == []
    assert list(life.answers) == [f"answer-{i:04}" for i in range(life.total)]


async def test_tokens_sessions_and_files_outlive_a_kill(data: Path, http: aiohttp.ClientSession) -> None:
    port = free_port()
    async with relay_process(data, port):
        ann = await Device.first(http, f"http://127.0.0.1:{port}")
        agent = await ann.new_agent()
        blob = await agent.ok("POST", "/agent/blobs", data=b"ciphertext", headers={"X-Blob-Name": "a%20b"})
        (data / "blobs" / f"b-{0:020}").write_bytes(b"half an upload")
        (data / "blobs" / "README").write_bytes(b"of somebody else")
    async with relay_process(data, port):
        assert await ann.fetch(f"/blobs/{blob['id']}") == (200, b"ciphertext")
        assert [a["agent_id"] for a in (await ann.ok("GET", "/agents"))["agents"]] == [agent.id]
        assert sorted(os.listdir(data / "blobs")) == ["README", blob["id"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_stops_it_cleanly_with_people_connected(
    data: Path, http: aiohttp.ClientSession, number: int
) -> None:
    port = free_port()
    async with relay_process(data, port) as process:
        ann = await Device.first(http, f"http://127.0.0.1:{port}")
        agent = await ann.new_agent()
        async with agent.connected() as wire, ann.connected() as device:
            await wire.stored()
            process.send_signal(number)
            assert await asyncio.gather(wire.closed(), device.closed()) == [1001, 1001]
            assert await asyncio.wait_for(process.wait(), 20) == 0
    assert sorted(os.listdir(data)) == ["blobs", "relay.db", "relay.lock"]  # no journal left: it was closed properly


async def test_modes_are_for_the_owner_only(relay: Relay, ann: Device, data: Path) -> None:
    await ann.ok("POST", "/blobs", data=b"x")
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in [data, *data.rglob("*")]}
    assert len(found) >= 6  # the directories, database, its journal, the lock and the blob
    assert {mode for path, mode in found.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in found.items() if path.is_file()} == {0o600}


async def test_one_relay_a_directory(relay: Relay, data: Path) -> None:
    with pytest.raises(DataError, match="another relay"):
        await Relay(RelayConfig(data / "relay.db")).start()


@pytest.mark.parametrize("content", ["text", "a database of something else", "a newer format"])
async def test_a_file_that_is_not_its_own_is_left_alone(data: Path, content: str) -> None:
    data.mkdir()
    path = data / "relay.db"
    if content == "text":
        path.write_bytes(b"not a database, " * 500)
    elif content == "a newer format":
        async with Relay(RelayConfig(path)):
            pass
        with sqlite3.connect(path) as db:
            db.execute(f"PRAGMA user_version={VERSION + 1}")
        db.close()
    else:
        with sqlite3.connect(path) as db:
            db.execute("CREATE TABLE other (x)")
        db.close()
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(DataError):
            await Relay(RelayConfig(path)).start()
    assert path.read_bytes() == before


async def test_old_things_are_forgotten(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(acknowledged_s=0, blob_s=0))
    ann = await Device.first(http, relay.url)
    agent = await ann.new_agent()
    blob = await ann.ok("POST", "/blobs", data=b"x")
    read, unread = (text_message(agent.conversation_id, agent.id) for _ in range(2))
    await ann.post(read)
    await ann.post(unread)
    async with agent.connected() as wire:
        await wire.ack_read(await wire.receive())
        await wire.stored()
    await relay.prune()
    assert (await ann.fetch(f"/blobs/{blob['id']}"))[0] == 404
    assert os.listdir(relay.config.database.parent / "blobs") == []
    assert (await ann.post(unread))["duplicate"]
    assert not (await ann.post(read))["duplicate"]  # it is not known any more


async def test_what_nobody_fetches_is_forgotten_at_last(start_relay: Any, http: aiohttp.ClientSession) -> None:
    relay = await start_relay(Limits(acknowledged_s=0, unacknowledged_s=0))
    ann = await Device.first(http, relay.url)
    agent = await ann.new_agent()
    for _ in range(2):
        await ann.post(text_message(agent.conversation_id, agent.id))
    await relay.prune()
    async with agent.connected() as wire:
        assert await ann.waiting_for(agent, wire) == []


# The database's thread


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database(tmp_path / "test.db")
    await database.open()
    yield database
    await database.close()


def insert(db: sqlite3.Connection, id: str, error: Exception | None = None) -> str:
    db.execute("INSERT INTO accounts VALUES (?, 'x', 0)", (id,))
    if error is not None:
        raise error
    return id


def ids(db: sqlite3.Connection) -> list[str]:
    return [row[0] for row in db.execute("SELECT id FROM accounts ORDER BY id")]


async def test_work_that_fails_is_undone_alone(database: Database) -> None:
    futures = [
        database.submit(insert, "a"),
        database.submit(insert, "b", Conflict("no")),
        database.submit(insert, "c", sqlite3.OperationalError("disk I/O error")),
        database.submit(insert, "a"),  # breaks a rule of the schema
        database.submit(insert, "d", RuntimeError("a defect")),
        database.submit(insert, "e"),
    ]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [r if isinstance(r, str) else type(r) for r in results] == [
        "a",
        Conflict,
        StorageFailed,
        StorageFailed,
        RuntimeError,
        "e",
    ]
    assert await database.run(ids) == ["a", "e"]


async def test_a_cancelled_caller_does_no_harm(database: Database) -> None:
    future = database.submit(insert, "a")
    future.cancel()
    assert await database.run(insert, "b") == "b"
    assert await database.run(ids) == ["a", "b"]


async def test_a_closed_database_refuses(tmp_path: Path) -> None:
    database = Database(tmp_path / "test.db")
    await database.open()
    accepted = database.submit(insert, "a")
    await database.close()
    assert await accepted == "a"
    with pytest.raises(StorageFailed):
        await database.run(insert, "b")


async def test_nothing_is_confirmed_that_could_not_be_stored(relay: Relay, ann: Device, agent: Agent) -> None:
    """A full disk: the device gets 503, the agent no pong but 1011, and both succeed afterwards."""

    def limit(db: sqlite3.Connection, more: int) -> None:
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count={pages + more}")

    message = text_message(agent.conversation_id, agent.id, "x" * 100_000)
    async with agent.connected() as wire, ann.connected() as device:
        await wire.stored()
        await relay._database.run(limit, 0)
        await ann.refused(503, "storage", "POST", "/messages", message)
        await wire.say(text_message(agent.conversation_id, ann.user_id, "x" * 100_000, id="big"))
        await wire.ws.ping()
        assert await wire.closed() == 1011
        await relay._database.run(limit, 10_000)
        assert not (await ann.post(message))["duplicate"]
        async with agent.connected() as again:
            assert (await again.receive())["id"] == message["id"]
            await again.say(text_message(agent.conversation_id, ann.user_id, id="big"))
            assert (await device.receive())["id"] == "big"
