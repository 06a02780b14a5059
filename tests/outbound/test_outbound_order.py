"""Offline, in order, and what one reply's trouble means for the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pacerelled.agent import outbox
from pacerelled.agent.model import Reply
from pacerelled.errors import NotPossible
from pacerelled.store import replies
from pacerelled.store.database import Tx
from tests.daemon.core import Core
from tests.daemon.polling import until
from tests.daemon.scripted_relay import ScriptedRelay
from tests.outbound.scene import Scene

LONG = "long " * 30_000  # goes alone


async def test_what_is_sent_offline_goes_later_in_order_in_each_conversation(scene: Scene) -> None:
    bob = await scene.meet("bob", "c2")
    await scene.offline()
    sent = []
    for number in range(20):
        sent.append(await scene.send(f"ada {number}"))
        sent.append(await scene.send(f"bob {number}", "question of bob"))
        if number == 10:
            await scene.restart()
    assert {await scene.state(reply) for reply in sent} == {"queued"}
    scene.online()
    await scene.submitted(*sent)
    assert scene.said(scene.ada) == [f"ada {number}" for number in range(20)]
    assert scene.said(bob) == [f"bob {number}" for number in range(20)]
    assert len(scene.relay.messages) == 40


async def test_a_message_that_the_relay_refuses_fails_and_others_go_on(scene: Scene) -> None:
    await scene.meet("bob", "c2")
    await scene.offline()
    before, long, behind = await scene.send("before"), await scene.send(LONG), await scene.send("behind")
    other = await scene.send("other", "question of bob")
    scene.relay.ends_at = lambda frame: 1009 if len(frame) > 64_000 else None
    scene.online()
    failed = await scene.agent.wait_for_reply(long.message_id, timeout=30)
    assert failed.state == "failed"
    assert failed.reason == "the relay does not take a message as large as this one"
    await scene.submitted(before, other, behind)
    assert scene.said(scene.ada)[-1] == "behind"
    (event,) = await scene.events("reply.failed")
    assert event["message_id"] == long.message_id
    assert [r.state for r in await scene.agent.replies(state="open")] == ["failed"]
    # A relay that takes it by now gets the same bytes.
    scene.relay.ends_at = lambda frame: None
    assert (await scene.agent.retry_reply(long.message_id)).state == "queued"
    await scene.submitted(long)
    first, second = (m for m in scene.relay.messages if m["id"] == long.message_id)
    assert first == second


@pytest.mark.parametrize("code", [1009, 1011, 0])
async def test_one_that_ends_the_connection_each_time_holds_up_no_other_conversation(
    tmp_path: Path, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """With `retry_uncertain` it is tried again and again, but alone, behind the others, and not for ever."""
    monkeypatch.setattr(outbox, "RETRY", 0.02)
    async with Core(tmp_path / "state", retry_uncertain=True) as core:
        scene = Scene(core, relay)
        await scene.begin()
        bob = await scene.meet("bob", "c2")
        await scene.offline()
        poison, behind = await scene.send("poison"), await scene.send("behind")
        others = [await scene.send(f"other {n}", "question of bob") for n in range(3)]
        relay.ends_at = lambda frame: code if f'"{poison.message_id}"' in frame else None
        scene.online()
        await scene.in_the_end("submitted", *others)
        assert scene.said(bob) == ["other 0", "other 1", "other 2"]
        if code == 1009:
            await scene.in_the_end("failed", poison)
        else:
            await until(lambda: given_up(scene, poison), "the last attempt")
        await scene.in_the_end("submitted", behind)
        await scene.submitted(await scene.send("later", "question of bob"))
        assert sum(m["id"] == poison.message_id for m in relay.messages) <= outbox.TRIES


async def given_up(scene: Scene, poison: Reply) -> bool:
    reply = await scene.agent.wait_for_reply(poison.message_id, timeout=0)
    return reply.attempts == outbox.TRIES and reply.state == "uncertain"


async def test_a_retried_reply_goes_before_what_follows_it_in_its_conversation(scene: Scene) -> None:
    bob = await scene.meet("bob", "c2")
    reply = await scene.send("first")
    await scene.make_uncertain(reply)
    await scene.offline()
    behind = await scene.send("second")
    other = await scene.send("other", "question of bob")
    await scene.agent.retry_reply(reply.message_id)
    seen = len(scene.relay.messages)
    scene.online()
    await scene.submitted(reply, behind, other)
    assert [m["id"] for m in scene.relay.messages[seen:]] == [other.message_id, reply.message_id, behind.message_id]
    assert scene.said(bob) == ["other"]


async def test_a_dropped_reply_is_never_sent(scene: Scene) -> None:
    await scene.offline()
    kept, dropped = await scene.send("kept"), await scene.send("dropped")
    waiting = asyncio.create_task(scene.agent.wait_for_reply(dropped.message_id, timeout=30))
    await asyncio.sleep(0)
    gone = await scene.agent.drop_reply(dropped.message_id)
    assert (gone.state, gone.reason) == ("dropped", "dropped before it was sent")
    assert (await waiting).state == "dropped"
    assert (await scene.agent.drop_reply(dropped.message_id)).repeated
    with pytest.raises(NotPossible):
        await scene.agent.retry_reply(dropped.message_id)
    await scene.restart()
    scene.online()
    await scene.submitted(kept, await scene.send("more"))
    assert scene.said(scene.ada) == ["kept", "more"]  # the ratchet does not mind the gap


async def test_an_uncertain_reply_can_be_given_up_and_is_not_tried_again(
    tmp_path: Path, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "RETRY", 0.02)
    async with Core(tmp_path / "state", retry_uncertain=True) as core:
        scene = Scene(core, relay)
        await scene.begin()
        relay.answers_pings = False
        reply = await scene.send("x")
        await until(lambda: relay.messages)
        with pytest.raises(NotPossible):
            await scene.agent.drop_reply(reply.message_id)  # it is on its way
        await scene.offline()
        await scene.in_the_end("uncertain", reply)
        gone = await scene.agent.drop_reply(reply.message_id)
        assert (gone.state, gone.reason) == ("dropped", "dropped; it may have arrived")
        relay.answers_pings = True
        scene.online()
        await scene.submitted(await scene.send("next"))
        assert len(relay.messages) == 2
        assert (await scene.agent.status())["uncertain"] == 0


async def test_what_a_removed_agent_had_queued_fails(scene: Scene) -> None:
    tried = await scene.send("perhaps")
    await scene.make_uncertain(tried)
    await scene.offline()
    await scene.agent.retry_reply(tried.message_id)
    reply = await scene.send("too late")
    await scene.core.hub.remove_agent("a1")
    assert [e["message_id"] for e in await scene.events("reply.failed")] == [reply.message_id]
    scene.agent = await scene.core.agent(scene.relay.url)
    failed = await scene.agent.wait_for_reply(reply.message_id, timeout=0)
    assert (failed.state, failed.reason) == ("failed", "the agent was removed before this was sent")
    assert await scene.state(tried) == "uncertain"
    scene.online()
    await scene.relay.connected()
    assert len(scene.relay.messages) == 1
    await scene.agent.retry_reply(reply.message_id)
    await scene.submitted(reply)
    assert scene.said(scene.ada) == ["perhaps", "too late"]


async def test_the_outbox_is_read_through_its_index(scene: Scene) -> None:
    """So that it costs the same with ten thousand old replies in the store."""
    asked: list[str] = []

    def job(tx: Tx) -> list[str]:
        tx.conn.set_trace_callback(asked.append)
        replies.begin_sending(tx, "a1", 32)
        replies.in_state(tx, "a1", "sending")
        replies.counts(tx, "a1")
        replies.select(tx, "a1", state="uncertain", limit=50)
        tx.conn.set_trace_callback(None)
        return [row[3] for query in asked for row in tx.all(f"EXPLAIN QUERY PLAN {query}") if "replies" in row[3]]

    plans = await scene.core.store.run(job)
    assert len(plans) == 5
    assert all("USING INDEX replies_open" in plan for plan in plans)
