"""Inbound: what becomes a request, what goes to quarantine and why, and when it is acknowledged."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from aiohttp import WSMsgType

from pacerelle_protocol.groups import new_group_key
from pacerelle_protocol.history import HistoryKey
from pacerelled.agent import inbox as inbox_module
from pacerelled.agent.agent import Agent
from pacerelled.agent.wanted import Wanted
from pacerelled.store import quarantine, requests
from pacerelled.store.database import Tx

from .core import Core, full_disk, quarantined
from .human import Human, message_id
from .polling import until
from .scripted_relay import ScriptedRelay


@pytest.fixture
async def agent(core: Core, relay: ScriptedRelay) -> Agent:
    return await core.agent(relay.url)


@pytest.fixture
async def human(agent: Agent, relay: ScriptedRelay) -> Human:
    return await Human.meet(relay)


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "RETRY_FIRST", 0.02)


async def texts(agent: Agent) -> list[str]:
    found, _ = await agent.inbox(limit=500)
    return [request.text for request in found]


async def received(agent: Agent, *wanted: str) -> None:
    async def there() -> bool:
        return await texts(agent) == list(wanted)

    await until(there, f"the requests {wanted}")


async def test_a_message_becomes_a_request_and_is_acknowledged(
    agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    frame = human.frame("hello", reply_to_message_id="earlier")
    await relay.push(frame)
    await received(agent, "hello")
    request = (await agent.inbox())[0][0]
    assert request.sender == "ada"
    assert request.device_id == "d1"
    assert request.conversation_id == "c1"
    assert request.reply_to_message_id == "earlier"
    assert request.encrypted
    assert not request.group
    await until(lambda: relay.acked == [message_id(frame)])
    assert relay.of_type("ACK_READ") == [
        {"type": "ACK_READ", "to": "ada", "message_id": message_id(frame), "conversation_id": "c1"}
    ]


async def test_a_redelivery_is_acknowledged_again_and_is_no_second_request(
    agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    frame = human.frame("once")
    await relay.push(frame, frame)
    await relay.push(frame)
    await until(lambda: len(relay.acked) == 3)
    assert await texts(agent) == ["once"]
    assert await agent.quarantine.select() == []


async def test_another_message_under_a_known_id_is_quarantined(
    agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    first = human.frame("first", id="same")
    await relay.push(first, human.frame("second", id="same"), human.frame("third"))
    await received(agent, "first", "third")
    assert [(q["reason"], q["message_id"], q["sender"]) for q in await quarantined(agent, 1)] == [
        ("id_conflict", "same", "ada")
    ]


GARBAGE = [b"", b"nonsense", b"[]", b"{}", b'{"type":7}', b"\xff\xfe", b"[" * 100_000, b'{"type":"MSG"}', b"\x00"]


async def test_garbage_is_quarantined_and_the_connection_kept(agent: Agent, human: Human, relay: ScriptedRelay) -> None:
    await relay.push(human.frame("before"))
    for data in GARBAGE:
        await relay.push_raw(data)
    await relay.push_raw(b"\x80binary", kind=WSMsgType.BINARY)
    await relay.push(human.frame("after"))
    await received(agent, "before", "after")
    found = await quarantined(agent, len(GARBAGE) + 1)
    reasons = {q["reason"] for q in found}
    assert reasons == {"not_json", "not_object", "no_type", "not_utf8", "too_deep", "missing_field"}
    assert relay.connections == 1
    assert (await agent.status())["quarantined"] == len(GARBAGE) + 1
    assert len(relay.acked) == 2


BAD_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({"payload_b64": "%%%"}, "bad_base64"),
    ({"payload_b64": ""}, "bad_signal_message"),
    ({"payload_b64": base64.b64encode(b"\x01\x44garbage").decode()}, "bad_signal_message"),
    ({"payload_b64": base64.b64encode(b"\x02\x44garbage").decode()}, "undecryptable"),
    ({"payload_b64": base64.b64encode(b"\x07what").decode()}, "bad_signal_message"),
    ({"encrypted": False, "payload_b64": base64.b64encode(b"do evil").decode()}, "not_encrypted"),
    ({"encrypted": "true"}, "not_encrypted"),
]


@pytest.mark.parametrize(("changes", "reason"), BAD_MESSAGES, ids=[reason for _, reason in BAD_MESSAGES])
async def test_a_bad_payload_is_quarantined_acknowledged_and_costs_no_other(
    agent: Agent, human: Human, relay: ScriptedRelay, changes: dict[str, Any], reason: str
) -> None:
    bad = human.envelope(**{"payload_b64": human.encrypt("x")} | changes)
    await relay.push(human.frame("one"), bad, human.frame("two"))
    await received(agent, "one", "two")
    assert [q["reason"] for q in await quarantined(agent, 1)] == [reason]
    await until(lambda: message_id(bad) in relay.acked)
    await relay.push(bad)
    await until(lambda: relay.acked.count(message_id(bad)) == 2)
    assert [q["times"] for q in await quarantined(agent, 1)] == [2]
    assert relay.connections == 1


@pytest.mark.parametrize("field", ["id", "from", "conversation_id", "payload_b64"])
async def test_a_missing_field_is_named(agent: Agent, human: Human, relay: ScriptedRelay, field: str) -> None:
    await relay.push(human.envelope(**{"payload_b64": human.encrypt("x"), field: None}), human.frame("next"))
    await received(agent, "next")
    found = (await quarantined(agent, 1))[0]
    assert found["reason"] == "missing_field"
    assert field in found["detail"]


async def test_a_ciphertext_replayed_under_another_id_is_quarantined(
    agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    frame = json.loads(human.frame("once"))
    await relay.push(json.dumps(frame), json.dumps({**frame, "id": "another"}), human.frame("twice"))
    await received(agent, "once", "twice")
    assert (await quarantined(agent, 1))[0]["reason"] == "undecryptable"


async def test_what_was_decrypted_but_cannot_be_read_is_kept_and_the_session_goes_on(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    await relay.push(human.frame("one"), human.envelope(human.encrypt(b"\xff\xff")), human.frame("two"))
    await received(agent, "one", "two")
    assert (await quarantined(agent, 1))[0]["reason"] == "not_utf8"
    kept = await core.store.run(lambda tx: tx.one("SELECT plaintext FROM quarantine")[0])
    assert bytes(kept) == b"\xff\xff"  # the ratchet has moved on: it could not be decrypted again


async def test_unknown_types_are_kept_once_a_type_without_their_content(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    for number in range(5):
        await relay.push(json.dumps({"type": "TYPING", "number": number}))
    await relay.push(json.dumps({"type": "X" * 5000}), human.frame("after"))
    await received(agent, "after")
    found = await quarantined(agent, 2)
    assert [(q["reason"], q["times"], q["size"]) for q in found] == [("unknown_type", 5, 0), ("unknown_type", 1, 0)]
    assert len(found[1]["detail"]) < 200


async def test_a_changed_identity_is_reported_and_holds_the_device(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    await relay.push(human.frame("me"))
    await received(agent, "me")
    other = human.fork()
    other.use_bundle(relay.bundles[-1], relay.one_time[-1]["one_time_prekeys"].pop(0))
    await relay.push(json.dumps({"type": "IDENTITY_CHANGED", "user_id": "ada"}), other.frame("not me"))
    assert (await quarantined(agent, 1))[0]["reason"] == "identity_changed"
    await relay.push(human.frame("who can tell?"))
    assert (await quarantined(agent, 2))[1]["reason"] == "identity_changed"
    types = [e["type"] for e in (await core.hub.event_log.last(100, Wanted()))["events"]]
    assert "identity.changed" in types
    assert "message.quarantined" in types


async def test_the_device_less_name_is_no_way_around_a_failed_decryption(
    agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    """An older client's session exists; a foreign device must not get in by it."""
    older = await Human.meet(relay, user="bob", conversation="c2", device=None)
    await relay.push(older.frame("from an older client"))
    await received(agent, "from an older client")
    foreign = await Human.meet(relay, user="bob", conversation="c2", device="d9")
    await relay.push(foreign.frame("a new device has its own session"))
    await received(agent, "from an older client", "a new device has its own session")
    # The older client's device learns its name: the session stays, under the name it had.
    older.device = "d2"
    await relay.push(older.frame("now with a device"))
    await received(agent, "from an older client", "a new device has its own session", "now with a device")
    stranger = older.fork()
    stranger.device = "d3"
    stranger.use_bundle(relay.bundles[-1], relay.one_time[-1]["one_time_prekeys"].pop(0))
    payload = json.loads(stranger.frame("x"))["payload_b64"]
    await relay.push(stranger.envelope(payload, from_device_id="d2"))
    assert (await quarantined(agent, 1))[0]["reason"] == "identity_changed"


