"""What a host keeps when the daemon goes: its subscriptions and its patience; and what if the daemon stays away."""

from __future__ import annotations

import asyncio
import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.e2e.stack import Stack, until
from tests.restart.machine import ERAS, Era, EraHost, answer_of, killed

URIS = ("conversation://current", "widget://pending")


@contextmanager
def no_daemon_can_start(stack: Stack) -> Iterator[None]:
    """Somebody else holds the lock."""
    with stack.paths.lock.open("r+") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                stack.kill_daemon()
                time.sleep(0.02)
        lock.truncate(0)
        yield


@pytest.mark.parametrize("era", ERAS)
async def test_subscriptions_go_on_and_tell_what_may_have_been_missed(bare: Stack, era: Era) -> None:
    host = EraHost(bare, None, "subscriber", era)
    await host.start()
    if era == "handshake":
        for uri in URIS:
            await host.result("resources/subscribe", uri=uri)
        await host.result("resources/unsubscribe", uri=URIS[1])
    else:
        listening = asyncio.create_task(
            host.call("subscriptions/listen", {"notifications": {"resourceSubscriptions": [URIS[0]]}})
        )
        await until(host.acknowledged, "the acknowledgement")
    assert host.updates(URIS[0]) == 0
    for number in (1, 2):
        await killed(bare)
        await until(lambda number=number: host.updates(URIS[0]) == number, "to be told to look again")
    assert "result" in await answer_of(host, "tools/list")
    assert host.updates(URIS[1]) == 0
    assert host.acknowledged() == (era == "modern")
    if era == "modern":
        assert not listening.done()
        listening.cancel()


@pytest.mark.parametrize("era", ERAS)
async def test_a_daemon_that_comes_back_with_other_tools_says_so(bare: Stack, era: Era) -> None:
    host = EraHost(bare, None, "living", era)
    await host.start()
    before = {tool["name"] for tool in (await host.result("tools/list"))["tools"]}
    if era == "modern":
        flags = {f"{what}ListChanged": True for what in ("tools", "prompts", "resources")}
        listening = asyncio.create_task(host.call("subscriptions/listen", {"notifications": flags}))
        await until(host.acknowledged, "the acknowledgement")

    def told() -> list[str]:
        methods = [str(notification.get("method")) for notification in host.notifications]
        return sorted(method.split("/")[1] for method in methods if method.endswith("/list_changed"))

    await killed(bare)
    assert {tool["name"] for tool in (await host.result("tools/list"))["tools"]} == before
    assert told() == [], "the same tools"
    bare.configure(f'[paseo]\ndaemon_url = "ws://127.0.0.1:9"\nhome = "{bare.home}"\n')
    await killed(bare)
    await until(lambda: told() == ["prompts", "resources", "tools"], "to be told to list again")
    after = {tool["name"] for tool in (await host.result("tools/list"))["tools"]}
    assert {name for name in after - before if name.startswith("paseo_")} == after - before != set()
    if era == "modern":
        listening.cancel()


async def test_a_repeated_wait_does_not_begin_anew(bare: Stack) -> None:
    first = EraHost(bare, None, "waiting", "handshake")
    await first.start()
    async with bare.control() as control:
        agent = {"agent_id": "a1", "token": "t", "base_url": "http://127.0.0.1:9"}
        async with control.post("/v1/agents", json=agent) as response:
            assert response.status == 201
    began = time.monotonic()
    waiting = asyncio.create_task(first.tool("wait_for_messages", timeoutMs=6000))
    await asyncio.sleep(4.0)
    await killed(bare)
    assert (await waiting)["messages"] == []
    assert time.monotonic() - began >= 6.0


@pytest.mark.parametrize("era", ERAS)
async def test_a_return_that_takes_too_long_is_an_error_for_each_call_and_heals_by_itself(
    bare: Stack, era: Era
) -> None:
    host = EraHost(bare, None, "patient", era, CALL_WAIT=1.5)
    await host.start()
    assert "result" in await answer_of(host, "tools/list")
    with no_daemon_can_start(bare):
        for answer in await asyncio.gather(*(host.call("tools/list", {}) for _ in range(3))):
            assert answer["error"]["code"] == -32010
            assert "pacerelle" in answer["error"]["message"]
            assert str(bare.paths.log) in answer["error"]["message"]

    async def served() -> bool:
        return "result" in await answer_of(host, "tools/list")

    await until(served, "the recovery")


async def test_a_daemon_that_is_stopped_on_purpose_comes_back_with_the_next_call(bare: Stack) -> None:
    hosts = [EraHost(bare, None, era, era) for era in ERAS]
    for host in hosts:
        await host.start()
        assert "result" in await answer_of(host, "tools/list")
    for _ in range(2):
        pid = bare.daemon_pid()
        async with bare.control() as control, control.post("/v1/stop") as response:
            assert response.status == 202
        await until(lambda pid=pid: bare.daemon_pid() != pid, "the daemon's end")
        await asyncio.sleep(0.5)  # attached hosts look for it once a second and more often
        assert bare.daemon_pid() is None
        answers = await asyncio.gather(*(answer_of(host, "tools/list") for host in hosts))
        assert all("result" in answer for answer in answers)
