"""Requests and replies going on while a test disturbs them, and what must hold of them whatever happened."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from pacerelle_phone.device import Device
from pacerelle_phone.model import Message, PairedAgent
from tests.e2e.stack import Host, Stack, until
from tests.e2e.storm import Seen, Worker, failed

MOST = 400


class Traffic:
    """One phone, one agent, and hosts that answer each request once and mark it processed."""

    def __init__(self, stack: Stack, phone: Device, agent: PairedAgent, hosts: int, all_certain: bool) -> None:
        self.stack, self.phone, self.agent = stack, phone, agent
        self.seen = Seen()
        self.asked: dict[str, str] = {}  # request -> its text
        self._all_certain = all_certain
        self._workers = [Worker(stack, agent, f"host-{number}", self.seen) for number in range(hosts)]
        self._tasks: list[asyncio.Task[None]] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def going_on(cls, stack: Stack, *, all_certain: bool, hosts: int = 1) -> AsyncIterator[Traffic]:
        """`all_certain`: no reply may stay uncertain, since configuration asks that they be sent once more."""
        phone = await stack.phone("ada")
        traffic = cls(stack, phone, await phone.create_agent("home"), hosts, all_certain)
        traffic._tasks = [asyncio.create_task(worker.run()) for worker in traffic._workers]
        try:
            yield traffic
        finally:
            for task in traffic._tasks:
                task.cancel()
            await asyncio.gather(*traffic._tasks, return_exceptions=True)
            for host in stack.hosts:
                host.kill()
                await host.stop()

    @property
    def host(self) -> Host:
        host = self._workers[0].host
        assert host is not None
        return host

    @property
    def is_quiet(self) -> bool:
        """Whether everything asked so far has been processed."""
        return not failed(self._tasks) and len(self.seen.processed) == len(self.asked)

    async def ask(self, count: int, *, every: float = 0.0, size: int = 0) -> None:
        """Sends requests, one each `every` seconds, with texts of at least `size` characters."""
        for _ in range(count):
            text = f"request {len(self.asked)} ".ljust(size, "x")
            self.asked[await self.phone.send(self.agent.agent_id, text)] = text
            await asyncio.sleep(every)

    @contextlib.asynccontextmanager
    async def asking(self, *, every: float, size: int = 0) -> AsyncIterator[None]:
        """Sends requests all the while, until there are `MOST`."""
        over = asyncio.Event()

        async def ask() -> None:
            while not over.is_set() and len(self.asked) < MOST:
                await self.ask(1, every=every, size=size)

        task = asyncio.create_task(ask())
        try:
            yield
        finally:
            over.set()
            await task

    async def until_processed(self, count: int | None = None) -> None:
        """Until so many requests have been processed; all that were asked, if nothing is said."""
        wanted = len(self.asked) if count is None else count
        await until(lambda: failed(self._tasks) or len(self.seen.processed) >= wanted, f"{wanted} processed requests")

    async def check(self) -> None:
        """Waits for the end of all requests and replies; then nothing is lost, and nothing is doubled.

        Replies may be left `uncertain` unless all must be certain.
        """
        await self.until_processed()
        replies = await until(self._settled, "the end of all replies")
        self._check_requests()
        assert {r["source_message_id"]: r["message_id"] for r in replies} == self.seen.accepted
        certain = {r["message_id"] for r in replies if r["state"] == "submitted"}
        uncertain = {r["message_id"] for r in replies if r["state"] == "uncertain"}
        assert len(replies) == len(certain) + len(uncertain)
        await self._check_phone(certain, maybe=uncertain)
        self._check_log()

    def _check_requests(self) -> None:
        seen = self.seen
        assert set(self.asked) == seen.new.keys() | seen.again.keys(), "a request was never handed out"
        assert max(seen.new.values()) == 1, "a request was handed out as new more than once"
        assert not seen.after_processed
        assert set(seen.accepted) == set(self.asked)

    async def _settled(self) -> list[dict[str, Any]] | None:
        """All replies, once none is on its way and the link stands."""
        assert not failed(self._tasks)
        status = await self.host.tool("get_status")
        if status["connection"] != "connected" or status["queued"] or status["pending_requests"]:
            return None
        if self._all_certain and status["uncertain"]:
            return None
        async with self.stack.control() as control, control.get("/v1/agents/-/replies?limit=500") as response:
            replies: list[dict[str, Any]] = (await response.json())["replies"]
            return replies

    async def _check_phone(self, wanted: set[str], *, maybe: set[str]) -> None:
        """On the phone: each of `wanted` exactly once, each of `maybe` at most once, nothing else."""

        async def there() -> bool:
            return wanted <= {m.id for m in await self._incoming()}

        await until(there, "the replies on the phone")
        incoming = await self._incoming()
        assert max(Counter(m.id for m in incoming).values(), default=1) == 1
        assert {m.id for m in incoming} <= wanted | maybe
        for message in incoming:
            assert message.kind == "text", message.reason
            assert message.reply_to is not None
            assert message.text == f"re: {self.asked[message.reply_to]}"

    async def _incoming(self) -> list[Message]:
        told = await self.phone.conversation(self.agent.conversation_id, limit=10_000)
        return [m for m in told if m.direction == "in"]

    def _check_log(self) -> None:
        log = self.stack.paths.state / "pacerelled.log"
        assert "Traceback" not in log.read_text(), log.read_text()
