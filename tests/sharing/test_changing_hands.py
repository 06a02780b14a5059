"""Requests that are given back, taken over, or taken away: durably, and everybody is told."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from pacerelled.agent import sessions as sessions_module
from pacerelled.agent.model import Session
from pacerelled.errors import NotPossible, UnknownMessage
from tests.daemon.polling import until

from .machine import ERAS, Machine, call, error, ids

WIDGET = {"type": "widget.standard", "v": 1, "id": "w"}

both_eras = pytest.mark.parametrize("era", ERAS)


async def test_what_a_session_gives_back_goes_to_another_and_does_not_come_again(machine: Machine) -> None:
    first, second = machine.core.session("first"), machine.core.session("second")
    await machine.ask("a", "b")
    assert await machine.take(first) == ["a", "b"]
    other = machine.wait(second)
    await machine.waiting(1)
    assert await machine.take(first, release=["a"]) == ["b"]
    async with asyncio.timeout(30):
        found = await other
    assert [(r.message_id, r.delivery) for r in found.messages] == [("a", "again")]
    assert await machine.take(second, release=["a"]) == []
    assert await machine.take(first) == ["b"]  # nobody has it now, and still
    shown = await machine.agent.wait_for_messages(first, timeout=0, include_claimed=True)
    assert [(r.message_id, r.claim and r.claim.mine) for r in shown.messages] == [("a", None), ("b", True)]
    assert await machine.take(machine.core.session("third")) == ["a"]
    released = await machine.events("claim.released")
    assert [event["session"] for event in released] == [first.id, second.id]


async def test_a_session_may_change_its_mind_about_what_it_gave_back(machine: Machine) -> None:
    session = machine.core.session()
    await machine.ask("a")
    await machine.take(session)
    await machine.take(session, release=["a"])
    await machine.agent.save_checkpoint(session, source_message_id="a", summary="s", next_action="n", take_over=True)
    assert await machine.take(session) == ["a"]


async def test_giving_back_what_one_does_not_hold_harms_nobody(machine: Machine) -> None:
    holder, other = machine.core.session("holder"), machine.core.session("other")
    await machine.ask("a", "b")
    assert await machine.take(holder) == ["a", "b"]
    await machine.agent.mark_processed(holder, "b")
    assert await machine.take(other, release=["a", "b"]) == []
    assert await machine.claimed() == {"a": holder.id}
    with pytest.raises(UnknownMessage):
        await machine.take(holder, release=["a", "zzz"])
    assert await machine.claimed() == {"a": holder.id}  # all or nothing
    assert await machine.events("claim.released") == []


async def test_giving_back_survives_a_restart(machine: Machine) -> None:
    session = machine.core.session(pid=os.getpid())
    await machine.ask("a", "b")
    await machine.take(session)
    await machine.take(session, release=["a"])
    await machine.core.restart()
    agent = machine.core.hub.agent("a1")
    back = machine.core.session(session_id=session.id, pid=os.getpid())
    assert ids(await agent.wait_for_messages(back, timeout=0)) == ["b"]
    assert ids(await agent.wait_for_messages(machine.core.session(), timeout=0)) == ["a"]


async def test_a_person_takes_a_request_away_and_anybody_may_get_it(machine: Machine) -> None:
    session, other = machine.core.session("one"), machine.core.session("other")
    await machine.ask("a", "b")
    await machine.take(session)
    call = machine.wait(other)
    await machine.waiting(1)
    freed = await machine.agent.release("a")
    assert freed.claim is None
    async with asyncio.timeout(30):
        assert ids(await call) == ["a"]
    await machine.agent.release("b")
    await machine.agent.release("b")  # once more is no error
    assert await machine.take(session) == ["b"]
    await machine.agent.mark_processed(session, "b")
    with pytest.raises(NotPossible, match="processed"):
        await machine.agent.release("b")
    with pytest.raises(UnknownMessage):
        await machine.agent.release("zzz")


@both_eras
async def test_a_second_host_is_told_who_works_on_a_request_and_can_take_it_over(machine: Machine, era: str) -> None:
    await machine.ask("a", "b", "c", "d")
    greeting = machine.hello(host="codex-cli", cwd="/home/ada/site")
    async with machine.client(era, greeting) as first, machine.client(era, machine.hello(cwd="/b")) as second:
        assert len((await call(first, "wait_for_messages"))["messages"]) == 4
        calls = {
            "send_message": {"text": "Done.", "sourceMessageId": "a"},
            "send_widget": {
                "widgetJson": {**WIDGET, "kind": "confirm", "spec": {"title": "?"}},
                "sourceMessageId": "a",
            },
            "send_file": {"path": "/no/such/file", "sourceMessageId": "a"},
            "save_checkpoint": {"sourceMessageId": "a", "summary": "s", "nextAction": "n"},
            "mark_processed": {"messageId": "a"},
        }
        for tool, arguments in calls.items():
            text = await error(second, tool, **arguments)
            assert "Request a is being worked on by codex 0.171 (codex-cli, /home/ada/site), since 2" in text, tool
            assert "(active in the last minute)" in text
            assert "takeOver: true" in text
            assert text.endswith("(code: claimed)")
        assert len(await machine.claimed()) == 4
        history = await call(second, "get_history")
        assert [request["claim"]["mine"] for request in history["requests"]] == [False] * 4
        assert history["requests"][0]["claim"]["label"] == "codex 0.171 (codex-cli, /home/ada/site)"

        saved = await call(second, "save_checkpoint", **calls["save_checkpoint"], takeOver=True)
        assert saved["source_message_id"] == "a"
        assert (await machine.claimed())["a"] != (await machine.claimed())["b"]
        (event,) = await machine.taken_over()
        assert event["taken_from"] == greeting.session
        assert event["session"] == (await machine.claimed())["a"]
        mine = (await call(second, "wait_for_messages", timeoutMs=0))["messages"]
        assert [(m["message_id"], m["delivery"], m["claim"]["mine"]) for m in mine] == [("a", "again", True)]

        told = await error(first, "save_checkpoint", **calls["save_checkpoint"])
        assert "was taken over from this session by codex 0.171 (/b) at 2" in told
        assert "(code: claimed)" in told
        assert [m["message_id"] for m in (await call(first, "wait_for_messages", timeoutMs=0))["messages"]] == [*"bcd"]
        await call(second, "mark_processed", messageId="a")
        assert ", and is processed" in await error(first, "save_checkpoint", **calls["save_checkpoint"])
        done = await call(first, "mark_processed", messageId="a")
        assert done["processed_at"]  # which is what it wanted
        await call(second, "mark_processed", messageId="b", takeOver=True)
        status = await call(first, "get_status")
        assert {(host["label"], host["claims"]) for host in status["hosts"]} == {
            ("codex 0.171 (codex-cli, /home/ada/site)", 2),
            ("codex 0.171 (/b)", 0),
        }


async def test_a_session_says_from_which_program_and_folder_it_comes(machine: Machine) -> None:
    """Also when the shim cannot tell what started it: its process's parent is looked up."""
    shim = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
    ours = psutil.Process().name()
    deep = "/home/ada/" + "deep/" * 100 + "site"
    async with machine.client("legacy", machine.hello(pid=shim.pid, cwd=deep)) as host:
        (shown,) = (await call(host, "get_status"))["hosts"]
    await shim.communicate(b"\n")
    assert (shown["client"], shown["client_version"], shown["host"], shown["pid"]) == ("codex", "0.171", ours, shim.pid)
    assert shown["cwd"] == deep
    assert shown["label"] == f"codex 0.171 ({ours}, …{deep[-100:]})"


