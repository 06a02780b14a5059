"""Groups: keys that are bad, late, rotated, or another group's. History: a sealed copy of each reply, under one key."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pacerelle_protocol.errors import DecryptError
from pacerelle_protocol.groups import GroupKey, new_group_key, open_group, seal_group
from pacerelle_protocol.history import HistoryKey, open_record, seal_record
from pacerelle_protocol.payload import Text, encode_delivery, encode_text, open_plaintext
from pacerelled.agent import inbox as inbox_module
from pacerelled.agent.agent import Agent
from pacerelled.agent.model import Request
from pacerelled.errors import NotPossible
from tests.daemon.core import Core, pieces, quarantined
from tests.daemon.human import Human
from tests.daemon.polling import until
from tests.daemon.scripted_relay import ScriptedRelay

HISTORY = HistoryKey("k1", 1, b"1" * 32)
OTHER = HistoryKey("k2", 1, b"2" * 32)


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox_module, "RETRY_FIRST", 0.02)
    monkeypatch.setattr(inbox_module, "RETRY_MAX", 0.1)
    monkeypatch.setattr(inbox_module, "KEY_TRIES", 1_000_000)


@pytest.fixture
async def agent(core: Core, relay: ScriptedRelay) -> Agent:
    return await core.agent(relay.url)


@pytest.fixture
async def human(agent: Agent, relay: ScriptedRelay) -> Human:
    return await Human.meet(relay)


async def received(agent: Agent, *wanted: str) -> list[Request]:
    async def there() -> list[Request]:
        found, _ = await agent.inbox(limit=100)
        return found if sorted(r.text for r in found) == sorted(wanted) else []

    found: list[Request] = await until(there, f"the requests {wanted}")
    return found


async def answer(agent: Agent, core: Core, relay: ScriptedRelay, request: Request, text: str) -> dict[str, Any]:
    """The reply's envelope as the relay gets it."""
    reply = await agent.send_message(core.session(), text=text, source_message_id=request.message_id)
    assert (await agent.wait_for_reply(reply.message_id, timeout=30)).state == "submitted"
    return next(frame for frame in relay.messages if frame["id"] == reply.message_id)


def text_of(frame: dict[str, Any], key: GroupKey) -> str:
    content = open_plaintext(open_group(frame["payload_b64"], key)).content
    assert isinstance(content, Text)
    return content.text


def bad_envelopes(human: Human) -> list[Any]:
    """Each is wrong in another way."""
    some = new_group_key("c1")
    good = human.key_envelope(some)
    elsewhere = human.key_envelope(new_group_key("c9"), conversation_id="c1")  # its content names another group
    return [
        None,
        [],
        "text",
        {},
        {**good, "conversation_id": "c9"},
        {**good, "epoch": 0},
        {**good, "epoch": "1"},
        {**good, "key_id": ""},
        {**good, "key_id": None},
        {**good, "sender_id": "a:b"},
        {**good, "sender_device_id": 5},
        {**good, "envelope_b64": "%%%"},
        {**good, "envelope_b64": ""},
        {**good, "envelope_b64": human.encrypt("no key at all")},
        {**good, "envelope_b64": human.encrypt('{"type": "pacerelle.group.sender_key", "v": 1}')},
        {**good, "epoch": 7},  # not the epoch that the key inside has
        {**good, "sender_device_id": "d9"},  # a device without a session
        elsewhere,
    ]


