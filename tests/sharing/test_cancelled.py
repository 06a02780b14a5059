"""A wait that is cancelled, whenever and however, claims nothing; one that was answered keeps what it claimed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pacerelled.mcp import tools
from pacerelled.store import requests
from pacerelled.store.database import Tx
from tests.daemon.polling import until
from tests.http.served import Served

from .machine import META, Machine, Raw, ids

both_eras = pytest.mark.parametrize("modern", [False, True], ids=["handshake", "2026-07-28"])


async def waits(machine: Machine, count: int = 1) -> None:
    await machine.waiting(count)


async def nothing_claimed(machine: Machine, *texts: str) -> None:
    """Requests are as new as before: whoever asks gets them for the first time."""
    await machine.core.store.settled()
    await until(lambda: not machine.agent._claims.waiting._waiters, "the end of the wait")
    await machine.core.store.settled()
    found = await machine.agent.wait_for_messages(machine.core.session(), timeout=0)
    assert [(r.message_id, r.delivery) for r in found.messages] == [(text, "new") for text in texts]


@both_eras
async def test_cancelled_before_it_began(machine: Machine, modern: bool) -> None:
    """Call and cancellation come in one write, and a request is there to be claimed."""
    await machine.ask("a")
    async with machine.raw(modern=modern) as host:
        host.send(host.call(1, "wait_for_messages"), host.cancel(1), host.call(2, "get_status"))
        answer = await host.receive()
        assert answer["id"] == 2  # and the first is never answered
        assert answer["result"]["structuredContent"]["pending_requests"] == 1
        await nothing_claimed(machine, "a")


@both_eras
async def test_cancelled_while_it_waits_and_twice(machine: Machine, modern: bool) -> None:
    async with machine.raw(modern=modern) as host:
        host.send(host.call("w", "wait_for_messages"))
        await waits(machine)
        host.send(host.cancel("w"), host.cancel("w"))
        await waits(machine, 0)
        await machine.ask("a")
        host.send(host.cancel("w"))
        assert (await host.tool(2, "get_status"))["structuredContent"]["claimed"] == 0
        await nothing_claimed(machine, "a")


@both_eras
async def test_cancelled_at_the_moment_in_which_a_request_comes(machine: Machine, modern: bool) -> None:
    """Whichever is first: either the host has the answer and the claim, or neither."""
    async with machine.raw(modern=modern) as host:
        for number in range(1, 13):
            host.send(host.call(number, "wait_for_messages"))
            await waits(machine)
            asking = asyncio.create_task(machine.ask(f"m{number}"))
            for _ in range(number):
                await asyncio.sleep(0)
            host.send(host.cancel(number), host.call(f"s{number}", "get_status"))
            answers = [await host.receive()]
            while answers[-1]["id"] != f"s{number}":
                answers.append(await host.receive())
            await asking
            await waits(machine, 0)
            await machine.core.store.settled()
            await machine.core.store.settled()
            answered = answers[0]["id"] == number
            assert bool(await machine.claimed()) == answered
            found = await machine.agent.wait_for_messages(machine.core.session(), timeout=0, include_claimed=True)
            assert ids(found) == [f"m{number}"]
            await machine.agent.mark_processed(machine.core.session(), f"m{number}", take_over=True)


@both_eras
async def test_cancelled_after_the_answer_changes_nothing(machine: Machine, modern: bool) -> None:
    await machine.ask("a")
    async with machine.raw(modern=modern) as host:
        result = await host.tool(1, "wait_for_messages")
        host.send(host.cancel(1), host.cancel(1))
        assert (await host.tool(2, "get_status"))["structuredContent"]["claimed"] == 1
        assert await machine.claimed() == {"a": host.session}
        assert result["structuredContent"]["messages"][0]["delivery"] == "new"


@both_eras
async def test_a_cancellation_of_what_nobody_asked_is_ignored(machine: Machine, modern: bool) -> None:
    async with machine.raw(modern=modern) as host:
        host.send(
            host.cancel(7), host.cancel("x"), {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {}}
        )
        host.send(host.call(7, "wait_for_messages"))  # which comes later, is another call, and is answered
        await waits(machine)
        host.send(host.cancel(8))
        await machine.ask("a")
        assert (await host.receive())["result"]["structuredContent"]["messages"]


async def test_a_cancelled_wait_gives_back_first_all_the_same(machine: Machine) -> None:
    await machine.ask("a")
    async with machine.raw() as host:
        await host.tool(1, "wait_for_messages")
        host.send(host.call(2, "wait_for_messages", release=["a"]))
        await waits(machine)
        host.send(host.cancel(2))
        await waits(machine, 0)
        assert await machine.claimed() == {}


async def test_what_a_later_call_was_shown_stays_its_own(machine: Machine) -> None:
    """The first call is cancelled while it claims; the host's next call sees the claim before it is undone."""
    await machine.ask("a")

    def take(tx: Tx, call_id: str) -> requests.Taken:
        return requests.take(
            tx, "a1", "s", conversation_id=None, limit=1, after=0, include_claimed=False, call_id=call_id
        )

    def job(tx: Tx) -> list[int]:
        first, second = take(tx, "1"), take(tx, "2")
        assert first.rows[0][0] == second.rows[0][0]
        return requests.hand_back(tx, first.fresh, "s", "1")

    assert await machine.core.store.run(job) == []
    assert await machine.claimed() == {"a": "s"}


