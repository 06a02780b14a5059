"""Waking: when the command is started, when it is not, and what is told of it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pacerelled.agent.event_log import EventLog
from pacerelled.agent.wanted import Wanted
from pacerelled.errors import InvalidArgument, NotPossible, UnknownAgent, UnknownMessage
from pacerelled.notify import wake as wake_module
from pacerelled.notify.wake import Limits, Wake
from pacerelled.store import events, requests, wakes
from pacerelled.store.database import Store, Tx
from tests.notify.rig import daemon, until

QUICK = Limits(after_s=0.1, max_s=30, cooldown_s=0.0, per_day=3)
SAY = "import os; print({n: os.environ.get(n) for n in ('PACERELLE_MESSAGE_ID', 'PACERELLE_AGENT_ID')}, os.environ)"


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


def known(agent_id: str) -> str:
    if agent_id != "a1":
        raise UnknownAgent(f"no {agent_id}")
    return agent_id


class Machine:
    """A `Wake` with hosts that tests attach."""

    def __init__(self, store: Store, log: EventLog, state: Path) -> None:
        self.hosts: list[dict[str, Any]] = []
        self.store, self.log = store, log
        self.wake = Wake(
            store,
            log,
            hosts=lambda: self.hosts,
            knows=known,
            env=dict(os.environ),
            state=state,
            ids={"PACERELLE_X": "y"},
        )

    async def request(self, message_id: str) -> None:
        def job(tx: Tx) -> None:
            new = requests.NewRequest(
                message_id, "c1", "ada", "d1", False, True, "text", "secret words", None, None, None
            )
            requests.insert_request(tx, "a1", new, "digest")
            events.add(tx, "a1", "message.received", message_id=message_id)

        await self.store.run(job)

    async def runs(self, count: int = 1) -> list[dict[str, Any]]:
        """The runs, once so many have ended."""

        async def look() -> list[dict[str, Any]]:
            found = [run for run in await self.wake.runs("a1", 100) if run["state"] != "running"]
            return found if len(found) >= count else []

        return list(await until(look, f"{count} runs"))

    async def told(self, *types: str) -> list[dict[str, Any]]:
        return list((await self.log.last(100, Wanted(types=types)))["events"])


@pytest.fixture
async def machine(
    store: Store, log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Machine]:
    monkeypatch.setattr(wake_module, "POLL", 0.05)
    running = Machine(store, log, tmp_path)
    await running.wake.start()
    yield running
    await running.wake.stop()


async def test_a_request_that_nobody_listens_for_starts_the_command(machine: Machine) -> None:
    await machine.wake.set("a1", python(SAY), QUICK, cwd=None, path="/usr/bin:/bin")
    await machine.request("m1")
    run = (await machine.runs())[0]
    assert (run["reason"], run["message_id"], run["state"], run["exit_code"]) == ("request", "m1", "exited", 0)
    said = (await machine.wake.run("a1", run["id"]))["output"]
    assert "{'PACERELLE_MESSAGE_ID': 'm1', 'PACERELLE_AGENT_ID': 'a1'}" in said
    assert "'PACERELLE_X': 'y'" in said
    assert "secret words" not in said
    started, ended = (await machine.told("wake.started", "wake.ended"))[:2]
    assert (started["data"]["message_id"], started["data"]["run_id"]) == ("m1", run["id"])
    assert (ended["data"]["how"], ended["data"]["exit_code"]) == ("exited", 0)
    assert "needs_attention" not in ended["data"]


async def test_a_host_that_listens_or_works_keeps_it_from_starting(machine: Machine) -> None:
    host = {"agent_id": None, "connected": True, "waiting": True, "channel": False, "idle_s": 0.0}
    machine.hosts.append(host)
    await machine.wake.set("a1", python(SAY), QUICK, cwd=None, path=None)
    await machine.request("m1")
    await asyncio.sleep(0.4)
    host["waiting"] = False
    await asyncio.sleep(0.4)
    host |= {"idle_s": 5.0, "channel": True}
    await asyncio.sleep(0.4)
    assert await machine.wake.runs("a1", 10) == []
    host["channel"] = False
    await machine.runs()


@pytest.mark.parametrize("what", ["off", "claimed", "nothing waits", "other agent's host"])
async def test_when_it_is_not_started(machine: Machine, what: str) -> None:
    await machine.wake.set("a1", python(SAY), QUICK, cwd=None, path=None)
    if what == "off":
        await machine.wake.turn("a1", on=False)
    if what == "other agent's host":
        machine.hosts.append({"agent_id": "a2", "connected": True, "waiting": True, "channel": False, "idle_s": 0.0})
    if what == "claimed":

        def job(tx: Tx) -> None:
            requests.save_session(tx, "s1", "host", None, None)
            tx.execute(
                "INSERT INTO claims (request_seq, agent_id, session_id, fresh, since) VALUES (1, 'a1', 's1', 1, '')"
            )

        await machine.wake.turn("a1", on=False)
        await machine.request("m1")
        await machine.store.run(job)
        await machine.wake.turn("a1", on=True)
    elif what != "nothing waits":
        await machine.request("m1")
    if what == "other agent's host":
        await machine.runs()
        return
    await asyncio.sleep(0.5)
    assert await machine.wake.runs("a1", 10) == []


async def test_a_command_that_ends_at_once_is_started_only_so_often_a_day(machine: Machine) -> None:
    await machine.wake.set("a1", python("raise SystemExit(7)"), QUICK, cwd=None, path=None)
    await machine.request("m1")
    runs = await machine.runs(3)
    await until(lambda: machine.told("wake.limited"), "the limit")
    await asyncio.sleep(0.3)
    assert len(await machine.wake.runs("a1", 100)) == 3
    assert {run["exit_code"] for run in runs} == {7}
    assert len(await machine.told("wake.limited")) == 1
    assert all(event["data"]["needs_attention"] for event in await machine.told("wake.ended"))


async def test_it_pauses_between_runs(machine: Machine) -> None:
    limits = Limits(after_s=0.05, max_s=30, cooldown_s=600, per_day=100)
    await machine.wake.set("a1", python("pass"), limits, cwd=None, path=None)
    await machine.request("m1")
    await machine.runs()
    await asyncio.sleep(0.5)
    assert len(await machine.wake.runs("a1", 100)) == 1


async def test_one_at_a_time(machine: Machine) -> None:
    await machine.wake.set("a1", python("import time; time.sleep(600)"), QUICK, cwd=None, path=None)
    await machine.request("m1")

    async def running() -> bool:
        return [run["state"] for run in await machine.wake.runs("a1", 10)] == ["running"]

    await until(running, "the run")
    await machine.request("m2")
    with pytest.raises(NotPossible):
        await machine.wake.test("a1", wait=1)
    await asyncio.sleep(0.3)
    assert await running()
    await asyncio.wait_for(machine.wake.stop(), 10)
    (run,) = await machine.wake.runs("a1", 10)
    assert run["state"] == "stopped"


async def test_a_test_counts_for_nothing(machine: Machine) -> None:
    await machine.wake.set("a1", python("print('here')"), QUICK, cwd=None, path=None)
    for _ in range(4):
        run = await machine.wake.test("a1", wait=30)
        assert (run["reason"], run["state"], run["output"]) == ("test", "exited", "here\n")
    await machine.request("m1")
    assert (await machine.runs(5))[-1]["reason"] == "request"


async def test_what_was_left_by_a_daemon_that_was_killed_is_ended_and_said_to_be_lost(
    store: Store, log: EventLog, tmp_path: Path
) -> None:
    await store.run(lambda tx: wakes.begin(tx, "run_1", "a1", "request", "m1"))
    left = await asyncio.create_subprocess_exec(
        *python("import time; time.sleep(600)"), env={"PACERELLE_WAKE_ID": "run_1"}
    )
    machine = Machine(store, log, tmp_path)
    await machine.wake.start()
    assert await asyncio.wait_for(left.wait(), 10) == -9
    (run,) = await machine.wake.runs("a1", 10)
    assert run["state"] == "lost"
    assert len(await machine.told("wake.ended")) == 1
    await machine.wake.stop()


async def test_old_runs_go_with_their_output(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(wakes, "KEPT", 2)
    await machine.wake.set("a1", python("pass"), QUICK, cwd=None, path=None)
    for _ in range(3):
        await machine.wake.test("a1", wait=30)
    await machine.store.run(lambda tx: tx.execute("UPDATE wake_runs SET day = day - 1"))
    await machine.wake.test("a1", wait=30)
    runs = await machine.wake.runs("a1", 10)
    assert len(runs) == 2
    assert {path.stem for path in (tmp_path / "wake").iterdir()} == {run["id"] for run in runs}


async def test_what_cannot_be_set(machine: Machine, tmp_path: Path) -> None:
    for argv in ([], [""], ["relative"], ["/bin/a\0b"], ["/bin/echo"] * 101):
        with pytest.raises(InvalidArgument):
            await machine.wake.set("a1", argv, QUICK, cwd=None, path=None)
    with pytest.raises(InvalidArgument):
        await machine.wake.set("a1", ["/bin/echo"], QUICK, cwd=str(tmp_path / "none"), path=None)
    with pytest.raises(UnknownAgent):
        await machine.wake.set("a2", ["/bin/echo"], QUICK, cwd=None, path=None)
    for call in (machine.wake.turn("a1", on=True), machine.wake.test("a1", wait=1)):
        with pytest.raises(NotPossible):
            await call
    with pytest.raises(UnknownMessage):
        await machine.wake.run("a1", "run_0")


async def test_the_command_line(tmp_path: Path) -> None:
    async with daemon(tmp_path) as running:

        async def pacerelle(*arguments: str, code: int = 0) -> Any:
            command = [sys.executable, "-m", "pacerelle_cli", "--store-root", str(running.root), "--json", *arguments]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            out, _ = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == code, out
            return json.loads(out)

        assert (await pacerelle("wake", "show"))["wake"] is None
        made = await pacerelle("wake", "set", "--after", "5", "--per-day", "2", "--", "echo", "hello", "--flag")
        assert made["wake"]["command"][0].endswith("/echo")
        assert made["wake"]["command"][1:] == ["hello", "--flag"]
        assert (made["wake"]["after_s"], made["wake"]["per_day"], made["wake"]["max_s"]) == (5, 2, 1800)
        run = (await pacerelle("wake", "test"))["run"]
        assert (run["state"], run["output"]) == ("exited", "hello --flag\n")
        assert [each["id"] for each in (await pacerelle("wake", "log"))["runs"]] == [run["id"]]
        assert (await pacerelle("wake", "log", run["id"]))["run"]["output"] == "hello --flag\n"
        assert (await pacerelle("wake", "off"))["wake"]["on"] is False
        await running.kill()
        await running.start()
        assert (await pacerelle("wake", "on"))["wake"]["on"] is True
        await pacerelle("wake", "set", "--", "no-such-program", code=1)
        await pacerelle("wake", "set", code=1)
        await pacerelle("wake", "set", "--", "false")
        assert (await pacerelle("wake", "test", code=1))["run"]["exit_code"] == 1
        await pacerelle("wake", "remove")
        assert (await pacerelle("wake", "show"))["wake"] is None
