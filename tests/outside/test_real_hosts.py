"""A real Claude Code and a real Codex share one agent: each request is done once, also when one of them is killed."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pacerelle_phone.device import Device
from pacerelle_phone.errors import WaitTimeout
from pacerelle_phone.model import PairedAgent
from tests.e2e.stack import DEADLINE, Stack, stack, until
from tests.outside.node import Unavailable
from tests.outside.real_hosts import RealHost, claude_code, codex
from tests.outside.scripted_model import Call, Conversation, Script, ScriptedModel, scripted_model

pytestmark = pytest.mark.outside


@dataclass
class Worker:
    """The script of one host's model, and what the test sees and decides of it."""

    name: str
    go: asyncio.Event = field(default_factory=asyncio.Event)  # it asks for work only while this is set
    taken: list[str] = field(default_factory=list)
    noted: list[str] = field(default_factory=list)  # of these it has saved a checkpoint
    found: list[str] = field(default_factory=list)  # the checkpoints of requests that came again
    finish: asyncio.Event | None = None  # it answers a request only when this is set
    waits: int = 0

    def script(self) -> Script:
        status = yield Call("get_status")
        assert status["connection"] in ("connected", "connecting")
        while True:
            self.waits += 1
            got = yield Call("wait_for_messages", {"timeoutMs": 1000, "limit": 1}, after=self.go)
            for message in got["messages"]:
                yield from self._work(message)
                if message["text"] == "enough":
                    return "Done."

    def _work(self, message: dict[str, Any]) -> Generator[Call, dict[str, Any], None]:
        source, text = message["message_id"], message["text"]
        self.taken.append(text)
        if message["delivery"] == "again":
            kept = (yield Call("get_checkpoints"))["checkpoints"]
            self.found += [row["summary"] for row in kept if row["source_message_id"] == source]
        noted = {"sourceMessageId": source, "summary": f"{self.name} read it", "nextAction": "answer"}
        yield Call("save_checkpoint", noted)
        self.noted.append(text)
        answer = {"text": f"{self.name}: {text}", "sourceMessageId": source}
        sent = yield Call("send_message", answer, after=self.finish)
        assert sent["state"] in ("queued", "sending", "submitted")
        yield Call("mark_processed", {"messageId": source})


@dataclass
class Scene:
    stack: Stack
    model: ScriptedModel
    phone: Device
    agent: PairedAgent
    hosts: dict[str, RealHost]
    workers: dict[str, Worker]

    async def ask(self, text: str) -> str:
        return await self.phone.send(self.agent.agent_id, text)

    async def answered(self, question: str) -> str:
        try:
            return (await self.phone.wait_reply(question, DEADLINE)).text
        except WaitTimeout as error:
            words = "\n".join(f"{name}:\n{host.words()}" for name, host in self.hosts.items())
            raise AssertionError(f"no reply; the hosts wrote:\n{words}") from error


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    try:
        programs = {"claude-code": claude_code(), "codex": codex()}
    except Unavailable as error:
        pytest.skip(str(error))
    async with stack(tmp_path) as running, scripted_model() as model:
        phone = await running.phone("ada")
        agent = await phone.create_agent("home")
        await add_agent(running, agent)
        hosts, workers = {}, {}
        for name, program in programs.items():
            home = tmp_path / f"the home of {name}, “ö”"
            home.mkdir()
            hosts[name], workers[name] = RealHost(name, program, home, running), Worker(name)
            model.conversations[name] = Conversation(workers[name].script())
        try:
            yield Scene(running, model, phone, agent, hosts, workers)
        finally:
            for host in hosts.values():
                await host.kill()


async def add_agent(running: Stack, agent: PairedAgent, env: dict[str, str] | None = None) -> None:
    """As a user does it: the token goes to the daemon, and into no host's file."""
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pacerelle_cli", "--store-root", str(running.root),
        "agent", "add", agent.agent_id, "--token-stdin", "--base-url", running.relay_url,
        env=env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(child.communicate(agent.agent_token.encode()), DEADLINE)
    assert child.returncode == 0, out.decode()


@pytest.mark.parametrize(("victim", "survivor"), [("claude-code", "codex"), ("codex", "claude-code")])
async def test_two_real_hosts_share_the_work(scene: Scene, victim: str, survivor: str) -> None:
    for host in scene.hosts.values():
        arguments = host.prepare(scene.model.url)
        await host.install(scene.agent.agent_id)
        await host.check()
        await host.start(arguments)
    first, second = scene.workers.values()
    both = asyncio.Event()
    for worker in (first, second):
        worker.finish = both
        worker.go.set()

    # Both at once: neither answers before each has one.
    questions = [await scene.ask(f"job {number}") for number in range(2)]
    await until(lambda: first.taken and second.taken, "each host to have a request")
    both.set()
    questions += [await scene.ask(f"job {number}") for number in range(2, 8)]
    answers = [await scene.answered(question) for question in questions]
    assert sorted(answer.partition(": ")[2] for answer in answers) == [f"job {number}" for number in range(8)]
    assert sorted(first.taken + second.taken) == [f"job {number}" for number in range(8)]

    # One is killed in the middle of a request; the other one takes it over, with what was noted.
    lost, left = scene.workers[victim], scene.workers[survivor]
    left.go.clear()
    waits = left.waits
    await until(lambda: left.waits > waits, "the survivor to pause")
    lost.finish = asyncio.Event()
    question = await scene.ask("hard one")
    await until(lambda: "hard one" in lost.taken, "the victim to take it")
    await until(lambda: "hard one" in lost.noted, "the checkpoint to be saved")
    await scene.hosts[victim].kill()
    left.go.set()
    assert await scene.answered(question) == f"{survivor}: hard one"
    assert left.found == [f"{victim} read it"]

    # All is done once, and the one that is left ends by itself.
    last = await scene.ask("enough")
    assert await scene.answered(last) == f"{survivor}: enough"
    assert await scene.hosts[survivor].end() == 0, scene.hosts[survivor].words()
    assert [scene.model.conversations[name].failed for name in scene.hosts] == [None, None]
    seen = await scene.phone.conversation(scene.agent.conversation_id)
    replies = Counter(message.reply_to for message in seen if message.direction == "in")
    assert replies == dict.fromkeys([*questions, question, last], 1)
    for host in scene.hosts.values():
        for file in host.home.rglob("*"):
            if file.is_file() and file.stat().st_size < 1 << 20:
                assert scene.agent.agent_token.encode() not in file.read_bytes(), file
