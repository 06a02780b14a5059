"""The daemon is killed while hosts of both eras work: they see slow answers, no error, nothing twice, nothing lost."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pacerelle_phone.device import Device
from pacerelle_phone.files import File
from pacerelle_phone.model import PairedAgent
from tests.e2e.stack import Stack, until
from tests.restart.machine import ERAS, EraHost, killed

CONFIG = 'keyring = false\nretry_uncertain = true\nreconnect_max = 1.0\nfiles_out = ["~/Documents"]\n'
URIS = ("conversation://current", "widget://pending")


@dataclass
class Seen:
    """What all hosts saw together."""

    holders: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    new: Counter[str] = field(default_factory=Counter)
    done: set[str] = field(default_factory=set)
    texts: list[str] = field(default_factory=list)  # that the phone must get once each
    updates: int = 0
    checkpoints: int = 0
    saved: list[str] = field(default_factory=list)
    given_back: set[str] = field(default_factory=set)
    taken_over: set[str] = field(default_factory=set)
    busy: asyncio.Event = field(default_factory=asyncio.Event)  # a request is being worked on


class Worker:
    """An assistant that makes calls of every kind for each request, several at a time. Any error is a failure."""

    def __init__(self, host: EraHost, document: Path, seen: Seen) -> None:
        self.host, self.document, self.seen = host, document, seen
        self.begun: set[str] = set()
        self.colleague = self

    async def run(self) -> None:
        await self.subscribe()
        beside = [asyncio.create_task(self.look()), *(asyncio.create_task(self.wait(n)) for n in range(2))]
        try:
            for ended in asyncio.as_completed(beside):
                await ended
        finally:
            for task in beside:
                task.cancel()

    async def subscribe(self) -> None:
        if self.host.era == "handshake":
            for uri in URIS:
                await self.host.result("resources/subscribe", uri=uri)
            return
        self.stream = asyncio.create_task(
            self.host.call("subscriptions/listen", {"notifications": {"resourceSubscriptions": list(URIS)}}, 600)
        )
        await until(self.host.acknowledged, "the acknowledgement")

    async def wait(self, _: int) -> None:
        while True:
            got = await self.host.tool("wait_for_messages", timeoutMs=30000, limit=2)
            await asyncio.gather(*(self.handle(message) for message in got["messages"]))

    async def look(self) -> None:
        while True:
            await asyncio.gather(
                self.host.tool("get_status"),
                self.host.tool("get_history", limit=3),
                self.host.tool("get_checkpoints"),
                self.host.result("tools/list"),
                self.host.result("prompts/get", name="start_pacerelle"),
                self.host.result("resources/read", uri=URIS[0]),
            )
            await asyncio.sleep(0.2)

    async def handle(self, message: dict[str, Any]) -> None:
        source, seen, tool = message["message_id"], self.seen, self.host.tool
        seen.holders[source].add(self.host.name)
        seen.new[source] += message["delivery"] == "new"
        if source in self.begun:
            return  # the other of our two waiting calls has it
        self.begun.add(source)
        seen.busy.set()
        number = int(message["text"].split()[1])
        if number % 4 == 1 and source not in seen.given_back:
            seen.given_back.add(source)
            got = await tool("wait_for_messages", timeoutMs=0, release=[source])
            await asyncio.gather(*(self.handle(other) for other in got["messages"]))
        elif number % 4 == 2:
            seen.taken_over.add(source)
            await self.colleague.take_over(message)
        else:
            await self.work(message)

    async def take_over(self, message: dict[str, Any]) -> None:
        source = message["message_id"]
        self.begun.add(source)
        self.seen.holders[source].add(self.host.name)
        more = {"summary": "mine now", "nextAction": "all of it", "takeOver": True}
        await self.host.tool("save_checkpoint", sourceMessageId=source, **more)
        self.seen.checkpoints += 1
        await self.work(message)

    async def work(self, message: dict[str, Any]) -> None:
        source, seen, tool = message["message_id"], self.seen, self.host.tool
        texts = [f"{kind} {source}" for kind in ("text", "widget", "file")]
        widget = {"type": "widget.standard", "v": 1, "id": f"w-{source}", "kind": "progress"}
        widget["spec"] = {"title": texts[1], "value": 1}
        attachment = message["attachments"][0]["id"]
        shown, _, _, _, saved = await asyncio.gather(
            tool("send_widget", widgetJson=widget, sourceMessageId=source),
            tool("send_message", text=texts[0], sourceMessageId=source),
            tool("send_file", path=str(self.document), text=texts[2], sourceMessageId=source),
            tool("save_checkpoint", sourceMessageId=source, summary="half", nextAction="the rest"),
            tool("save_attachment", messageId=source, attachmentId=attachment),
        )
        await tool("update_widget", messageId=shown["message_id"], spec={"value": 60})
        await tool("save_checkpoint", sourceMessageId=source, summary="all", nextAction="-", status="completed")
        marked = await tool("mark_processed", messageId=source, note=source)
        assert marked["note"] == source
        seen.texts += texts
        seen.updates += 1
        seen.checkpoints += 2
        seen.saved.append(saved["path"])
        seen.done.add(source)


async def calls_of_every_kind(machine: Stack, *, hosts: int, kills: int, rng: random.Random) -> None:
    machine.configure(CONFIG)
    document = machine.home / "Documents" / "plan.txt"
    document.parent.mkdir()
    document.write_text("The plan")
    phone = await machine.phone("ada")
    agent = await phone.create_agent("home")
    seen = Seen()
    workers = [Worker(EraHost(machine, agent, f"host {n}", ERAS[n % 2]), document, seen) for n in range(hosts)]
    for number, worker in enumerate(workers):
        worker.colleague = workers[number - 1]
    await asyncio.gather(*(worker.host.start() for worker in workers))
    await workers[0].host.connected()
    running = [asyncio.create_task(worker.run()) for worker in workers]
    asked: list[str] = []
    enough = asyncio.Event()
    asking = asyncio.create_task(ask(phone, agent, asked, enough))
    try:
        pids = set()
        for _ in range(kills):
            seen.busy.clear()
            await until(lambda: nothing_failed(running) and seen.busy.is_set(), "a request")
            await asyncio.sleep(rng.uniform(0.0, 0.08))  # in the midst of its calls
            pids.add(await killed(machine))
            await until(lambda: nothing_failed(running) and machine.daemon_pid() not in (None, *pids), "a new daemon")
        enough.set()
        await asking
        await until(lambda: nothing_failed(running) and len(seen.done) == len(asked), "all requests to be done", 240)
        assert len(pids) == kills
        await all_submitted(machine)
        await everything_arrived(phone, seen)
        await nothing_was_doubled(machine, seen, len(asked))
    finally:
        for task in (*running, asking):
            task.cancel()
        await asyncio.gather(*running, asking, return_exceptions=True)
        for worker in workers:
            if worker.host.era == "modern" and hasattr(worker, "stream"):
                assert worker.host.acknowledged() == 1
                worker.stream.cancel()
                await asyncio.gather(worker.stream, return_exceptions=True)


async def ask(phone: Device, agent: PairedAgent, asked: list[str], enough: asyncio.Event) -> None:
    """So that there is always something to do."""
    while not enough.is_set():
        file = File(f"{len(asked)}.txt", b"x" * 1000, "text/plain")
        asked.append(await phone.send(agent.agent_id, f"request {len(asked)}", files=[file]))
        await asyncio.sleep(0.5)


def nothing_failed(tasks: list[asyncio.Task[None]]) -> bool:
    for task in tasks:
        if task.done():
            task.result()
    return True


async def all_submitted(machine: Stack) -> None:
    """A reply that was under way in many kills is left to whoever decides: the same envelope goes out again."""
    async with machine.control() as control:

        async def none_open() -> bool:
            async with control.get("/v1/agents/-/replies", params={"state": "open", "limit": 500}) as response:
                replies = (await response.json())["replies"]
            for reply in replies:
                if reply["state"] == "uncertain":
                    async with control.post(f"/v1/agents/-/replies/{reply['message_id']}/retry") as response:
                        assert response.status == 200
            return not replies

        await until(none_open, "all replies to be submitted")


async def everything_arrived(phone: Device, seen: Seen) -> None:
    counted: Counter[str] = Counter()
    updates = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(60):
            async for message in phone.messages(0):
                if message.direction != "in":
                    continue
                if message.kind == "widget_update":
                    updates += 1
                elif message.kind == "widget":
                    assert message.widget is not None
                    counted[message.widget.spec["title"]] += 1
                else:
                    assert message.kind == "text", f"{message.kind}: {message.reason}"
                    counted[message.text] += 1
                if updates >= seen.updates and len(counted) >= len(seen.texts):
                    break
    assert counted == Counter(seen.texts)
    assert updates == seen.updates


async def nothing_was_doubled(machine: Stack, seen: Seen, requests: int) -> None:
    """By what hosts saw, and by the daemon's own log of what happened."""
    moved = Counter([*seen.given_back, *seen.taken_over])
    assert all(len(holders) == 1 + moved[source] for source, holders in seen.holders.items()), "a claim was lost"
    assert max(seen.new.values()) == 1
    events: Counter[str] = Counter()
    replies: set[str] = set()
    cursor = "start"
    async with machine.control() as control:
        while True:
            async with control.get("/v1/events", params={"cursor": cursor, "limit": 500}) as response:
                page = await response.json()
            assert not page["gap"]
            events.update(event["type"] for event in page["events"])
            replies |= {e["data"]["message_id"] for e in page["events"] if e["type"] == "reply.queued"}
            cursor = page["next_cursor"]
            if not page["events"]:
                break
    assert events["message.processed"] == requests
    assert events["claim.released"] == len(seen.given_back) > 0
    assert events["message.claimed"] == requests + len(seen.given_back) + len(seen.taken_over)
    assert seen.taken_over
    assert events["checkpoint.saved"] == seen.checkpoints
    assert len(replies) == len(seen.texts) + seen.updates
    folder = machine.home / "Downloads" / "Pacerelle"
    assert sorted(map(str, folder.iterdir())) == sorted(seen.saved)
    assert len(seen.saved) == requests


async def test_calls_of_every_kind_outlive_kills(machine: Stack) -> None:
    await calls_of_every_kind(machine, hosts=4, kills=3, rng=random.Random(1))


@pytest.mark.long
async def test_twenty_hosts_with_calls_of_every_kind_outlive_twenty_kills(machine: Stack) -> None:
    await calls_of_every_kind(machine, hosts=20, kills=20, rng=random.Random(2))
