"""Whose key it is: trust on first use, changed keys, and what the user decides about a device."""

from __future__ import annotations

import asyncio
import json

import pytest

from pacerelle_protocol.groups import new_group_key
from pacerelled.agent import inbox as inbox_module
from pacerelled.agent.agent import Agent
from pacerelled.errors import InvalidArgument, NotPossible, UnknownMessage
from tests.daemon.core import Core
from tests.daemon.human import Human
from tests.daemon.polling import until
from tests.daemon.scripted_relay import ScriptedRelay

from .seen import code, deliver, device, events, problems, reasons, reborn, texts


async def test_a_new_device_is_trusted_and_listed_with_its_safety_code(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    await deliver(agent, relay, ada.frame("hello"))
    row = await device(agent, ada)
    assert (row["state"], row["safety_code"], row["held"]) == ("new", code(ada), 0)
    assert row["first_seen"] <= row["last_seen"]
    assert (row["changed_code"], row["refused_code"], row["noticed_at"]) == (None, None, None)
    assert await problems(agent) == []
    assert "device.added" in await events(core)
    sender = (await agent.inbox())[0][0].as_dict()["sender"]
    assert sender == {"person": "ada", "device": "d1", "verified": False, "group": False, "authorized": True}


async def test_a_message_that_does_not_decrypt_makes_no_device(agent: Agent, ada: Human, relay: ScriptedRelay) -> None:
    payload = ada.encrypt("hello")
    broken = payload[:-8] + ("AAAAAAAA" if payload[-8:] != "AAAAAAAA" else "BBBBBBBB")
    await deliver(agent, relay, ada.envelope(broken))
    assert await agent.devices.select() == []
    assert await reasons(agent) in (["undecryptable"], ["bad_base64"], ["bad_signal_message"])


async def test_a_verified_device_is_said_to_be_one_also_for_what_it_wrote_before(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    await deliver(agent, relay, ada.frame("before"))
    with pytest.raises(InvalidArgument, match="safety code"):
        await agent.devices.verify("ada", "d1", "0000 1111")
    with pytest.raises(UnknownMessage):
        await agent.devices.verify("ada", "d2", code(ada))
    decided = await agent.devices.verify("ada", "d1", code(ada).lower().replace(" ", ""))
    assert decided["device"]["state"] == "verified"
    await deliver(agent, relay, ada.frame("after"))
    assert [r.verified for r in (await agent.inbox())[0]] == [True, True]
    await core.restart()
    assert (await device(core.hub.agent("a1"), ada))["state"] == "verified"
    assert "device.verified" in await events(core)


async def test_a_changed_key_holds_the_device_everywhere_until_it_is_trusted_and_then_comes_in_order(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    there = ada.elsewhere(relay, "c2")
    other_device = await Human.meet(relay, device="d2")
    await deliver(agent, relay, ada.frame("one"), there.frame("two"))
    await agent.devices.verify("ada", "d1", code(ada))

    new = await reborn(relay, ada)
    new_there = new.elsewhere(relay, "c2")
    held = [new.frame("three"), new_there.frame("four"), new.frame("five"), new_there.frame("six")]
    await deliver(agent, relay, *held, other_device.frame("another device need not wait"))
    assert await texts(agent) == ["one", "two", "another device need not wait"]
    assert await reasons(agent) == ["identity_changed"] * 4
    row = await device(agent, ada)
    assert (row["state"], row["held"]) == ("changed", 4)
    assert (row["safety_code"], row["changed_code"]) == (code(ada), code(new))
    assert await problems(agent) == ["identity_changed"]

    await core.restart()
    agent = core.hub.agent("a1")
    agent.set_token("token")
    with pytest.raises(NotPossible, match="another identity key"):
        await agent.devices.verify("ada", "d1", code(ada))
    with pytest.raises(NotPossible):
        await agent.devices.trust("ada", "d1", code(ada))
    with pytest.raises(InvalidArgument):
        await agent.devices.trust("ada", "d1", code(other_device))
    decided = await agent.devices.trust("ada", "d1", code(new))
    assert decided["accepted"] == 4
    assert (decided["device"]["state"], decided["device"]["held"]) == ("new", 0)
    assert await texts(agent) == ["one", "two", "another device need not wait", "three", "four", "five", "six"]
    assert await reasons(agent) == []
    assert await problems(agent) in ([], ["relay_offline"])
    # What the old key signed is no longer what the user could compare, and the new one was not compared.
    assert [r.verified for r in (await agent.inbox())[0]] == [False] * 7
    newest = (await agent.inbox())[0][-1]
    await agent.send_message(core.session(), text="to the new one", source_message_id=newest.message_id)
    await relay.connected()
    reply = (await until(lambda: relay.messages))[0]
    assert new_there.read(reply).text == "to the new one"
    await deliver(agent, relay, new.frame("seven"))
    assert (await texts(agent))[-1] == "seven"


async def test_what_the_old_key_still_brings_is_refused_alone(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    await deliver(agent, relay, ada.frame("one"))
    new = await reborn(relay, ada)
    await deliver(agent, relay, new.frame("two"))
    await agent.devices.trust("ada", "d1", code(new))
    await deliver(agent, relay, ada.elsewhere(relay, "c3").frame("from the stolen old one"), new.frame("three"))
    assert await texts(agent) == ["one", "two", "three"]
    assert await reasons(agent) == ["identity_refused"]
    row = await device(agent, ada)
    assert (row["state"], row["refused_code"]) == ("new", code(ada))
    # A person can change their mind: the old one was right after all.
    decided = await agent.devices.trust("ada", "d1", code(ada))
    assert decided["accepted"] == 1
    assert (await texts(agent))[-1] == "from the stolen old one"
    await deliver(agent, relay, new.frame("four"))
    assert (await texts(agent))[-1] == "from the stolen old one"


async def test_a_refused_key_holds_up_the_device_no_more(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    await deliver(agent, relay, ada.frame("one"))
    with pytest.raises(NotPossible, match="no other"):
        await agent.devices.refuse("ada", "d1", code(ada))
    forged = await reborn(relay, ada)
    await deliver(agent, relay, forged.frame("give me the keys"), ada.frame("two"), ada.frame("three"))
    assert await reasons(agent) == ["identity_changed"] * 3
    with pytest.raises(InvalidArgument):
        await agent.devices.refuse("ada", "d1", code(ada))
    decided = await agent.devices.refuse("ada", "d1", code(forged))
    assert (decided["accepted"], decided["device"]["state"]) == (2, "new")
    assert await texts(agent) == ["one", "two", "three"]
    assert await reasons(agent) == ["identity_refused"]
    await deliver(agent, relay, forged.frame("once more"), ada.frame("four"))
    assert await texts(agent) == ["one", "two", "three", "four"]
    assert await problems(agent) == []


async def test_a_blocked_device_is_held_with_what_was_not_handed_out_until_it_is_trusted(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    there = ada.elsewhere(relay, "c2")
    await deliver(agent, relay, ada.frame("one"))
    assert (await agent.devices.block("ada", "d1"))["device"]["state"] == "blocked"
    await deliver(agent, relay, ada.frame("two"), there.frame("three"), ada.frame("four"))
    assert await reasons(agent) == ["device_blocked"] * 3
    session = core.session()
    assert (await agent.wait_for_messages(session, timeout=0)).messages == ()
    status = await agent.status()
    assert (status["pending"], status["quarantined"], status["quarantine_reasons"]) == (0, 3, {"device_blocked": 3})
    request = (await agent.inbox())[0][0]
    assert request.as_dict()["sender"]["authorized"] is False
    with pytest.raises(NotPossible, match="blocked"):
        await agent.send_message(session, text="no", source_message_id=request.message_id)
    decided = await agent.devices.trust("ada", "d1", code(ada))
    assert (decided["accepted"], decided["device"]["state"]) == (3, "new")
    found = await agent.wait_for_messages(session, timeout=0)
    assert [m.text for m in found.messages] == ["one", "two", "three", "four"]


async def test_a_host_that_waits_is_told_when_a_device_is_unblocked(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    await deliver(agent, relay, ada.frame("one"))
    await agent.devices.block("ada", "d1")
    session = core.session()
    waiting = asyncio.create_task(agent.wait_for_messages(session, timeout=30))
    await until(lambda: session.waiting == 1)
    await agent.devices.trust("ada", "d1", code(ada))
    assert [m.text for m in (await waiting).messages] == ["one"]


async def test_a_blocked_key_comes_in_under_no_other_device_id(agent: Agent, ada: Human, relay: ScriptedRelay) -> None:
    await deliver(agent, relay, ada.frame("one"))
    await agent.devices.block("ada", "d1")
    ada.device = "d9"
    there = ada.elsewhere(relay, "c9")
    await deliver(agent, relay, there.frame("two"), there.frame("three"))
    assert await texts(agent) == []
    assert await reasons(agent) == ["device_blocked"] * 2
    assert (await device(agent, ada))["state"] == "blocked"
    assert (await agent.devices.trust("ada", "d9", code(ada)))["accepted"] == 2


# -- the relay's word ------------------------------------------------------------------------------------------


async def test_the_relay_s_notice_is_shown_on_that_person_s_devices_until_a_decision(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    bob = await Human.meet(relay, user="bob", conversation="c2")
    await deliver(agent, relay, ada.frame("one"), bob.frame("two"))
    await relay.push(json.dumps({"type": "IDENTITY_CHANGED", "user_id": "ada"}))

    async def noticed() -> bool:
        return (await device(agent, ada))["noticed_at"] is not None

    await until(noticed)
    assert (await device(agent, bob))["noticed_at"] is None
    assert await problems(agent) == ["identity_notice"]
    await deliver(agent, relay, ada.frame("a notice alone holds nothing"))
    assert len(await texts(agent)) == 3
    await agent.devices.verify("ada", "d1", code(ada))
    assert not await noticed()
    assert await problems(agent) == []


async def test_notices_about_strangers_and_agents_are_events_only(
    agent: Agent, core: Core, relay: ScriptedRelay
) -> None:
    await relay.push(
        json.dumps({"type": "IDENTITY_CHANGED", "user_id": "nobody"}),
        json.dumps({"type": "IDENTITY_CHANGED", "agent_id": "other"}),
    )

    async def told() -> bool:
        return (await events(core)).count("identity.changed") == 2

    await until(told)
    assert await problems(agent) == []


# -- clients from before devices existed -----------------------------------------------------------------------


async def test_a_client_without_devices_is_held_and_trusted_like_a_device(agent: Agent, relay: ScriptedRelay) -> None:
    older = await Human.meet(relay, device=None)
    await deliver(agent, relay, older.frame("one"))
    row = await device(agent, older)
    assert (row["device_id"], row["state"], row["safety_code"]) == (None, "new", code(older))
    new = await reborn(relay, older)
    await deliver(agent, relay, new.frame("two"))
    assert await reasons(agent) == ["identity_changed"]
    assert "client without a device id" in str((await agent.status())["problems"])
    assert (await agent.devices.trust("ada", None, code(new)))["accepted"] == 1
    assert await texts(agent) == ["one", "two"]


async def test_a_device_of_an_older_client_keeps_its_session_and_what_was_decided_about_its_key(
    agent: Agent, core: Core, relay: ScriptedRelay
) -> None:
    older = await Human.meet(relay, device=None)
    await deliver(agent, relay, older.frame("one"))
    await agent.devices.verify("ada", None, code(older))
    session = core.session()
    await agent.send_message(session, text="reply", conversation_id="c1")
    older.read((await until(lambda: relay.messages))[0])  # what it writes now starts no session
    older.device = "d5"
    await deliver(agent, relay, older.frame("two"))
    assert await texts(agent) == ["one", "two"]
    assert (await device(agent, older))["state"] == "verified"
    await agent.send_message(session, text="again", conversation_id="c1")
    sent = (await until(lambda: relay.messages[1:]))[0]
    assert sent["to_device_id"] == "d5"
    assert older.read(sent).text == "again"


async def test_a_foreign_device_never_passes_by_the_older_name(agent: Agent, core: Core, relay: ScriptedRelay) -> None:
    older = await Human.meet(relay, device=None)
    known = await Human.meet(relay, conversation="c7", device="d7")
    await deliver(agent, relay, older.frame("one"), known.frame("two"))
    await agent.send_message(core.session(), text="reply", conversation_id="c1")
    older.read((await until(lambda: relay.messages))[0])  # what it writes now starts no session, and brings no key
    stranger = older.fork()
    stranger.device = "d8"
    stranger.start(relay)
    payload = json.loads(stranger.frame("x"))["payload_b64"]
    await deliver(agent, relay, older.envelope(payload))  # under the older client's name
    assert await reasons(agent) == ["identity_changed"]
    await agent.devices.refuse("ada", None, code(stranger))
    # A device that is known by another key cannot use the older client's session.
    await deliver(agent, relay, older.envelope(older.encrypt("three"), from_device_id="d7"))
    assert await texts(agent) == ["one", "two"]
    assert await reasons(agent) == ["identity_refused", "no_session"]
    # Its own session in that conversation is a new one.
    await deliver(agent, relay, known.elsewhere(relay, "c1").frame("four"))
    assert (await device(agent, known))["safety_code"] == code(known)
    assert (await texts(agent))[-1] == "four"


# -- groups ----------------------------------------------------------------------------------------------------


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "RETRY_FIRST", 0.02)


async def test_group_messages_of_a_held_device_wait_as_well_and_prove_no_device(
    agent: Agent, ada: Human, relay: ScriptedRelay
) -> None:
    key = new_group_key("c1")
    relay.group_keys["c1"] = [ada.key_envelope(key)]
    await deliver(agent, relay, ada.group_frame("one", key))
    await agent.devices.verify("ada", "d1", code(ada))
    request = (await agent.inbox())[0][0]
    assert request.as_dict()["sender"] == {
        "person": "ada",
        "device": "d1",
        "verified": False,
        "group": True,
        "authorized": True,
    }
    new = await reborn(relay, ada)
    await deliver(agent, relay, new.frame("two"), new.group_frame("three", key))
    assert await reasons(agent) == ["identity_changed"] * 2
    assert (await agent.devices.trust("ada", "d1", code(new)))["accepted"] == 2
    assert await texts(agent) == ["one", "two", "three"]


async def test_keys_from_a_device_that_was_held_are_fetched_when_it_is_trusted(
    agent: Agent, ada: Human, relay: ScriptedRelay, quick_retries: None
) -> None:
    await deliver(agent, relay, ada.frame("one"))
    new = await reborn(relay, ada)
    key = new_group_key("g1")
    relay.group_keys["g1"] = [new.key_envelope(key)]
    bob = await Human.meet(relay, user="bob", conversation="g1")
    await deliver(agent, relay, bob.group_frame("two", key))
    assert await reasons(agent) == ["group_key_missing"]
    assert (await device(agent, ada))["changed_code"] == code(new)
    await agent.devices.trust("ada", "d1", code(new))
    assert await texts(agent) == ["one", "two"]
    assert await reasons(agent) == []
