"""The allow list: who is not on it waits for the user's decision."""

from __future__ import annotations

import json

import pytest

from pacerelle_protocol.groups import new_group_key
from pacerelle_protocol.history import HistoryKey
from pacerelled.agent.agent import Agent
from tests.daemon.core import Core
from tests.daemon.human import Human
from tests.daemon.polling import until
from tests.daemon.scripted_relay import ScriptedRelay

from .seen import deliver, device, events, problems, reasons, texts


@pytest.fixture
async def bob(agent: Agent, relay: ScriptedRelay) -> Human:
    return await Human.meet(relay, user="bob", conversation="c2", device="d2")


async def test_without_a_list_everybody_who_reaches_the_agent_is_authorized(
    agent: Agent, ada: Human, bob: Human, relay: ScriptedRelay
) -> None:
    await deliver(agent, relay, ada.frame("one"), bob.frame("two"))
    assert await agent.allow_list.show() == {"on": False, "people": []}
    assert await texts(agent) == ["one", "two"]
    assert await agent.allow_list.remove("ada") == {"on": False, "people": [], "accepted": 0}


async def test_with_a_list_others_wait_and_come_in_order_once_they_are_allowed(
    agent: Agent, core: Core, ada: Human, bob: Human, relay: ScriptedRelay
) -> None:
    assert await agent.allow_list.add("ada") == {"on": True, "people": ["ada"], "accepted": 0}
    key = HistoryKey("k1", 1, b"1" * 32)
    frames = [bob.frame("two", history=key), bob.frame("three"), bob.frame("four")]
    await deliver(agent, relay, ada.frame("one"), *frames)
    assert await texts(agent) == ["one"]
    assert await reasons(agent) == ["not_allowed"] * 3
    row = (await agent.quarantine.select())[0]
    assert (row["sender"], row["decrypted"]) == ("bob", True)
    assert (await agent.quarantine.show(row["id"], text=True))["text"] == "two"
    assert (await device(agent, bob))["state"] == "new"  # the device is recorded all the same
    assert await problems(agent) == []
    assert (await agent.status())["quarantine_reasons"] == {"not_allowed": 3}
    relay.received.clear()
    await deliver(agent, relay, frames[1])  # repeated, as after a lost acknowledgement
    assert [r["times"] for r in await agent.quarantine.select()] == [1, 2, 1]

    await core.restart()
    agent = core.hub.agent("a1")
    agent.set_token("token")
    assert await agent.allow_list.add("bob") == {"on": True, "people": ["ada", "bob"], "accepted": 3}
    assert await texts(agent) == ["one", "two", "three", "four"]
    await deliver(agent, relay, bob.frame("five"))
    assert (await texts(agent))[-1] == "five"
    assert await reasons(agent) == []
    session = core.session()
    await agent.send_message(session, text="reply", conversation_id="c2")
    await relay.connected()
    reply = (await until(lambda: relay.messages))[0]
    assert bob.read(reply).text == "reply"
    assert reply["history_record"]["key_id"] == "k1"
    assert "allow.added" in await events(core)


async def test_no_host_is_handed_what_somebody_wrote_who_is_allowed_no_more(
    agent: Agent, core: Core, ada: Human, bob: Human, relay: ScriptedRelay
) -> None:
    await deliver(agent, relay, ada.frame("one"), bob.frame("two"))
    await agent.allow_list.add("ada")
    session = core.session()
    found = await agent.wait_for_messages(session, timeout=0)
    assert [m.text for m in found.messages] == ["one"]
    assert (await agent.status())["pending"] == 1
    everything = (await agent.inbox())[0]
    assert [m.as_dict()["sender"]["authorized"] for m in everything] == [True, False]
    await agent.allow_list.add("bob")
    found = await agent.wait_for_messages(session, timeout=0)
    assert [m.text for m in found.messages] == ["one", "two"]
    assert (await agent.allow_list.remove("bob"))["people"] == ["ada"]
    assert [m.text for m in (await agent.wait_for_messages(session, timeout=0)).messages] == ["one"]


async def test_an_empty_list_allows_nobody_and_off_allows_everybody(
    agent: Agent, ada: Human, bob: Human, relay: ScriptedRelay
) -> None:
    await agent.allow_list.add("ada")
    assert await agent.allow_list.remove("ada") == {"on": True, "people": [], "accepted": 0}
    await deliver(agent, relay, ada.frame("one"), bob.frame("two"), ada.frame("three"))
    assert await reasons(agent) == ["not_allowed"] * 3
    assert await agent.allow_list.off() == {"on": False, "people": [], "accepted": 3}
    assert await texts(agent) == ["one", "two", "three"]


async def test_group_messages_of_others_wait_as_well(
    agent: Agent, ada: Human, bob: Human, relay: ScriptedRelay
) -> None:
    key = new_group_key("c1")
    relay.group_keys["c1"] = [ada.key_envelope(key)]
    await agent.allow_list.add("ada")
    foreign = bob.elsewhere(relay, "c1").group_frame("two", key)
    await deliver(agent, relay, ada.group_frame("one", key), foreign, ada.group_frame("three", key))
    assert await texts(agent) == ["one", "three"]
    assert await reasons(agent) == ["not_allowed"]
    await agent.allow_list.add("bob")
    assert await texts(agent) == ["one", "three", "two"]


async def test_dropping_a_person_s_messages_leaves_the_others(
    agent: Agent, ada: Human, bob: Human, relay: ScriptedRelay
) -> None:
    await agent.allow_list.add("nobody")
    await deliver(agent, relay, ada.frame("one"), bob.frame("two"))
    assert await agent.quarantine.drop(sender="bob") == {"dropped": 1}
    assert (await agent.allow_list.off())["accepted"] == 1
    assert await texts(agent) == ["one"]
    await deliver(agent, relay, bob.frame("three"))
    assert await texts(agent) == ["one", "three"]


async def test_a_bad_message_of_somebody_who_was_held_stays_with_its_own_reason(
    agent: Agent, ada: Human, relay: ScriptedRelay
) -> None:
    await agent.allow_list.add("nobody")
    await deliver(agent, relay, ada.envelope(ada.encrypt(b"\xff")), ada.frame("good"))
    assert await reasons(agent) == ["not_allowed"] * 2
    assert (await agent.allow_list.add("ada"))["accepted"] == 1
    assert await texts(agent) == ["good"]
    assert await reasons(agent) == ["not_utf8"]


async def test_a_widget_s_answer_of_somebody_not_allowed_reaches_no_host(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    answer = json.dumps({"type": "widget.response", "v": 1, "id": "r1", "ref": "w1", "value": True})
    await deliver(agent, relay, ada.envelope(ada.encrypt(answer)))
    assert await agent.pending_widget() is not None
    await agent.allow_list.add("nobody")
    assert await agent.pending_widget() is None


async def test_the_list_outlives_the_removal_of_the_agent_and_not_its_purge(
    agent: Agent, core: Core, relay: ScriptedRelay
) -> None:
    await agent.allow_list.add("ada")
    await core.hub.remove_agent("a1")
    assert (await (await core.agent(relay.url)).allow_list.show())["people"] == ["ada"]
    await core.hub.remove_agent("a1", purge=True)
    assert (await (await core.agent(relay.url)).allow_list.show())["on"] is False