KEYS = [HistoryKey("k1", 1, b"1" * 32), HistoryKey("k2", 1, b"2" * 32)]


async def test_the_history_key_is_kept_and_another_one_refused(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    await relay.push(human.frame("one", history=KEYS[0]), human.frame("two", history=KEYS[1]))
    await relay.push(human.frame("three", history=KEYS[0]), human.frame("four"))
    await received(agent, "one", "three", "four")
    assert (await quarantined(agent, 1))[0]["reason"] == "history_key_changed"
    session = core.session()
    await agent.send_message(session, text="reply", conversation_id="c1")
    reply = (await until(lambda: relay.messages))[0]
    assert reply["history_record"]["key_id"] == "k1"
    assert human.read(reply).text == "reply"


async def test_an_agent_without_encryption_takes_plain_messages_only(core: Core, relay: ScriptedRelay) -> None:
    agent = await core.agent(relay.url, e2ee=False)
    human = Human("a1", "ada", "c1", None)
    plain = base64.b64encode(b"plain words").decode()
    await relay.push(human.envelope(plain, encrypted=False), human.envelope(plain))
    await received(agent, "plain words")
    assert (await quarantined(agent, 1))[0]["reason"] == "encrypted"
    assert not (await agent.inbox())[0][0].encrypted
    assert relay.bundles == []
    await agent.send_message(core.session(), text="plain reply", conversation_id="c1")
    reply = (await until(lambda: relay.messages))[0]
    assert base64.b64decode(reply["payload_b64"]) == b"plain reply"
    assert reply["encrypted"] is False


async def test_quarantine_is_bounded(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "LIMIT_ROWS", 10)
    for number in range(25):
        await relay.push(f"garbage {number}")
    await relay.push(human.frame("good"))
    await received(agent, "good")
    assert len(await quarantined(agent, 10)) == 10
    newest = await core.store.run(lambda tx: tx.one("SELECT frame FROM quarantine ORDER BY id DESC")[0])
    assert newest == "garbage 24"


async def test_a_full_disk_means_no_acknowledgement_and_a_later_success(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay, quick_retries: None
) -> None:
    await relay.push(human.frame("before"))
    await received(agent, "before")
    await full_disk(core.store)
    big = human.frame("x" * 30_000)
    await relay.push(big, human.frame("after"))

    async def reported() -> bool:
        return any(p["code"] == "store_unavailable" for p in (await agent.status())["problems"])

    await until(reported)
    assert message_id(big) not in relay.acked
    await full_disk(core.store, full=False)
    await received(agent, "before", "x" * 30_000, "after")
    await until(lambda: len(relay.acked) == 3)
    assert not await reported()
    # Signal's state in memory was taken back with each failed try: the session still works both ways.
    await agent.send_message(core.session(), text="reply", conversation_id="c1")
    assert human.read((await until(lambda: relay.messages))[0]).text == "reply"
    await core.restart()
    assert await texts(core.hub.agent("a1")) == ["before", "x" * 30_000, "after"]


async def test_an_error_of_ours_on_one_message_costs_no_other(
    agent: Agent, human: Human, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = requests.insert_request

    def failing(tx: Tx, agent_id: str, request: requests.NewRequest, digest: str) -> int:
        if request.text == "poison":
            raise ZeroDivisionError("poison")
        return real(tx, agent_id, request, digest)

    monkeypatch.setattr(requests, "insert_request", failing)
    await relay.push(human.frame("one"), human.frame("poison"), human.frame("two"))
    await received(agent, "one", "two")
    assert (await quarantined(agent, 1))[0]["reason"] == "internal_error"


async def test_an_error_outside_one_message_s_own_part_costs_no_other_either(
    agent: Agent, human: Human, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = requests.receipt_digest

    def failing(tx: Tx, agent_id: str, message_id: str) -> str | None:
        if message_id == "poison":
            raise ZeroDivisionError("secret words")
        return real(tx, agent_id, message_id)

    monkeypatch.setattr(requests, "receipt_digest", failing)
    poison = human.frame("good after all", id="poison")
    await relay.push(human.frame("one"), poison, human.frame("two"))
    await received(agent, "one", "two")
    await until(lambda: "ZeroDivisionError" in caplog.text)
    assert "poison" not in relay.acked
    assert "secret words" not in caplog.text
    monkeypatch.undo()
    await relay.push(poison)
    await received(agent, "one", "two", "good after all")


async def test_more_than_memory_should_hold_waits_in_the_socket(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox_module, "QUEUE_FRAMES", 4)
    monkeypatch.setattr(inbox_module, "QUEUE_BYTES", 20_000)
    monkeypatch.setattr(inbox_module, "BATCH_FRAMES", 3)
    wanted = [f"{number} {'y' * 9000}" for number in range(40)]
    await relay.push(*(human.frame(text) for text in wanted))
    await received(agent, *wanted)
    await until(lambda: len(relay.acked) == 40)


async def test_a_huge_frame_is_taken(agent: Agent, human: Human, relay: ScriptedRelay) -> None:
    text = "z" * (8 << 20)
    await relay.push(human.frame(text))
    await received(agent, text)


# -- groups ----------------------------------------------------------------------------------------------------


async def test_a_group_message_is_opened_with_the_fetched_key_and_the_reply_goes_to_the_group(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    key = new_group_key("c1")
    relay.group_keys["c1"] = [human.key_envelope(key)]
    await relay.push(human.group_frame("to all", key), human.group_frame("again", key))
    await received(agent, "to all", "again")
    request = (await agent.inbox())[0][0]
    assert request.group
    assert relay.group_key_calls == 1
    reply = await agent.send_message(core.session(), text="dear all", source_message_id=request.message_id)
    assert (reply.to, reply.device_id) == ("group:c1", None)
    sent = (await until(lambda: relay.messages))[0]
    assert sent["to"] == "group:c1"
    assert "to_device_id" not in sent


async def test_group_messages_keep_their_order_behind_one_that_waits_for_its_key(
    agent: Agent, human: Human, relay: ScriptedRelay, quick_retries: None
) -> None:
    old, new = new_group_key("c1"), new_group_key("c1", epoch=2)
    relay.group_keys["c1"] = [human.key_envelope(old)]
    await relay.push(human.group_frame("one", old))
    await received(agent, "one")
    relay.refuse["/agent/group-keys"] = 503
    await relay.push(human.group_frame("two", new), human.group_frame("three", old), human.group_frame("four", new))
    bob = await Human.meet(relay, user="bob", conversation="c2")
    await relay.push(bob.frame("somebody else need not wait"))
    await received(agent, "one", "somebody else need not wait")

    async def reported() -> bool:
        return any(p["code"] == "group_keys" for p in (await agent.status())["problems"])

    await until(reported)
    assert len(relay.acked) == 2
    relay.group_keys["c1"].append(human.key_envelope(new))
    del relay.refuse["/agent/group-keys"]
    await received(agent, "one", "somebody else need not wait", "two", "three", "four")
    assert not await reported()
    await until(lambda: len(relay.acked) == 5)


async def test_a_redelivered_group_message_is_parked_once(
    agent: Agent, human: Human, relay: ScriptedRelay, quick_retries: None
) -> None:
    key = new_group_key("c1")
    relay.refuse["/agent/group-keys"] = 500
    frame = human.group_frame("one", key)
    for _ in range(3):
        await relay.push(frame)
        await relay.drop()
    await relay.push(frame)
    relay.group_keys["c1"] = [human.key_envelope(key)]
    del relay.refuse["/agent/group-keys"]
    await received(agent, "one")
    await until(lambda: relay.acked)
    assert await agent.quarantine.select() == []


async def test_a_key_that_comes_a_moment_late_is_waited_for(
    agent: Agent, human: Human, relay: ScriptedRelay, quick_retries: None
) -> None:
    key = new_group_key("c1")
    await relay.push(human.group_frame("early", key))
    await until(lambda: relay.group_key_calls == 2)
    relay.group_keys["c1"] = [human.key_envelope(key)]
    await received(agent, "early")
    assert await agent.quarantine.select() == []


async def test_a_message_without_a_key_is_quarantined_and_taken_when_the_key_comes_after_all(
    agent: Agent, human: Human, relay: ScriptedRelay, quick_retries: None
) -> None:
    missing, other = new_group_key("c1"), new_group_key("c1", epoch=2)
    await relay.push(human.group_frame("no key yet", missing))
    assert (await quarantined(agent, 1))[0]["reason"] == "group_key_missing"
    await until(lambda: len(relay.acked) == 1)
    relay.group_keys["c1"] = [human.key_envelope(missing), human.key_envelope(other)]
    await relay.push(human.group_frame("later", other))
    await received(agent, "no key yet", "later")
    assert await agent.quarantine.select() == []


async def test_bad_keys_do_not_hide_good_ones(
    agent: Agent, human: Human, relay: ScriptedRelay, quick_retries: None
) -> None:
    key, named_wrongly = new_group_key("c1"), new_group_key("c1", epoch=3)
    relay.group_keys["c1"] = [
        "nonsense",
        {"conversation_id": "c1"},
        human.key_envelope(new_group_key("c1"), envelope_b64="%%%"),
        human.key_envelope(new_group_key("c1"), envelope_b64=base64.b64encode(b"\x02\x44xx").decode()),
        human.key_envelope(named_wrongly, epoch=4),
        human.key_envelope(key),
    ]
    await relay.push(human.group_frame("readable", key))
    await received(agent, "readable")
    relay.group_keys["c1"] = {"not": "a list"}
    await relay.push(human.group_frame("unreadable", named_wrongly), human.frame("alone"))
    await received(agent, "readable", "alone")
    assert (await quarantined(agent, 1))[0]["reason"] == "group_key_missing"


async def test_a_group_message_that_names_another_group_is_quarantined(
    agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    key = new_group_key("c9")
    await relay.push(human.group_frame("x", key, to="group:c1"), human.frame("alone"))
    await received(agent, "alone")
    assert (await quarantined(agent, 1))[0]["reason"] == "group_mismatch"


async def test_stopping_while_messages_come_in_loses_none(core: Core, relay: ScriptedRelay) -> None:
    await core.agent(relay.url)
    human = await Human.meet(relay)
    frames = [human.frame(str(number)) for number in range(60)]
    await relay.push(*frames)
    await until(lambda: relay.acked)
    await core.restart()  # without a token: nothing comes in
    agent = core.hub.agent("a1")
    before = len(await texts(agent))
    assert before >= 1
    assert await agent.quarantine.select() == []
    agent.set_token("token")
    await relay.push(*frames)  # redelivered, as a relay does what was not acknowledged
    await received(agent, *map(str, range(60)))
    assert await agent.quarantine.select() == []