async def test_a_request_can_be_taken_over_back_and_again(machine: Machine) -> None:
    agent = machine.agent
    one, two, three = (machine.core.session(name) for name in ("one", "two", "three"))
    await machine.ask("a")
    await machine.take(one)
    for session in (two, three, one):
        await agent.save_checkpoint(session, source_message_id="a", summary="s", next_action="n", take_over=True)
    assert await machine.claimed() == {"a": one.id}
    for session, taker in ((two, "three"), (three, "one")):
        with pytest.raises(NotPossible, match=f"from this session by {taker} at"):
            await agent.mark_processed(session, "a")
    await agent.save_checkpoint(one, source_message_id="a", summary="more", next_action="n")
    await agent.mark_processed(one, "a")
    await agent.save_checkpoint(two, source_message_id="a", summary="s", next_action="n", take_over=True)
    assert await machine.claimed() == {}  # there is nothing to hold any more
    await agent.save_checkpoint(two, source_message_id="a", summary="s2", next_action="n")  # it was told, and insisted
    assert len(await machine.taken_over()) == 3


async def test_what_was_taken_over_comes_back_in_turn_and_is_its_own_again(machine: Machine) -> None:
    one, two = machine.core.session("one"), machine.core.session("two")
    await machine.ask("a")
    await machine.take(one)
    await machine.agent.mark_processed(two, "a", take_over=True)
    await machine.ask("b")
    await machine.take(one)
    await machine.agent.save_checkpoint(two, source_message_id="b", summary="s", next_action="n", take_over=True)
    await machine.take(two, release=["b"])
    assert await machine.take(one) == ["b"]
    await machine.agent.save_checkpoint(one, source_message_id="b", summary="s", next_action="n")
    await machine.agent.mark_processed(one, "b")


