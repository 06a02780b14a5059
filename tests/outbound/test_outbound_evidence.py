"""What a person's answer proves about replies that nobody could be sure of."""

from __future__ import annotations

from typing import Any

import pytest

from pacerelle_protocol.groups import new_group_key
from tests.daemon.polling import until
from tests.outbound.scene import WIDGET, Scene, response, update


async def test_a_quote_settles_an_uncertain_reply_for_good(scene: Scene) -> None:
    reply = await scene.send()
    await scene.make_uncertain(reply)
    (unsure,) = (await scene.agent.status())["uncertain_sends"]
    assert f"retryMessageId {reply.message_id}" in unsure["what_to_do"]
    assert f"outbox drop {reply.message_id}" in unsure["what_to_do"]
    assert unsure["attempts"] == 1
    await scene.deliver(scene.ada.frame("thanks", id="m2", reply_to_message_id=reply.message_id))
    settled = await scene.agent.wait_for_reply(reply.message_id, timeout=0)
    assert (settled.state, settled.reason) == ("submitted", "confirmed by their answer")
    (event,) = await scene.events("reply.submitted")
    assert (event["message_id"], event["by_message_id"]) == (reply.message_id, "m2")
    assert (await scene.agent.status())["uncertain_sends"] == []
    assert (await scene.agent.retry_reply(reply.message_id)).repeated
    await scene.restart()
    assert await scene.state(reply) == "submitted"
    assert len(scene.relay.messages) == 1


@pytest.mark.parametrize("how", ["response", "update"])
async def test_an_answer_to_a_widget_settles_it(scene: Scene, how: str) -> None:
    reply = await scene.show()
    await scene.make_uncertain(reply)
    answer = response(scene.ada, "w1") if how == "response" else update(scene.ada, "w1", {"spec": {"title": "Sure?"}})
    await scene.deliver(answer)
    assert await scene.state(reply) == "submitted"


async def test_of_several_widgets_with_one_id_only_a_quote_tells_which_arrived(scene: Scene) -> None:
    first, second = await scene.show(), await scene.show()
    await scene.make_uncertain(first, second)
    await scene.deliver(response(scene.ada, "w1", id="m2"))
    assert [await scene.state(r) for r in (first, second)] == ["uncertain", "uncertain"]
    widget = (await scene.request("m2")).widget
    assert widget is not None
    assert widget["message_id"] == second.message_id  # the newest is assumed
    await scene.deliver(response(scene.ada, "w1", id="m3", reply_to_message_id=first.message_id))
    assert [await scene.state(r) for r in (first, second)] == ["submitted", "uncertain"]
    widget = (await scene.request("m3")).widget
    assert widget is not None
    assert widget["message_id"] == first.message_id


async def test_an_answer_that_comes_before_the_proof_outlives_the_connection(scene: Scene) -> None:
    scene.relay.answers_pings = False
    reply = await scene.send()
    await until(lambda: scene.relay.messages)
    await scene.deliver(scene.ada.frame("thanks", reply_to_message_id=reply.message_id))
    assert await scene.state(reply) == "submitted"
    await scene.relay.drop()
    scene.relay.answers_pings = True
    await scene.submitted(await scene.send("next"))
    assert await scene.state(reply) == "submitted"
    assert await scene.events("reply.uncertain") == []


async def test_a_retry_that_is_still_queued_is_not_sent_after_the_answer_came(scene: Scene) -> None:
    reply = await scene.send()
    await scene.make_uncertain(reply)
    scene.relay.answers_pings = False
    held_up = await scene.send("this waits for its proof, and the retry behind it")
    await until(lambda: len(scene.relay.messages) == 2)
    assert (await scene.agent.retry_reply(reply.message_id)).state == "queued"
    waiting = scene.agent.wait_for_reply(reply.message_id, timeout=30)
    await scene.deliver(scene.ada.frame("thanks", reply_to_message_id=reply.message_id))
    assert (await waiting).state == "submitted"
    scene.relay.answers_pings = True
    await scene.relay.drop()
    await scene.submitted(await scene.send("next"))
    assert [m["id"] for m in scene.relay.messages].count(reply.message_id) == 1
    assert await scene.state(held_up) == "uncertain"


async def test_strangers_prove_nothing(scene: Scene) -> None:
    bob = await scene.meet("bob", "c1")
    carol = await scene.meet("carol", "c2")
    reply, widget = await scene.send(), await scene.show()
    await scene.make_uncertain(reply, widget)
    for someone in (bob, carol):
        await scene.deliver(
            someone.frame("mine?", reply_to_message_id=reply.message_id),
            response(someone, "w1", id=f"response of {someone.user}", reply_to_message_id=widget.message_id),
        )
        assert (await scene.request(f"response of {someone.user}")).widget is None
    await scene.deliver(
        scene.ada.frame("hm", reply_to_message_id="nothing of ours"), response(scene.ada, "w9", id="m9")
    )
    assert (await scene.request("m9")).widget is None
    assert [await scene.state(r) for r in (reply, widget)] == ["uncertain", "uncertain"]


async def test_what_never_left_cannot_be_answered(scene: Scene) -> None:
    scene.relay.answers_pings = False
    await scene.send("this waits for its proof")
    await until(lambda: scene.relay.messages)
    reply, widget = await scene.send("behind it"), await scene.show()
    await scene.deliver(
        scene.ada.frame("a guess", reply_to_message_id=reply.message_id), response(scene.ada, "w1", id="m2")
    )
    assert [await scene.state(r) for r in (reply, widget)] == ["queued", "queued"]
    assert (await scene.request("m2")).widget is None


async def test_a_member_s_answer_settles_what_went_to_a_group(scene: Scene) -> None:
    key = new_group_key("g1")
    people = [await scene.meet(user, "g1") for user in ("bob", "carol")]
    scene.relay.group_keys["g1"] = [people[0].key_envelope(key)]
    await scene.deliver(people[0].group_frame("to all", key, id="m1"))
    widget: dict[str, Any] = {**WIDGET, "response_mode": "collective"}
    shown, reply = await scene.show(widget, "m1"), await scene.send("hello all", "m1")
    await scene.make_uncertain(shown, reply)
    for human in people:
        await scene.deliver(response(human, "w1", human.user, group=key, id=f"response of {human.user}"))
        linked = await scene.request(f"response of {human.user}")
        assert linked.widget is not None
        assert (linked.sender, linked.widget["message_id"]) == (human.user, shown.message_id)
    assert [await scene.state(r) for r in (shown, reply)] == ["submitted", "uncertain"]
    await scene.deliver(people[1].group_frame("hi", key, reply_to_message_id=reply.message_id))
    assert await scene.state(reply) == "submitted"
