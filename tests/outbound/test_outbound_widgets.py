"""Widgets: changed after they were sent, out of time, in groups; and the requests that answer them."""

from __future__ import annotations

from typing import Any

import pytest

from pacerelle_protocol.groups import new_group_key
from pacerelle_protocol.payload import Widget, WidgetUpdate
from pacerelled.agent.model import Reply
from pacerelled.errors import InvalidArgument, NotPossible, UnknownMessage
from tests.outbound.scene import WIDGET, Scene, response, update

PROGRESS: dict[str, Any] = {
    "type": "widget.standard", "v": 1, "id": "p1", "kind": "progress",
    "spec": {"title": "Import", "value": 0, "max": 10, "cancellable": True},
}  # fmt: skip
PAST, FUTURE = "2001-01-01T00:00:00Z", "2099-01-01T00:00:00Z"


async def change(scene: Scene, reply: Reply, **patch: Any) -> Reply:
    return await scene.agent.update_widget(scene.session, message_id=reply.message_id, **patch)


async def test_a_change_follows_the_widget_to_where_it_was_shown(scene: Scene) -> None:
    bob = await scene.meet("bob", "c1")  # wrote last, but is not meant
    shown = await scene.show(PROGRESS)
    first = await change(scene, shown, spec={"value": 6})
    second = await change(scene, shown, spec={"title": "Nearly done"}, expires_at=FUTURE)
    assert (first.kind, first.widget_id, first.to, first.device_id) == ("widget_update", "p1", "ada", "d1")
    assert (second.text, second.source_message_id) == ("Nearly done", scene.question)
    await scene.submitted(shown, first, second)
    said = [scene.ada.read(m) for m in scene.relay.messages if m["to"] != bob.user]
    assert isinstance(said[0], Widget)
    assert isinstance(said[1], WidgetUpdate)
    assert [(u.ref, u.patch) for u in said[1:]] == [
        ("p1", {"spec": {"value": 6}}),
        ("p1", {"spec": {"title": "Nearly done"}, "expires_at": FUTURE}),
    ]
    assert {m["reply_to_message_id"] for m in scene.relay.messages[1:]} == {shown.message_id}


@pytest.mark.parametrize(
    ("patch", "argument", "says"),
    [
        ({"spec": {"value": 11}}, "spec", "spec.value: must not be more than spec.max"),
        ({"spec": {"values": 5}}, "spec", "did you mean value?"),
        ({"spec": {"value": None}}, "spec", "spec.value: is required"),
        ({"spec": {"title": float("nan")}}, "spec", "spec"),
        ({"spec": {"options": [{"id": "a", "label": "A"}], "title": ""}}, "spec", "spec.title"),
        ({"expires_at": "tomorrow"}, "expiresAt", "ISO 8601"),
        ({"expires_at": 5}, "expiresAt", "ISO 8601"),
        ({}, "spec", "Nothing is to be changed"),
        ({"spec": {}}, "spec", "Nothing is to be changed"),
    ],
)
async def test_a_change_must_make_a_right_widget_of_the_same_kind(
    scene: Scene, patch: dict[str, Any], argument: str, says: str
) -> None:
    shown = await scene.show(PROGRESS)
    with pytest.raises(InvalidArgument) as refused:
        await change(scene, shown, **patch)
    assert refused.value.argument == argument
    assert says in refused.value.message
    assert refused.value.hint
    assert len(await scene.agent.replies()) == 1


async def test_changes_are_checked_against_the_widget_as_it_stands_by_now(scene: Scene) -> None:
    shown = await scene.show(PROGRESS)
    await scene.offline()
    await change(scene, shown, spec={"max": 100})
    taken_back = await change(scene, shown, spec={"max": 1000})
    await change(scene, shown, spec={"value": 500})
    await scene.agent.drop_reply((await change(scene, shown, spec={"value": 5})).message_id)
    await scene.agent.drop_reply(taken_back.message_id)
    with pytest.raises(InvalidArgument):
        await change(scene, shown, spec={"value": 600})