async def test_taking_over_is_durable_and_goes_with_a_failing_call_only_as_a_whole(machine: Machine) -> None:
    one, two = (machine.core.session(name, pid=os.getpid()) for name in ("one", "two"))
    await machine.ask("a")
    await machine.take(one)
    with pytest.raises(NotPossible):  # there is no session to encrypt with, so nothing is sent, and nothing taken
        await machine.agent.send_message(two, text="x", source_message_id="a", take_over=True)
    assert await machine.claimed() == {"a": one.id}
    await machine.agent.save_checkpoint(two, source_message_id="a", summary="s", next_action="n", take_over=True)
    await machine.core.restart()
    agent = machine.core.hub.agent("a1")
    back = machine.core.session("one", session_id=one.id, pid=os.getpid())
    with pytest.raises(NotPossible, match="taken over from this session by two"):
        await agent.mark_processed(back, "a")
    third = machine.core.session("three")
    with pytest.raises(NotPossible, match=r"being worked on by two.*\(not connected now\)"):
        await agent.mark_processed(third, "a")
    again = machine.core.session("two", session_id=two.id, pid=os.getpid())
    assert ids(await agent.wait_for_messages(again, timeout=0)) == ["a"]


async def test_a_person_is_never_told_to_wait(machine: Machine) -> None:
    await machine.ask("a")
    await machine.take(machine.core.session())
    person = Session("control", "control")
    assert (await machine.agent.mark_processed(person, "a", note="by phone")).note == "by phone"


async def test_lease_and_grace_come_from_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "LEASE_CHECK", 0.05)
    async with Machine(tmp_path, claim_lease=2.0, claim_grace=2.0) as machine:
        silent, away = machine.core.session("silent"), machine.core.session("away", pid=os.getpid())
        await machine.ask("a")
        await machine.take(silent)
        await machine.ask("b")
        await machine.take(away)
        machine.core.hub.close_session(away)
        hosts = {host["label"]: host for host in await machine.core.hub.hosts()}
        assert (hosts["away"]["connected"], hosts["away"]["claims"]) == (False, 1)
        other = machine.core.session()

        async def has_both() -> bool:
            return ids(await machine.wait(other)) == ["a", "b"]

        await until(has_both, "both requests")
        # The silent one comes back to it, finds that another has it, and is told so.
        with pytest.raises(NotPossible, match="being worked on by"):
            await machine.agent.mark_processed(silent, "a")
