"""The same call made again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pacerelled.agent.model import Checkpoint, Session
from pacerelled.errors import InvalidArgument, NotPossible, UnknownMessage
from pacerelled.store import calls, replies, retention
from pacerelled.store.database import Tx
from tests.outbound.scene import WIDGET, Scene


async def test_a_key_holds_for_every_session_and_over_restarts(scene: Scene) -> None:
    first = await scene.send("once", idempotency_key="report of March", call_id="1")
    await scene.submitted(first)
    again = await scene.agent.send_message(
        scene.core.session(),
        text="once",
        source_message_id=scene.question,
        idempotency_key="report of March",
        call_id="9",
    )
    assert (again.message_id, again.state, again.repeated) == (first.message_id, "submitted", True)
    await scene.restart()
    later = await scene.send("once", idempotency_key="report of March")
    assert (later.message_id, later.repeated) == (first.message_id, True)
    other = await scene.send("once", idempotency_key="report of April")
    assert not other.repeated
    await scene.submitted(other)
    assert len(scene.relay.messages) == 2


async def test_calls_at_the_same_moment_are_one(scene: Scene) -> None:
    made = await asyncio.gather(*(scene.send("once", idempotency_key="k") for _ in range(10)))
    assert len({reply.message_id for reply in made}) == 1
    assert sorted(reply.repeated for reply in made) == [False] + [True] * 9


@pytest.mark.parametrize("other", [{"text": "twice"}, {"reply_to_message_id": "m9"}])
async def test_a_key_that_was_used_for_something_else_is_an_error(scene: Scene, other: dict[str, Any]) -> None:
    first = await scene.send("once", idempotency_key="k")
    with pytest.raises(InvalidArgument) as refused:
        await scene.send(**{"text": "once", "idempotency_key": "k"} | other)
    assert refused.value.argument == "idempotencyKey"
    assert first.message_id in refused.value.message
    assert "once" not in refused.value.message
    with pytest.raises(InvalidArgument):
        await scene.show(idempotency_key="k")
    with pytest.raises(InvalidArgument):
        await scene.send("once", "question of nobody", idempotency_key="k")
    assert len(await scene.agent.replies()) == 1


@pytest.mark.parametrize("key", ["", "k" * 201, "half \ud83d"])
async def test_keys_that_are_none(scene: Scene, key: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await scene.send(idempotency_key=key)
    assert "\ud83d" in key or refused.value.argument == "idempotencyKey"
    assert await scene.agent.replies() == []


async def test_widgets_and_their_updates_have_keys_too(scene: Scene) -> None:
    shown = await scene.show(idempotency_key="w")
    again = await scene.show(
        '{"kind": "confirm", "id": "w1", "v": 1, "type": "widget.standard", "spec": {"title": "Go?"}}',
        idempotency_key="w",
    )
    assert (again.message_id, again.repeated) == (shown.message_id, True)
    changes = {"message_id": shown.message_id, "spec": {"title": "Now?"}, "idempotency_key": "u"}
    first = await scene.agent.update_widget(scene.session, **changes)
    second = await scene.agent.update_widget(scene.core.session(), **changes)
    assert (second.message_id, second.repeated) == (first.message_id, True)
    with pytest.raises(InvalidArgument):
        await scene.agent.update_widget(scene.session, **changes | {"spec": {"title": "Later?"}})
    await scene.submitted(first)
    assert len(scene.relay.messages) == 2


async def test_a_widget_that_has_expired_since_is_still_the_first_result(scene: Scene) -> None:
    widget = {**WIDGET, "expires_at": "2030-01-01T00:00:00Z"}
    shown = await scene.show({**WIDGET, "expires_at": "2099-01-01T00:00:00Z"}, idempotency_key="w")

    def age(tx: Any) -> None:  # as if the call had been made while the widget was good
        row, _ = replies.by_call(tx, "a1", "key:w") or (None, "")
        assert row is not None
        from pacerelled.agent.repeats import identify

        route = (scene.question, None, None, None)
        digest = identify("", None, "w", "widget", widget, route).digest
        tx.execute("UPDATE replies SET digest = ? WHERE message_id = ?", (digest, shown.message_id))

    await scene.core.store.run(age)
    again = await scene.show(widget, idempotency_key="w")
    assert (again.message_id, again.repeated) == (shown.message_id, True)


async def test_without_a_key_a_call_is_known_by_its_session_and_id(scene: Scene) -> None:
    first = await scene.send("once", call_id="7")
    again = await scene.send("once", call_id="7")
    assert (again.message_id, again.repeated) == (first.message_id, True)
    assert not (await scene.send("once", call_id="8")).repeated
    assert not (await scene.send("once")).repeated


async def test_a_host_that_uses_an_id_twice_loses_nothing(scene: Scene) -> None:
    first, second = await scene.send("one", call_id="1"), await scene.send("two", call_id="1")
    assert not second.repeated
    assert (await scene.send("two", call_id="1")).message_id == second.message_id
    await scene.submitted(first, second)
    assert scene.said(scene.ada) == ["one", "two"]


async def test_a_key_is_forgotten_with_its_reply(scene: Scene) -> None:
    first = await scene.send("once", idempotency_key="k")
    await scene.submitted(first)
    policy = retention.Policy(requests=0, replies=0, events=0, receipts=0, days=1, receipt_days=1)
    due = await scene.core.store.run(lambda tx: retention.look(tx, policy))
    while await scene.core.store.run(lambda tx: retention.prune(tx, due, 1.0)):
        pass
    await scene.deliver(scene.ada.frame("again?", id="m2"))
    anew = await scene.send("another", "m2", idempotency_key="k")
    assert not anew.repeated


async def test_retrying_and_dropping_what_is_not_there(scene: Scene) -> None:
    for call in (scene.agent.retry_reply, scene.agent.drop_reply):
        with pytest.raises(UnknownMessage):
            await call("nothing")
    reply = await scene.send()
    await scene.submitted(reply)
    with pytest.raises(NotPossible):
        await scene.agent.drop_reply(reply.message_id)
    again = await scene.agent.retry_reply(reply.message_id)
    assert (again.state, again.repeated) == ("submitted", True)


async def test_a_checkpoint_that_is_saved_again_by_the_same_call_stays_as_it_was(scene: Scene) -> None:
    async def save(summary: str, call_id: str | None, session: Session = scene.session) -> Checkpoint:
        return await scene.agent.save_checkpoint(
            session, source_message_id=scene.question, summary=summary, next_action="go on", call_id=call_id
        )

    first = await save("half", "1")
    newer = await save("all", "2")
    session = scene.session
    await scene.restart()
    assert await save("half", "1", session) == first
    assert (await scene.agent.checkpoints()).checkpoints == (newer,)
    assert len(await scene.events("checkpoint.saved")) == 2
    await save("more", "1", session)  # another call of a host that uses ids again
    await save("more", None, session)
    assert (await save("more", None, session)).summary == "more"
    assert len(await scene.events("checkpoint.saved")) == 5
    await save("theirs", "1", scene.core.session())
    assert (await scene.agent.checkpoints()).checkpoints[0].summary == "theirs"


async def test_a_reply_is_sent_again_once_a_call(scene: Scene) -> None:
    reply = await scene.send()
    await scene.make_uncertain(reply)
    again = await scene.agent.retry_reply(reply.message_id, session=scene.session, call_id="1")
    assert (again.state, again.repeated) == ("queued", False)
    await scene.submitted(reply)
    sent = len(scene.relay.messages)
    await scene.core.store.run(lambda tx: replies.set_state(tx, [reply.seq], "uncertain", None))
    again = await scene.agent.retry_reply(reply.message_id, session=scene.session, call_id="1")
    assert (again.state, again.repeated) == ("uncertain", True)
    await scene.agent.retry_reply(reply.message_id, session=scene.session, call_id="2")
    await scene.submitted(reply)
    assert len(scene.relay.messages) == sent + 1


async def test_only_the_newest_calls_are_remembered(scene: Scene) -> None:
    def job(tx: Tx) -> int:
        for number in range(calls.KEEP + 10):
            calls.save(tx, "a1", f"s/{number}", "d", "1")
        assert calls.find(tx, "a1", "s/9") is None
        assert calls.find(tx, "a1", "s/10") == ("d", "1")
        return int(tx.one("SELECT count(*) FROM calls")[0])

    assert await scene.core.store.run(job) == calls.KEEP
