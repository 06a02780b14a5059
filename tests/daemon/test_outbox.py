"""Outbound: states, order, the proof, and what happens when link, store or daemon end in between."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pacerelle_protocol.payload import Widget
from pacerelled.agent import outbox as outbox_module
from pacerelled.agent.agent import Agent
from pacerelled.agent.model import Session
from pacerelled.errors import (
    InvalidArgument,
    NotConnected,
    NotPossible,
    RelayRejected,
    StoreUnavailable,
    UnknownMessage,
)
from pacerelled.store import replies
from pacerelled.store.database import Tx

from .core import Core, full_disk, pieces
from .human import Human, message_id
from .polling import until
from .scripted_relay import ScriptedRelay

WIDGET = {"type": "widget.standard", "v": 1, "id": "w1", "kind": "confirm", "spec": {"title": "Go?"}}


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox_module, "RETRY", 0.02)


@pytest.fixture
async def agent(core: Core, relay: ScriptedRelay) -> Agent:
    return await core.agent(relay.url)


@pytest.fixture
async def human(agent: Agent, relay: ScriptedRelay) -> Human:
    """Has written, so that there is a session to reply on."""
    return await introduce(agent, await Human.meet(relay), relay)


async def introduce(agent: Agent, human: Human, relay: ScriptedRelay) -> Human:
    frame = human.frame("question", id=f"question of {human.user}")
    await relay.push(frame)
    await until(lambda: message_id(frame) in relay.acked)
    return human


@pytest.fixture
def session(core: Core) -> Session:
    return core.session()


async def state_of(agent: Agent, message: str) -> str:
    return (await agent.wait_for_reply(message, timeout=0)).state


async def offline(relay: ScriptedRelay) -> None:
    """No connection, and none to be had."""
    relay.refuse["/ws/agent"] = 500
    await relay.drop()


def online(relay: ScriptedRelay) -> None:
    del relay.refuse["/ws/agent"]


async def test_a_reply_reaches_the_device_that_asked(
    agent: Agent, human: Human, relay: ScriptedRelay, session: Session
) -> None:
    reply = await agent.send_message(session, text="answer", source_message_id="question of ada")
    assert (reply.state, reply.to, reply.device_id, reply.repeated) == ("queued", "ada", "d1", False)
    done = await agent.wait_for_reply(reply.message_id, timeout=30)
    assert done.state == "submitted"
    (frame,) = relay.messages
    assert human.read(frame).text == "answer"
    assert frame["id"] == reply.message_id
    assert (frame["to"], frame["to_device_id"], frame["encrypted"]) == ("ada", "d1", True)
    assert frame["reply_to_message_id"] == "question of ada"
    assert (await agent.status())["queued"] == 0


async def test_widgets_and_files(agent: Agent, human: Human, relay: ScriptedRelay, session: Session) -> None:
    widget = await agent.send_widget(session, widget=WIDGET, source_message_id="question of ada")
    assert widget.widget_id == "w1"
    file = await agent.send_file(
        session,
        name="../secret/plan.txt",
        data=pieces(b"the ", b"plan"),
        size=8,
        source_message_id="question of ada",
        text="see",
    )
    assert (await agent.wait_for_reply(file.message_id, timeout=30)).state == "submitted"
    first, second = relay.messages
    assert isinstance(human.read(first), Widget)
    content = human.read(second)
    assert (content.text, content.files[0].name, content.files[0].mime) == ("see", "plan.txt", "text/plain")
    assert second["attachments"][0]["name"] == "attachment"
    assert b"the plan" not in relay.blobs["blob0"]


async def test_replies_leave_in_order_and_several_under_one_proof(
    agent: Agent, human: Human, relay: ScriptedRelay, session: Session
) -> None:
    await offline(relay)
    sent = [await agent.send_message(session, text=str(n), source_message_id="question of ada") for n in range(70)]
    assert {await state_of(agent, r.message_id) for r in sent} == {"queued"}
    assert (await agent.status())["queued"] == 70
    online(relay)
    assert (await agent.wait_for_reply(sent[-1].message_id, timeout=30)).state == "submitted"
    assert [human.read(frame).text for frame in relay.messages] == [str(n) for n in range(70)]


async def test_without_a_proof_a_reply_is_uncertain_and_a_retry_is_the_same_bytes(
    agent: Agent, human: Human, relay: ScriptedRelay, session: Session
) -> None:
    relay.answers_pings = False
    reply = await agent.send_message(session, text="did it leave?", source_message_id="question of ada")
    await until(lambda: relay.messages)
    assert await state_of(agent, reply.message_id) == "sending"
    await relay.drop()
    done = await agent.wait_for_reply(reply.message_id, timeout=30)
    assert done.state == "uncertain"
    assert done.reason
    status = await agent.status()
    assert status["uncertain"] == 1
    assert status["uncertain_sends"][0]["message_id"] == reply.message_id
    relay.answers_pings = True
    await relay.connected()
    assert len(relay.messages) == 1  # not sent again by itself
    await agent.retry_reply(reply.message_id)
    assert (await agent.wait_for_reply(reply.message_id, timeout=30)).state == "submitted"
    first, second = (raw for raw in relay.raw if '"MSG"' in raw)
    assert first == second
    assert human.read(json.loads(second)).text == "did it leave?"
    again = await agent.retry_reply(reply.message_id)
    assert (again.state, again.repeated) == ("submitted", True)


async def test_retry_uncertain_sends_again_after_reconnecting(tmp_path: Any, relay: ScriptedRelay) -> None:
    async with Core(tmp_path / "other", retry_uncertain=True) as core:
        agent = await core.agent(relay.url)
        await introduce(agent, await Human.meet(relay), relay)
        relay.answers_pings = False
        reply = await agent.send_message(core.session(), text="x", source_message_id="question of ada")
        await until(lambda: relay.messages)
        relay.answers_pings = True
        await relay.drop()
        await until(lambda: len(relay.messages) == 2)
        assert (await agent.wait_for_reply(reply.message_id, timeout=30)).state in ("submitted", "uncertain")

        async def submitted() -> bool:
            return await state_of(agent, reply.message_id) == "submitted"

        await until(submitted)
        assert relay.messages[0] == relay.messages[1]


async def test_what_never_left_is_not_called_uncertain(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link ends after the first of three frames: the second was not written, the third not tried."""
    await offline(relay)
    sent = [await agent.send_message(session, text=t, source_message_id="question of ada") for t in "abc"]
    real, tries = agent._link.send, 0

    async def send(frame: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise NotConnected("gone")
        await real(frame)

    monkeypatch.setattr(agent._link, "send", send)
    online(relay)
    assert [(await agent.wait_for_reply(r.message_id, timeout=30)).state for r in sent] == [
        "uncertain",
        "submitted",
        "submitted",
    ]
    assert [human.read(frame).text for frame in relay.messages] == ["a", "b", "c"]


async def test_a_crash_while_sending_leaves_it_uncertain(core: Core, relay: ScriptedRelay) -> None:
    agent = await core.agent(relay.url)
    await introduce(agent, await Human.meet(relay), relay)
    await offline(relay)
    sent = [await agent.send_message(core.session(), text=text, source_message_id="question of ada") for text in "ab"]

    def crashed(tx: Tx) -> None:
        assert len(replies.begin_sending(tx, "a1", 1)) == 1

    await core.restart(crashed)
    agent = core.hub.agent("a1")
    assert [(r.state, r.message_id) for r in await agent.replies()] == [
        ("uncertain", sent[0].message_id),
        ("queued", sent[1].message_id),
    ]
    online(relay)
    agent.set_token("token")
    assert (await agent.wait_for_reply(sent[1].message_id, timeout=30)).state == "submitted"
    assert [m["id"] for m in relay.messages] == [sent[1].message_id]


async def test_a_repeated_call_finds_the_first_result_also_after_a_restart(core: Core, relay: ScriptedRelay) -> None:
    agent = await core.agent(relay.url)
    await introduce(agent, await Human.meet(relay), relay)
    session = core.session(session_id="s" * 32)
    call: dict[str, Any] = {"text": "once", "source_message_id": "question of ada"}
    first = await agent.send_message(session, **call, call_id="7")
    again = await agent.send_message(session, **call, call_id="7")
    assert (again.message_id, again.repeated) == (first.message_id, True)
    other = await agent.send_message(core.session(), **call, call_id="7")
    assert other.message_id != first.message_id
    await core.restart()
    agent = core.hub.agent("a1")
    agent.set_token("token")
    later = await agent.send_message(core.session(session_id="s" * 32), **call, call_id="7")
    assert (later.message_id, later.repeated) == (first.message_id, True)
    await agent.wait_for_reply(other.message_id, timeout=30)
    assert len({m["id"] for m in relay.messages}) == 2


async def test_a_full_disk_refuses_a_reply_and_the_session_survives(
    core: Core, agent: Agent, human: Human, relay: ScriptedRelay, session: Session
) -> None:
    await full_disk(core.store)
    with pytest.raises(StoreUnavailable) as caught:
        await agent.send_message(session, text="y" * 40_000, source_message_id="question of ada")
    assert caught.value.hint
    await full_disk(core.store, full=False)
    reply = await agent.send_message(session, text="short", source_message_id="question of ada")
    assert (await agent.wait_for_reply(reply.message_id, timeout=30)).state == "submitted"
    (frame,) = relay.messages
    assert human.read(frame).text == "short"


async def test_a_store_that_fails_after_the_proof_is_written_to_later(
    agent: Agent, human: Human, relay: ScriptedRelay, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = replies.set_state, [3]

    def failing(tx: Tx, seqs: list[int], state: str, reason: str | None) -> None:
        if state == "submitted" and failures[0]:
            failures[0] -= 1
            raise StoreUnavailable("no space")
        real(tx, seqs, state, reason)

    monkeypatch.setattr(replies, "set_state", failing)
    reply = await agent.send_message(session, text="x", source_message_id="question of ada")
    assert (await agent.wait_for_reply(reply.message_id, timeout=30)).state == "submitted"
    assert failures == [0]
    assert len(relay.messages) == 1


async def test_an_error_of_ours_does_not_end_sending_for_good(
    agent: Agent, human: Human, relay: ScriptedRelay, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, failures = replies.begin_sending, [2]

    def failing(tx: Tx, agent_id: str, limit: int) -> list[tuple[int, str, str]]:
        if failures[0]:
            failures[0] -= 1
            raise ZeroDivisionError
        return real(tx, agent_id, limit)

    monkeypatch.setattr(replies, "begin_sending", failing)
    reply = await agent.send_message(session, text="x", source_message_id="question of ada")
    assert (await agent.wait_for_reply(reply.message_id, timeout=30)).state == "submitted"


async def test_targets(agent: Agent, human: Human, relay: ScriptedRelay, session: Session) -> None:
    send = agent.send_message
    reply = await send(session, text="x", conversation_id="c1")
    assert (reply.to, reply.device_id) == ("ada", "d1")
    with pytest.raises(UnknownMessage):
        await send(session, text="x", source_message_id="unknown")
    for wrong in ({"conversation_id": "c2"}, {"to": "bob"}):
        with pytest.raises(InvalidArgument) as contradiction:
            await send(session, text="x", source_message_id="question of ada", **wrong)
        assert contradiction.value.argument in ("conversationId", "to")
    with pytest.raises(InvalidArgument) as nowhere:
        await send(session, text="x")
    assert nowhere.value.argument == "sourceMessageId"
    with pytest.raises(InvalidArgument):
        await send(session, text="x", conversation_id="c9")
    with pytest.raises(NotPossible) as stranger:
        await send(session, text="x", conversation_id="c1", to="bob")
    assert "write first" in stranger.value.hint
    with pytest.raises(NotPossible):
        await send(session, text="x", conversation_id="c1", to="group:c1")
    assert len(await agent.replies()) == 1


@pytest.mark.parametrize("text", ["", " \n", "half \ud83d", "z" * (1 << 20)])
async def test_texts_that_cannot_be_sent(
    agent: Agent, human: Human, relay: ScriptedRelay, session: Session, text: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await agent.send_message(session, text=text, source_message_id="question of ada")
    assert refused.value.argument == "text"
    assert refused.value.hint
    # Nothing was used up: the next message is the first of its chain.
    await agent.send_message(session, text="fine", source_message_id="question of ada")
    (frame,) = await until(lambda: relay.messages)
    assert human.read(frame).text == "fine"


async def test_half_characters_anywhere_are_the_caller_s_fault(agent: Agent, human: Human, session: Session) -> None:
    with pytest.raises(InvalidArgument):
        await agent.send_message(session, text="x", source_message_id="\ud800")
    with pytest.raises(InvalidArgument):
        await agent.mark_processed(session, "question of ada", note="\ud800")
    with pytest.raises(InvalidArgument):
        await agent.save_checkpoint(session, source_message_id="question of ada", summary="\udfff", next_action="go on")
    title = {**WIDGET, "spec": {"title": "cut \ud83d"}}
    try:
        reply = await agent.send_widget(session, widget=title, source_message_id="question of ada")
    except InvalidArgument:
        return
    reply.text.encode()


async def test_a_bad_widget_names_the_field_and_shows_a_right_one(agent: Agent, human: Human, session: Session) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await agent.send_widget(session, widget={**WIDGET, "kind": "nope"}, source_message_id="question of ada")
    assert refused.value.argument == "widgetJson"
    assert "widget.standard" in refused.value.hint


async def test_a_failed_upload_sends_nothing(
    agent: Agent, human: Human, relay: ScriptedRelay, session: Session
) -> None:
    relay.refuse["/agent/blobs"] = 507
    with pytest.raises(RelayRejected) as refused:
        await agent.send_file(session, name="a.txt", data=pieces(b"x"), size=1, source_message_id="question of ada")
    assert refused.value.status == 507
    assert await agent.replies() == []


async def test_stopping_lets_a_reply_come_to_its_proof(core: Core, relay: ScriptedRelay) -> None:
    agent = await core.agent(relay.url)
    await introduce(agent, await Human.meet(relay), relay)
    for text in "abcdef":
        await agent.send_message(core.session(), text=text, source_message_id="question of ada")
    await core.restart()
    states = [r.state for r in await core.hub.agent("a1").replies()]
    assert set(states) <= {"submitted", "queued"}
    assert [r for r in states if r == "submitted"] == ["submitted"] * len(relay.messages)