async def test_one_bad_key_envelope_never_hides_the_good_ones(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    bad = bad_envelopes(human)
    keys = [new_group_key("c1", epoch) for epoch in range(1, len(bad) + 1)]
    listed: list[Any] = []
    for each, key in zip(bad, keys, strict=True):
        listed += [each, human.key_envelope(key)]
    relay.group_keys["c1"] = listed
    await relay.push(*(human.group_frame(f"under {key.epoch}", key) for key in keys))
    found = await received(agent, *(f"under {key.epoch}" for key in keys))
    assert all(request.group for request in found)
    assert await agent.quarantine.select() == []
    frame = await answer(agent, core, relay, found[0], "to all")
    assert text_of(frame, keys[-1]) == "to all"


async def test_a_reply_to_a_group_message_goes_to_the_group_also_after_a_private_one(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    key = new_group_key("c1")
    relay.group_keys["c1"] = [human.key_envelope(key)]
    await relay.push(human.group_frame("in the group", key), human.frame("in private"))
    found = {request.text: request for request in await received(agent, "in the group", "in private")}
    private = await answer(agent, core, relay, found["in private"], "between us")
    assert (private["to"], private["to_device_id"]) == ("ada", "d1")
    assert human.read(private).text == "between us"
    public = await answer(agent, core, relay, found["in the group"], "for all")
    assert (public["to"], public.get("to_device_id")) == ("group:c1", None)
    assert public["reply_to_message_id"] == found["in the group"].message_id
    assert text_of(public, key) == "for all"


async def test_a_late_key_lets_all_through_in_order_once(agent: Agent, human: Human, relay: ScriptedRelay) -> None:
    key = new_group_key("c1")
    frames = [human.group_frame(str(n), key) for n in range(5)]
    await relay.push(*frames)
    await until(lambda: relay.group_key_calls >= 3)
    assert relay.acked == []
    await relay.push(*frames)  # as after a reconnection
    relay.group_keys["c1"] = [human.key_envelope(key)]
    assert [request.text for request in await received(agent, *"01234")] == list("01234")
    await until(lambda: set(relay.acked) == {json.loads(frame)["id"] for frame in frames})
    assert await agent.quarantine.select() == []


async def test_a_late_key_is_waited_for_over_a_restart(core: Core, human: Human, relay: ScriptedRelay) -> None:
    key = new_group_key("c1")
    frame = human.group_frame("early", key)
    await relay.push(frame)
    await until(lambda: relay.group_key_calls >= 2)
    await core.restart()
    relay.group_keys["c1"] = [human.key_envelope(key)]
    agent = core.hub.agent(None)
    agent.set_token("token")
    await relay.push(frame)  # it was not acknowledged, so the relay sends it again
    await received(agent, "early")


async def test_replies_use_the_highest_epoch_and_older_ones_are_still_read(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    first, second, third = (new_group_key("c1", epoch) for epoch in (1, 2, 3))
    relay.group_keys["c1"] = [human.key_envelope(first)]
    await relay.push(human.group_frame("one", first))
    (request,) = await received(agent, "one")
    assert text_of(await answer(agent, core, relay, request, "a"), first) == "a"
    relay.group_keys["c1"] = [human.key_envelope(third), human.key_envelope(second)]  # not in order
    await relay.push(human.group_frame("two", third), human.group_frame("late one", first))
    await received(agent, "one", "two", "late one")
    frame = await answer(agent, core, relay, request, "b")
    assert text_of(frame, third) == "b"
    with pytest.raises(DecryptError):
        open_group(frame["payload_b64"], first)
    await core.restart()
    agent = core.hub.agent(None)
    agent.set_token("token")
    assert text_of(await answer(agent, core, relay, request, "c"), third) == "c"


async def test_two_groups_do_not_wait_for_each_other(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    """Nor do private messages, while a group's key is missing."""
    other = await Human.meet(relay, user="bob", conversation="c2", device="d2")
    keys = {"c1": new_group_key("c1"), "c2": new_group_key("c2")}
    relay.group_keys["c2"] = [other.key_envelope(keys["c2"])]
    await relay.push(human.group_frame("without a key", keys["c1"]), other.group_frame("with a key", keys["c2"]))
    await relay.push(human.frame("private"), other.group_frame("more", keys["c2"]))
    found = {request.text: request for request in await received(agent, "with a key", "private", "more")}
    frame = await answer(agent, core, relay, found["with a key"], "to the second")
    assert (frame["to"], text_of(frame, keys["c2"])) == ("group:c2", "to the second")
    relay.group_keys["c1"] = [human.key_envelope(keys["c1"])]
    found = {r.text: r for r in await received(agent, "with a key", "private", "more", "without a key")}
    frame = await answer(agent, core, relay, found["without a key"], "to the first")
    assert (frame["to"], text_of(frame, keys["c1"])) == ("group:c1", "to the first")
    with pytest.raises(DecryptError):
        open_group(frame["payload_b64"], keys["c2"])


async def test_a_key_of_one_group_opens_nothing_in_another(agent: Agent, human: Human, relay: ScriptedRelay) -> None:
    key = new_group_key("c2")
    forged = GroupKey("c1", key.key_id, key.epoch, key.raw)
    relay.group_keys["c1"] = [human.key_envelope(key, conversation_id="c1")]
    relay.group_keys["c2"] = [human.key_envelope(key)]
    await relay.push(human.group_frame("smuggled", forged), human.frame("private"))
    await received(agent, "private")
    await until(lambda: relay.group_key_calls >= 3)
    assert [request.text for request in (await agent.inbox())[0]] == ["private"]


async def test_a_damaged_group_message_is_quarantined_and_the_next_is_read(
    agent: Agent, human: Human, relay: ScriptedRelay
) -> None:
    key = new_group_key("c1")
    relay.group_keys["c1"] = [human.key_envelope(key)]
    wrong = GroupKey(key.conversation_id, key.key_id, key.epoch, bytes(32))
    await relay.push(human.group_frame("forged", wrong), human.group_frame("good", key))
    await received(agent, "good")
    assert (await quarantined(agent, 1))[0]["reason"] == "not_authentic"


async def test_nobody_writes_to_a_group_whose_key_is_unknown(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    await relay.push(human.frame("private"))
    await received(agent, "private")
    with pytest.raises(NotPossible, match="no key"):
        await agent.send_message(core.session(), text="x", conversation_id="c1", to="group:c1")
    assert relay.messages == []


# -- history ---------------------------------------------------------------------------------------------------


def archived(frame: dict[str, Any], key: HistoryKey, **changes: str) -> str:
    """What whoever has the conversation's key reads in the archive."""
    context: dict[str, Any] = {
        "conversation_id": frame["conversation_id"],
        "message_id": frame["id"],
        "sender_id": "a1",
        "sender_type": "agent",
    }
    return open_record(frame["history_record"], key, **context | changes)


async def test_each_reply_has_a_record_once_the_conversation_has_a_key(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    await relay.push(human.frame("before"))
    (request,) = await received(agent, "before")
    assert "history_record" not in await answer(agent, core, relay, request, "unrecorded")
    await relay.push(human.frame("with the key", history=HISTORY))
    await received(agent, "before", "with the key")
    frame = await answer(agent, core, relay, request, "recorded")
    assert archived(frame, HISTORY) == "recorded"
    assert human.read(relay.messages[0]).text == "unrecorded"
    assert human.read(frame).text == "recorded"
    for changed in (
        {"conversation_id": "c2"},
        {"message_id": "other"},
        {"sender_id": "a2"},
        {"sender_type": "human"},
    ):
        with pytest.raises(DecryptError):
            archived(frame, HISTORY, **changed)
    with pytest.raises(DecryptError):
        archived(frame, OTHER)


async def test_widgets_and_files_are_recorded_too(agent: Agent, core: Core, human: Human, relay: ScriptedRelay) -> None:
    await relay.push(human.frame("hello", history=HISTORY))
    (request,) = await received(agent, "hello")
    session = core.session()
    widget = {"type": "widget.standard", "v": 1, "id": "w", "kind": "confirm", "spec": {"title": "Go?"}}
    await agent.send_widget(session, widget=widget, source_message_id=request.message_id)
    await agent.send_file(
        session, name="a.txt", data=pieces(b"x"), size=1, text="see", source_message_id=request.message_id
    )
    await until(lambda: len(relay.messages) == 2)
    assert json.loads(archived(relay.messages[0], HISTORY))["id"] == "w"
    assert json.loads(archived(relay.messages[1], HISTORY))["attachments"][0]["name"] == "a.txt"


async def test_a_changed_key_is_quarantined_and_the_first_one_stays(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    same_id = HistoryKey(HISTORY.key_id, 1, b"3" * 32)
    await relay.push(human.frame("one", history=HISTORY), human.frame("other id", history=OTHER))
    await relay.push(human.frame("same id", history=same_id), human.frame("two", history=HISTORY))
    found = await received(agent, "one", "two")
    held = await quarantined(agent, 2)
    assert {row["reason"] for row in held} == {"history_key_changed"}
    assert archived(await answer(agent, core, relay, found[0], "reply"), HISTORY) == "reply"
    await core.restart()
    agent = core.hub.agent(None)
    agent.set_token("token")
    assert archived(await answer(agent, core, relay, found[0], "later"), HISTORY) == "later"


async def test_every_conversation_has_its_own_key(agent: Agent, core: Core, human: Human, relay: ScriptedRelay) -> None:
    other = await Human.meet(relay, user="bob", conversation="c2", device="d2")
    await relay.push(human.frame("one", history=HISTORY), other.frame("two", history=OTHER))
    found = {request.text: request for request in await received(agent, "one", "two")}
    assert archived(await answer(agent, core, relay, found["one"], "a"), HISTORY) == "a"
    assert archived(await answer(agent, core, relay, found["two"], "b"), OTHER) == "b"


async def test_a_groups_key_comes_in_a_group_message_and_its_replies_are_recorded(
    agent: Agent, core: Core, human: Human, relay: ScriptedRelay
) -> None:
    key = new_group_key("c1")
    relay.group_keys["c1"] = [human.key_envelope(key)]
    body = encode_delivery(encode_text("hello all"), HISTORY)
    await relay.push(human.envelope(seal_group(body.encode(), key), to="group:c1"))
    (request,) = await received(agent, "hello all")
    assert archived(await answer(agent, core, relay, request, "to all"), HISTORY) == "to all"


@pytest.mark.parametrize(
    "record",
    [
        seal_record("hello", HISTORY, conversation_id="c1", message_id="m", sender_id="ada", sender_type="human"),
        {"key_id": "k1", "epoch": 1, "iv_b64": "%", "ciphertext_b64": 5, "aad_version": 9},
        {},
    ],
    ids=["sealed", "malformed", "empty"],
)
async def test_a_persons_own_record_is_the_archives_and_disturbs_nothing(
    agent: Agent, human: Human, relay: ScriptedRelay, record: dict[str, Any]
) -> None:
    await relay.push(human.frame("hello", history=HISTORY, history_record=record), human.frame("next"))
    await received(agent, "hello", "next")
    assert await agent.quarantine.select() == []