@pytest.mark.parametrize("era", ["handshake", "2026-07-28"])
async def test_a_host_over_http_that_closes_the_response_has_claimed_nothing(tmp_path: Path, era: str) -> None:
    """In 2026-07-28 that is how a call is cancelled; in the handshake era, the host may still come for the answer."""
    async with Served(tmp_path) as served, served.raw(await served.token()) as host:
        headers = {}
        if era == "handshake":
            await host.initialize()
            params: dict[str, Any] = {"name": "wait_for_messages", "arguments": {}}
        else:
            headers = {"MCP-Protocol-Version": era, "Mcp-Method": "tools/call", "Mcp-Name": "wait_for_messages"}
            params = {"name": "wait_for_messages", "arguments": {}, "_meta": META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        waiting = served.core.hub.agent("a1")._claims.waiting._waiters
        call = asyncio.create_task(host.post(body, **headers))
        await until(lambda: waiting, "the wait")
        if era == "handshake":
            await host.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        else:
            call.cancel()
        await until(lambda: not waiting, "the end of the wait")
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        await served.ask()
        agent = served.core.hub.agent("a1")
        found = await agent.wait_for_messages(served.core.session(), timeout=0)
        assert [(r.message_id, r.delivery) for r in found.messages] == [("m1", "new")]


@both_eras
async def test_progress_goes_to_a_host_that_asked_and_to_no_other(
    machine: Machine, modern: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert tools.PROGRESS_EVERY == 15.0
    monkeypatch.setattr(tools, "PROGRESS_EVERY", 0.05)

    async def told(host: Raw, token: object) -> list[Any]:
        message = host.call(1, "wait_for_messages", timeoutMs=400)
        if token is not None:
            message["params"].setdefault("_meta", {})
            message["params"]["_meta"] = {**message["params"]["_meta"], "progressToken": token}
        host.send(message)
        lines = [await host.receive()]
        while "id" not in lines[-1]:
            lines.append(await host.receive())
        return lines[:-1]

    async with machine.raw(modern=modern) as host:
        assert await told(host, None) == []
        for token in ("t", 0):
            found = await told(host, token)
            assert found
            assert {line["method"] for line in found} == {"notifications/progress"}
            assert [line["params"]["progressToken"] for line in found] == [token] * len(found)
            done = [line["params"]["progress"] for line in found]
            assert done == sorted(set(done))
