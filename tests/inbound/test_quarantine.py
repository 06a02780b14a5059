"""Quarantine: looked at, tried again, dropped; bounded; the same after restarts."""

from __future__ import annotations

import base64
import json

import pytest

from pacerelle_protocol.groups import new_group_key
from pacerelled.agent import inbox as inbox_module
from pacerelled.agent.agent import Agent
from pacerelled.errors import InvalidArgument, UnknownMessage
from pacerelled.store import quarantine, requests
from pacerelled.store.database import Tx
from tests.daemon.core import Core, quarantined
from tests.daemon.human import Human, message_id
from tests.daemon.polling import until
from tests.daemon.scripted_relay import ScriptedRelay

from .seen import deliver, events, reasons, texts


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Requests whose text is "poison" cannot be stored, until `undo`."""
    real = requests.insert_request

    def insert(tx: Tx, agent_id: str, request: requests.NewRequest, digest: str) -> int:
        if request.text == "poison":
            raise ZeroDivisionError
        return real(tx, agent_id, request, digest)

    monkeypatch.setattr(requests, "insert_request", insert)
    return monkeypatch


async def test_it_is_shown_with_reason_and_routing_and_with_text_only_when_asked_for(
    agent: Agent, ada: Human, relay: ScriptedRelay, failing: pytest.MonkeyPatch
) -> None:
    frame = ada.frame("poison")
    await deliver(agent, relay, frame, ada.envelope(ada.encrypt(b"\xff words")))
    first, second = await agent.quarantine.select()
    assert first["decrypted"]
    shown = await agent.quarantine.show(first["id"])
    assert shown == first
    assert (shown["reason"], shown["sender"], shown["device_id"]) == ("internal_error", "ada", "d1")
    assert (shown["conversation_id"], shown["message_id"], shown["times"]) == ("c1", message_id(frame), 1)
    assert "poison" not in str(shown)
    assert (await agent.quarantine.show(first["id"], text=True))["text"] == "poison"
    assert (await agent.quarantine.show(second["id"], text=True))["text"] == "\ufffd words"
    await relay.push("garbage")
    garbage = (await quarantined(agent, 3))[2]
    assert not garbage["decrypted"]
    assert (await agent.quarantine.show(garbage["id"], text=True))["text"] is None
    assert [row["id"] for row in await agent.quarantine.select(reason="not_utf8")] == [second["id"]]
    with pytest.raises(UnknownMessage, match="999"):
        await agent.quarantine.show(999)


async def test_what_was_decrypted_is_tried_again_from_its_plaintext_also_after_a_restart(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay, failing: pytest.MonkeyPatch
) -> None:
    poison = ada.frame("poison")
    await deliver(agent, relay, ada.frame("one"), poison, ada.frame("two"))
    number = (await agent.quarantine.select())[0]["id"]
    assert await agent.quarantine.retry(number=number) == {"accepted": 0, "left": 1}
    assert await reasons(agent) == ["internal_error"]
    failing.undo()
    await core.restart()
    agent = core.hub.agent("a1")
    assert await agent.quarantine.retry(number=number) == {"accepted": 1, "left": 0}
    assert await texts(agent) == ["one", "two", "poison"]
    with pytest.raises(UnknownMessage):
        await agent.quarantine.retry(number=number)
    assert await agent.quarantine.retry() == {"accepted": 0, "left": 0}
    agent.set_token("token")
    relay.received.clear()
    await deliver(agent, relay, poison)  # the relay has not heard of it
    assert await texts(agent) == ["one", "two", "poison"]
    assert await reasons(agent) == []
    await core.restart()
    assert await texts(core.hub.agent("a1")) == ["one", "two", "poison"]


async def test_a_retry_that_a_crash_interrupts_has_happened_wholly_or_not_at_all(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay, failing: pytest.MonkeyPatch
) -> None:
    await deliver(agent, relay, ada.frame("poison"), ada.frame("poison"))
    failing.undo()
    real = quarantine.remove
    removed: list[int] = []

    def dying(tx: Tx, number: int) -> None:
        real(tx, number)
        removed.append(number)
        if len(removed) == 2:
            raise ZeroDivisionError

    failing.setattr(quarantine, "remove", dying)
    with pytest.raises(ZeroDivisionError):
        await agent.quarantine.retry()
    failing.undo()
    assert (len(removed), await texts(agent), len(await reasons(agent))) == (2, [], 2)
    assert await agent.quarantine.retry() == {"accepted": 2, "left": 0}
    assert await texts(agent) == ["poison", "poison"]
    await deliver(agent, relay, ada.frame("the session goes on"))
    assert (await texts(agent))[-1] == "the session goes on"


async def test_all_of_a_reason_are_tried_again_and_others_not(
    agent: Agent, ada: Human, relay: ScriptedRelay, failing: pytest.MonkeyPatch
) -> None:
    await deliver(agent, relay, *(ada.frame("poison") for _ in range(3)), ada.envelope("%%%"))
    failing.undo()
    assert await agent.quarantine.retry(reason="internal_error") == {"accepted": 3, "left": 0}
    assert await reasons(agent) == ["bad_base64"]
    assert await agent.quarantine.retry() == {"accepted": 0, "left": 1}
    assert [row["times"] for row in await agent.quarantine.select()] == [1]


async def test_what_cannot_become_a_request_stays_as_it_is(agent: Agent, ada: Human, relay: ScriptedRelay) -> None:
    await relay.push("garbage", json.dumps({"type": "TYPING"}))
    first = ada.frame("first", id="same")
    await deliver(agent, relay, first)
    await relay.push(ada.frame("second", id="same"))
    plain = base64.b64encode(b"not encrypted").decode()
    await deliver(agent, relay, ada.envelope(plain, encrypted=False))
    before = await quarantined(agent, 4)
    assert [row["reason"] for row in before] == ["not_json", "unknown_type", "id_conflict", "not_encrypted"]
    assert await agent.quarantine.retry() == {"accepted": 0, "left": 4}
    assert await agent.quarantine.select() == before
    assert await texts(agent) == ["first"]


async def test_what_is_dropped_is_not_kept_again_when_the_relay_repeats_it(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay, failing: pytest.MonkeyPatch
) -> None:
    frames = [ada.frame("poison"), ada.envelope("%%%"), ada.frame("poison")]
    await deliver(agent, relay, *frames)
    with pytest.raises(InvalidArgument, match="what to drop"):
        await agent.quarantine.drop()
    with pytest.raises(UnknownMessage):
        await agent.quarantine.drop(number=999)
    number = (await agent.quarantine.select())[0]["id"]
    assert await agent.quarantine.drop(number=number) == {"dropped": 1}
    assert await agent.quarantine.drop(reason="bad_base64") == {"dropped": 1}
    assert await agent.quarantine.drop(sender="ada") == {"dropped": 1}
    assert await agent.quarantine.drop(sender="ada") == {"dropped": 0}
    await core.restart()
    agent = core.hub.agent("a1")
    agent.set_token("token")
    relay.received.clear()
    await deliver(agent, relay, *frames)
    assert await reasons(agent) == []
    assert await texts(agent) == []
    assert (await events(core)).count("quarantine.dropped") == 3


async def test_a_dropped_message_leaves_the_one_with_the_same_id_alone(
    agent: Agent, ada: Human, relay: ScriptedRelay
) -> None:
    first = ada.frame("first", id="same")
    await deliver(agent, relay, first)
    await relay.push(ada.frame("second", id="same"))
    await quarantined(agent, 1)
    await agent.quarantine.drop(reason="id_conflict")
    relay.received.clear()
    await deliver(agent, relay, first)
    assert await texts(agent) == ["first"]
    assert await reasons(agent) == []


async def test_it_is_bounded_by_bytes_too_and_says_when_the_oldest_give_way(
    agent: Agent, core: Core, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "LIMIT_BYTES", 10_000)
    await relay.push("small", *(f"{number} {'x' * 3000}" for number in range(5)))

    async def newest() -> bool:
        rows = await agent.quarantine.select()
        return bool(rows) and rows[-1]["size"] == 3002 and len(rows) == 3 and rows[-1]["id"] == 6

    await until(newest)
    assert sum(row["size"] for row in await agent.quarantine.select()) <= 10_000
    assert "quarantine.overflowed" in await events(core)
    await relay.push("y" * 20_000)  # larger than all of it: what came last is kept

    async def alone() -> bool:
        return [row["size"] for row in await agent.quarantine.select()] == [20_000]

    await until(alone)
    assert (await agent.status())["quarantine_reasons"] == {"not_json": 1}


async def test_group_messages_without_a_key_are_tried_again_with_the_key_fetched_anew(
    agent: Agent, ada: Human, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "RETRY_FIRST", 0.02)
    key = new_group_key("c1")
    await deliver(agent, relay, ada.group_frame("one", key), ada.group_frame("two", key))
    assert await reasons(agent) == ["group_key_missing"] * 2
    relay.refuse["/agent/group-keys"] = 503
    assert await agent.quarantine.retry() == {"accepted": 0, "left": 2}
    del relay.refuse["/agent/group-keys"]
    relay.group_keys["c1"] = [ada.key_envelope(key)]
    assert await agent.quarantine.retry(reason="group_key_missing") == {"accepted": 2, "left": 0}
    assert await texts(agent) == ["one", "two"]


async def test_the_same_words_twice_without_encryption_are_two_messages(core: Core, relay: ScriptedRelay) -> None:
    agent = await core.agent(relay.url, e2ee=False)
    await agent.allow_list.add("bob")
    human = Human("a1", "ada", "c1", None)
    plain = base64.b64encode(b"hello").decode()
    await deliver(agent, relay, *(human.envelope(plain, encrypted=False) for _ in range(2)))
    assert await reasons(agent) == ["not_allowed"] * 2
    await agent.allow_list.off()
    assert await texts(agent) == ["hello", "hello"]
