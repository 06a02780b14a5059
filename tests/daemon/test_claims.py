"""Handing requests out: to one session only, until it is done with them, gone, or silent for too long."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pacerelled.agent import sessions as sessions_module
from pacerelled.agent.agent import Agent
from pacerelled.agent.model import Session, WaitResult
from pacerelled.agent.wanted import Wanted
from pacerelled.errors import NotPossible, StoreUnavailable, UnknownMessage
from pacerelled.store import requests

from .core import Core
from .human import Human
from .polling import until
from .scripted_relay import ScriptedRelay


@pytest.fixture
async def agent(core: Core, relay: ScriptedRelay) -> Agent:
    return await core.agent(relay.url)


@pytest.fixture
async def human(agent: Agent, relay: ScriptedRelay) -> Human:
    return await Human.meet(relay)


async def arrive(agent: Agent, relay: ScriptedRelay, human: Human, *texts: str) -> None:
    """Messages come in and are requests when this returns; a text is its message's id, too."""
    await relay.push(*(human.frame(text, id=text) for text in texts))
    await until(lambda: set(texts) <= set(relay.acked))


def ids(found: WaitResult) -> list[str]:
    return [request.message_id for request in found.messages]


async def take(agent: Agent, session: Session, **options: Any) -> list[str]:
    return ids(await agent.wait_for_messages(session, **{"timeout": 0, **options}))


def waiting(agent: Agent, session: Session, **options: Any) -> asyncio.Task[WaitResult]:
    return asyncio.create_task(agent.wait_for_messages(session, **{"timeout": 30, **options}))


async def in_queue(agent: Agent, count: int) -> None:
    """So many calls wait, and have found nothing so far."""
    queue = agent._claims.waiting._waiters
    await until(lambda: len(queue) == count)
    await agent._store.settled()
    await asyncio.sleep(0.02)