async def test_what_has_no_widget_to_change(scene: Scene) -> None:
    with pytest.raises(UnknownMessage):
        await scene.agent.update_widget(scene.session, message_id="nothing", spec={"title": "x"})
    with pytest.raises(NotPossible):
        await change(scene, await scene.send(), spec={"title": "x"})
    await scene.offline()
    dropped = await scene.show()
    await scene.agent.drop_reply(dropped.message_id)
    with pytest.raises(NotPossible) as refused:
        await change(scene, dropped, spec={"title": "x"})
    assert "send_widget" in refused.value.hint


@pytest.mark.parametrize("expired", [PAST, "2001-01-01T00:00:00", "2020-06-01T12:00:00+02:00"])
async def test_a_widget_that_has_expired_is_not_sent(scene: Scene, expired: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await scene.show({**WIDGET, "expires_at": expired})
    assert refused.value.argument == "widgetJson"
    assert expired in refused.value.message
    assert await scene.agent.replies() == []
    await scene.show({**WIDGET, "expires_at": FUTURE})


async def test_an_answer_after_the_end_is_delivered_and_called_late(scene: Scene) -> None:
    shown = await scene.show({**WIDGET, "expires_at": FUTURE})
    await scene.submitted(shown)
    await scene.deliver(response(scene.ada, "w1", "yes", id="in time"))
    closing = await change(scene, shown, expires_at=PAST)
    await scene.submitted(closing)
    await scene.deliver(response(scene.ada, "w1", "yes", id="late"))
    found = await scene.agent.wait_for_messages(scene.session, timeout=0)
    by_id = {m.message_id: m.as_dict() for m in found.messages}
    assert (by_id["in time"]["widget"]["late"], by_id["late"]["widget"]["late"]) == (False, True)
    assert by_id["late"]["widget"]["expires_at"] == PAST
    assert by_id["late"]["widget_response"]["value"] == "yes"
    await change(scene, shown, expires_at=FUTURE)  # and it is open again
    await scene.deliver(response(scene.ada, "w1", id="reopened"))
    assert (await scene.request("reopened")).as_dict()["widget"]["late"] is False


async def test_a_request_says_which_widget_it_answers(scene: Scene) -> None:
    shown = await scene.show(PROGRESS)
    await scene.submitted(shown, await change(scene, shown, spec={"title": "Half way"}))
    await scene.deliver(response(scene.ada, "p1", {"cancelled": True}, id="m2"))
    expected = {
        "widget_id": "p1",
        "message_id": shown.message_id,
        "kind": "progress",
        "title": "Half way",
        "source_message_id": scene.question,
        "expires_at": None,
        "late": False,
    }
    pending = await scene.agent.pending_widget()
    assert pending is not None
    assert pending.as_dict()["widget"] == expected
    assert "widget" not in pending.as_dict()["widget_response"]
    await scene.restart()
    history = (await scene.agent.history()).as_dict()
    assert [r.get("widget") for r in history["requests"]] == [None, expected]
    assert "widget" not in history["requests"][0]


async def test_the_person_s_own_change_is_linked_and_changes_nothing_of_ours(scene: Scene) -> None:
    shown = await scene.show(PROGRESS)
    await scene.submitted(shown)
    await scene.deliver(update(scene.ada, "p1", {"spec": {"max": "none"}}, id="m2"))
    request = await scene.request("m2")
    assert request.kind == "widget_update"
    assert request.widget is not None
    assert request.widget["message_id"] == shown.message_id
    assert not (await change(scene, shown, spec={"value": 10})).repeated


async def test_collective_answers_are_for_groups(scene: Scene) -> None:
    widget = {**WIDGET, "response_mode": "collective"}
    with pytest.raises(InvalidArgument) as refused:
        await scene.show(widget)
    assert "collective" in refused.value.message
    key = new_group_key("g1")
    bob = await scene.meet("bob", "g1")
    scene.relay.group_keys["g1"] = [bob.key_envelope(key)]
    await scene.deliver(bob.group_frame("to all", key, id="m1"))
    shown = await scene.show(widget, "m1")
    changed = await change(scene, shown, spec={"title": "All of you?"})
    assert (changed.to, changed.device_id) == ("group:g1", None)
    await scene.submitted(shown, changed)
    assert {m["to"] for m in scene.relay.messages} == {"group:g1"}