async def test_a_request_goes_to_one_session_and_comes_back_until_it_is_processed(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    first, second = core.session("first"), core.session("second")
    await arrive(agent, relay, human, "a", "b")
    found = await agent.wait_for_messages(first, timeout=0)
    assert [(r.message_id, r.delivery) for r in found.messages] == [("a", "new"), ("b", "new")]
    assert found.messages[0].claim is not None
    assert found.messages[0].claim.mine
    assert not found.has_more
    assert await take(agent, second) == []
    shown = await agent.wait_for_messages(second, timeout=0, include_claimed=True)
    assert ids(shown) == ["a", "b"]
    assert shown.messages[0].claim is not None
    assert not shown.messages[0].claim.mine
    assert shown.messages[0].claim.label.startswith("first")
    again = await agent.wait_for_messages(first, timeout=0)
    assert [(r.message_id, r.delivery) for r in again.messages] == [("a", "again"), ("b", "again")]
    await agent.mark_processed(first, "a", note="done")
    assert await take(agent, first) == ["b"]
    status = await agent.status()
    assert (status["pending"], status["claimed"]) == (1, 1)
    done = await agent.mark_processed(second, "a")  # once more is no error, and changes nothing
    assert done.note == "done"
    with pytest.raises(UnknownMessage):
        await agent.mark_processed(first, "zzz")


async def test_limits_and_cursors(core: Core, agent: Agent, human: Human, relay: ScriptedRelay) -> None:
    session, other = core.session(), core.session()
    await arrive(agent, relay, human, *"abcde")
    found = await agent.wait_for_messages(session, timeout=0, limit=2)
    assert (ids(found), found.has_more) == (["a", "b"], True)
    assert found.cursor is not None
    found = await agent.wait_for_messages(session, timeout=0, limit=2, after=int(found.cursor))
    assert (ids(found), found.has_more) == (["c", "d"], True)
    assert found.cursor is not None
    assert await take(agent, other) == ["e"]
    nothing = await agent.wait_for_messages(session, timeout=0, after=int(found.cursor))
    assert (ids(nothing), nothing.cursor) == ([], found.cursor)


async def test_many_sessions_never_get_the_same_request(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    wanted = [f"m{number}" for number in range(120)]
    taken: list[str] = []

    async def work(session: Session) -> None:
        while len(taken) < len(wanted):
            found = await agent.wait_for_messages(session, timeout=0.3, limit=3)
            for request in found.messages:
                taken.append(request.message_id)
                assert request.delivery == "new"
                await agent.mark_processed(session, request.message_id)

    workers = [asyncio.create_task(work(core.session(str(n)))) for n in range(5)]
    for number in range(0, 120, 10):
        await relay.push(*(human.frame(text, id=text) for text in wanted[number : number + 10]))
    async with asyncio.timeout(30):
        await asyncio.gather(*workers)
    assert sorted(taken) == sorted(wanted)
    assert (await agent.status())["pending"] == 0


async def test_waiters_are_woken_in_order_one_for_each_request(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    calls = []
    for number in range(3):
        calls.append(waiting(agent, core.session(str(number))))
        await in_queue(agent, number + 1)
    for number, text in enumerate("abc"):
        await arrive(agent, relay, human, text)
        assert ids(await calls[number]) == [text]
        assert not any(call.done() for call in calls[number + 1 :])


async def test_a_conversation_filter_waits_for_its_conversation(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    other = await Human.meet(relay, conversation="c2", device="d2")
    picky = waiting(agent, core.session(), conversation_id="c2")
    await in_queue(agent, 1)
    anything = waiting(agent, core.session())
    await in_queue(agent, 2)
    await arrive(agent, relay, human, "for anybody")
    assert ids(await anything) == ["for anybody"]
    assert not picky.done()
    await arrive(agent, relay, other, "for the picky one")
    assert ids(await picky) == ["for the picky one"]


async def test_a_wake_up_that_somebody_does_not_use_reaches_the_next(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    """The first is woken and cancelled before it looks; a filter that does not match must not swallow it."""
    first = waiting(agent, core.session("first"))
    await in_queue(agent, 1)
    picky = waiting(agent, core.session("picky"), conversation_id="elsewhere")
    await in_queue(agent, 2)
    third = waiting(agent, core.session("third"))
    await in_queue(agent, 3)
    waiter = agent._claims.waiting._waiters[0]
    real = waiter.woken.set

    def woken() -> None:
        real()
        first.cancel()

    waiter.woken.set = woken  # type: ignore[method-assign]
    await arrive(agent, relay, human, "a")
    async with asyncio.timeout(30):
        assert ids(await third) == ["a"]
    picky.cancel()
    for call in (first, picky):
        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_wake_up_during_another_session_s_look_is_not_lost(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    """Two requests come together, the first waiter takes only one."""
    first = waiting(agent, core.session("first"), limit=1)
    await in_queue(agent, 1)
    second = waiting(agent, core.session("second"), limit=1)
    await in_queue(agent, 2)
    await arrive(agent, relay, human, "a", "b")
    async with asyncio.timeout(30):
        assert sorted(ids(await first) + ids(await second)) == ["a", "b"]


async def test_a_failing_store_ends_the_call_and_the_next_waiter_gets_the_request(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlucky = core.session("unlucky")
    first = waiting(agent, unlucky)
    await in_queue(agent, 1)
    second = waiting(agent, core.session("second"))
    await in_queue(agent, 2)
    real = requests.take

    def failing(tx: Any, agent_id: str, session_id: str, **options: Any) -> Any:
        if session_id == unlucky.id:
            raise StoreUnavailable("no space")
        return real(tx, agent_id, session_id, **options)

    monkeypatch.setattr(requests, "take", failing)
    await arrive(agent, relay, human, "a")
    with pytest.raises(StoreUnavailable):
        await first
    async with asyncio.timeout(30):
        assert ids(await second) == ["a"]


@pytest.mark.parametrize("delay", [0, 1, 2, 3, 5])
async def test_a_cancelled_call_hands_back_what_nobody_has_seen(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay, delay: int
) -> None:
    await arrive(agent, relay, human, "a", "b")
    call = waiting(agent, core.session())
    for _ in range(delay):
        await asyncio.sleep(0)
    if not call.done():
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        found = await agent.wait_for_messages(core.session(), timeout=0)
        assert [(r.message_id, r.delivery) for r in found.messages] == [("a", "new"), ("b", "new")]


async def test_a_repeated_call_sees_its_requests_as_new_again(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    """A shim makes its call once more when the answer was lost with the connection."""
    await arrive(agent, relay, human, "a")
    session = core.session(pid=os.getpid())
    await agent.wait_for_messages(session, timeout=0, call_id="5")
    core.hub.close_session(session)
    back = core.session(session_id=session.id, pid=os.getpid())
    found = await agent.wait_for_messages(back, timeout=0, call_id="5")
    assert [(r.message_id, r.delivery) for r in found.messages] == [("a", "new")]
    found = await agent.wait_for_messages(back, timeout=0, call_id="6")
    assert [r.delivery for r in found.messages] == ["again"]


async def test_somebody_else_s_request_cannot_be_marked_while_it_is_held(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    holder, other = core.session("holder", pid=os.getpid()), core.session("other")
    await arrive(agent, relay, human, "a", "b", "c")
    await take(agent, holder)
    with pytest.raises(NotPossible) as refused:
        await agent.mark_processed(other, "a")
    assert refused.value.code == "claimed"
    assert "holder" in refused.value.message
    person = Session("control", "control")
    assert (await agent.mark_processed(person, "b")).processed_at is not None
    core.hub.close_session(holder)  # away, and may come back
    with pytest.raises(NotPossible, match="not connected now"):
        await agent.mark_processed(other, "a")
    assert (await agent.mark_processed(other, "a", take_over=True)).processed_at is not None


async def test_a_session_whose_process_is_gone_loses_its_claims_at_once(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    shim = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=subprocess.PIPE)
    session = core.session("dies", pid=shim.pid)
    await arrive(agent, relay, human, "a")
    assert await take(agent, session) == ["a"]
    other = waiting(agent, core.session("other"))
    await in_queue(agent, 1)
    await shim.communicate(b"\n")
    core.hub.close_session(session)
    async with asyncio.timeout(20):  # the grace time is 30 s
        found = await other
    assert [(r.message_id, r.delivery) for r in found.messages] == [("a", "again")]


async def test_a_session_that_comes_back_keeps_its_claims(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    session = core.session("shim", pid=os.getpid())
    await arrive(agent, relay, human, "a")
    await take(agent, session)
    core.hub.close_session(session)
    assert await take(agent, core.session("other")) == []
    back = core.session("shim", session_id=session.id, pid=os.getpid())
    core.hub.close_session(session)  # the old connection's end, noticed late
    assert back.connected
    assert await take(agent, back) == ["a"]
    assert [host["session"] for host in core.hub.sessions() if host["label"] == "shim"] == [session.id]


async def test_the_grace_time_ends_claims(tmp_path: Path, relay: ScriptedRelay) -> None:
    async with Core(tmp_path / "short", claim_grace=0.2) as core:
        agent = await core.agent(relay.url)
        human = await Human.meet(relay)
        session = core.session("away", pid=os.getpid())
        await arrive(agent, relay, human, "a")
        await take(agent, session)
        core.hub.close_session(session)
        async with asyncio.timeout(30):
            assert ids(await waiting(agent, core.session("other"))) == ["a"]
        types = [e["type"] for e in (await core.hub.event_log.last(100, Wanted()))["events"]]
        assert types[-2:] == ["claim.released", "message.claimed"]
        assert await core.store.run(lambda tx: tx.one("SELECT count(*) FROM sessions")[0]) == 1


async def test_a_silent_session_loses_its_claims_and_one_that_waits_does_not(
    tmp_path: Path, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions_module, "LEASE_CHECK", 0.05)
    async with Core(tmp_path / "short", claim_lease=1.0) as core:
        agent = await core.agent(relay.url)
        human = await Human.meet(relay)
        silent, faithful = core.session("silent"), core.session("faithful")
        await arrive(agent, relay, human, "a")
        await take(agent, silent)
        await arrive(agent, relay, human, "b")
        assert await take(agent, faithful) == ["b"]
        after = (await agent.inbox())[0][-1].seq
        call = waiting(agent, faithful, conversation_id="none", after=after)
        async with asyncio.timeout(30):
            assert ids(await waiting(agent, core.session("other"))) == ["a"]
        assert (await agent.status())["claimed"] == 2
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)


async def test_claims_survive_a_restart_for_the_session_that_comes_back(core: Core, relay: ScriptedRelay) -> None:
    agent = await core.agent(relay.url)
    human = await Human.meet(relay)
    dead = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await dead.wait()
    alive, gone = core.session("alive", pid=os.getpid()), core.session("gone", pid=dead.pid)
    await arrive(agent, relay, human, "a")
    await take(agent, alive)
    await arrive(agent, relay, human, "b")
    await take(agent, gone)
    await core.restart()
    agent = core.hub.agent("a1")
    other = core.session("other")
    found = await agent.wait_for_messages(other, timeout=20)
    assert ids(found) == ["b"]
    back = core.session("alive", session_id=alive.id, pid=os.getpid())
    with pytest.raises(NotPossible):
        await agent.mark_processed(other, "a")
    assert await take(agent, back) == ["a"]


async def test_hosts_are_shown_with_what_they_hold(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    session = core.session("busy", pid=os.getpid())
    await arrive(agent, relay, human, "a", "b")
    await take(agent, session)
    (host,) = (await core.hub.status())["hosts"]
    assert (host["label"], host["claims"], host["connected"]) == ("busy", 2, True)


async def test_checkpoints_belong_to_a_request(core: Core, agent: Agent, human: Human, relay: ScriptedRelay) -> None:
    session = core.session("host")
    await arrive(agent, relay, human, "a")
    for summary in ("half", "nearly"):
        saved = await agent.save_checkpoint(session, source_message_id="a", summary=summary, next_action="go on")
    assert (saved.summary, saved.conversation_id, saved.host_session_label) == ("nearly", "c1", "host")
    assert (await agent.checkpoints()).checkpoints == (saved,)
    assert (await agent.checkpoints(conversation_id="c2")).checkpoints == ()
    await agent.save_checkpoint(session, source_message_id="a", summary="all", next_action="-", status="completed")
    assert (await agent.checkpoints()).checkpoints == ()
    assert [c.status for c in (await agent.checkpoints(include_completed=True)).checkpoints] == ["completed"]
    with pytest.raises(UnknownMessage):
        await agent.save_checkpoint(session, source_message_id="zzz", summary="x", next_action="y")
