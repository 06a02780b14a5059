"""Permission requests on the phone: who is asked, which answers count, and what the phone is told of the end."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from pacerelled.agent.model import Reply
from pacerelled.paseo import approvals
from tests.paseo.scene import Scene
from tests.paseo.scripted import ScriptedPaseo, until

YES = {"granted": True, "scope": "once"}


async def asked(scene: Scene, paseo: ScriptedPaseo, **more: Any) -> tuple[str, Reply]:
    """An agent that was started from the conversation c1, which is asked, waits for a permission."""
    await scene.bridge.approvals.choose(None, "c1", every_agent=False)
    made = await scene.tool(
        "paseo_create_agent", cwd=str(scene.code), prompt="run on", source_message_id="m1", title="Tidy up"
    )
    agent_id = made["agent"]["id"]
    await scene.until_told(agent_id, "turn_started")
    await paseo.ask(agent_id, **more)
    await until(lambda: scene.phone.shown, "the widget")
    return agent_id, next(iter(scene.phone.shown.values()))


async def ended(scene: Scene) -> str:
    """What the phone is told last."""
    await until(lambda: scene.phone.changes, "the end")
    status: str = scene.phone.changes[-1][1]["authorization"]["status"]
    return status


@pytest.mark.parametrize(
    ("value", "cancelled", "behavior", "status"),
    [(YES, False, "allow", "granted"), ({"granted": False}, False, "deny", "denied"), (None, True, "deny", "denied")],
)
async def test_the_answer_reaches_paseo(
    scene: Scene, paseo: ScriptedPaseo, value: Any, cancelled: bool, behavior: str, status: str
) -> None:
    _, reply = await asked(scene, paseo)
    assert reply.widget is not None
    spec = reply.widget["spec"]
    assert spec["title"] == "Allow Bash?"
    for words in ("“Tidy up”", str(scene.code), "Delete the build folder", "rm -rf build"):
        assert words in spec["body"]
    authorization = spec["authorization"]
    assert authorization["resource"] == str(scene.code)
    assert authorization["session"]["label"] == "Tidy up"
    assert (authorization["status"], authorization["revocable"], spec["scopes"]) == ("requested", True, ["once"])
    assert authorization["expires_at"] == reply.widget["expires_at"]
    scene.phone.answer(reply, value, widget_response={"value": value, "cancelled": cancelled})
    scene.bridge.approvals.look()
    assert await ended(scene) == status
    assert [m["response"]["behavior"] for m in paseo.asked("agent_permission_response")] == [behavior]
    events = [e["type"] for e in await scene.log() if e["type"].startswith("approval.")]
    assert events == ["approval.asked", "approval.answered"]
    scene.phone.answer(reply, YES)  # a second answer changes nothing
    scene.bridge.approvals.look()
    await scene.stop()
    await scene.start()
    assert len(paseo.asked("agent_permission_response")) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"sender": "eve"},
        {"device_id": "tablet"},
        {"device_id": None},
        {"encrypted": False},
        {"authorized": False},
        {"group": True},
        {"widget": {"message_id": "r1", "late": True}},
        {"widget_response": {"value": {"granted": True, "scope": "always"}, "cancelled": False}},
        {"widget_response": {"value": True, "cancelled": False}},
        {"widget_response": {"value": {"granted": 1}, "cancelled": False}},
    ],
)
async def test_an_answer_that_is_not_from_who_was_asked_or_not_right_does_not_count(
    scene: Scene, paseo: ScriptedPaseo, wrong: dict[str, Any]
) -> None:
    _, reply = await asked(scene, paseo)
    scene.phone.answer(reply, YES, **wrong)
    scene.bridge.approvals.look()
    await asyncio.sleep(0.05)
    assert paseo.asked("agent_permission_response") == []
    scene.phone.answer(reply, {"granted": False})  # the right one still does
    scene.bridge.approvals.look()
    assert await ended(scene) == "denied"


async def test_what_is_resolved_elsewhere_is_told(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id, reply = await asked(scene, paseo)
    await paseo.resolve(agent_id, paseo.agents[agent_id]["pendingPermissions"][0]["id"], "allow")
    assert await ended(scene) == "granted"
    message_id, _, expires_at = scene.phone.changes[-1]
    assert message_id == reply.message_id
    assert expires_at is not None
    assert datetime.fromisoformat(expires_at) <= datetime.now(UTC)  # it can be answered no more
    scene.phone.answer(reply, {"granted": False})
    scene.bridge.approvals.look()
    await asyncio.sleep(0.05)
    assert paseo.asked("agent_permission_response") == []


async def test_what_was_resolved_while_we_were_away_is_told_after(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id, _ = await asked(scene, paseo)
    await scene.stop()
    await paseo.archive(agent_id)
    paseo.agents[agent_id]["pendingPermissions"] = []
    await scene.start()
    assert await ended(scene) == "revoked"


async def test_an_answer_that_came_while_paseo_was_away_is_carried_over(scene: Scene, paseo: ScriptedPaseo) -> None:
    _, reply = await asked(scene, paseo)
    paseo.bad.silent.add("agent_permission_response")
    monkey = pytest.MonkeyPatch()
    monkey.setattr("pacerelled.paseo.orders.RESOLVED_WITHIN", 0.2)
    scene.phone.answer(reply, YES)
    scene.bridge.approvals.look()
    await until(lambda: paseo.asked("agent_permission_response"), "the answer")
    paseo.bad.silent.clear()
    monkey.undo()
    await scene.stop()
    await scene.start()
    assert await ended(scene) == "granted"


async def test_nothing_is_answered_after_it_expired(
    scene: Scene, paseo: ScriptedPaseo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(approvals, "VALID", timedelta(milliseconds=1))
    agent_id, reply = await asked(scene, paseo)
    scene.bridge.approvals.look()
    assert await ended(scene) == "expired"
    scene.phone.answer(reply, YES)
    scene.bridge.approvals.look()
    await asyncio.sleep(0.05)
    assert paseo.asked("agent_permission_response") == []
    assert paseo.agents[agent_id]["pendingPermissions"]


async def test_only_chosen_conversations_are_asked(scene: Scene, paseo: ScriptedPaseo) -> None:
    made = await scene.tool("paseo_create_agent", cwd=str(scene.code), prompt="ask first", source_message_id="m1")
    await scene.until_told(made["agent"]["id"], "permission_requested")
    other = paseo.add("Started in the app")
    await paseo.begin(other, "ask first")
    await scene.until_told(other, "permission_requested")
    await scene.bridge.approvals.choose(None, "c2", every_agent=False)
    await asyncio.sleep(0.05)
    assert scene.phone.shown == {}
    await scene.bridge.approvals.choose(None, "c1", every_agent=False)
    await until(lambda: len(scene.phone.shown) == 1, "the widget of the agent from there")
    await scene.bridge.approvals.choose(None, "c2", every_agent=True)
    await until(lambda: len(scene.phone.shown) == 2, "the widget of every agent")
    assert [r.conversation_id for r in scene.phone.shown.values()] == ["c1", "c2"]
    assert await scene.bridge.approvals.leave(None, "c2") is True
    assert await scene.bridge.approvals.leave(None, "c2") is False
    assert [c.conversation_id for c in await scene.bridge.approvals.chosen()] == ["c1"]
    refused = await scene.refused("paseo_create_agent", cwd=str(scene.code), prompt="x", source_message_id="unknown")
    assert refused.code == "unknown_message"


@pytest.mark.parametrize("more", [{"kind": "question"}, {"input": {"command": "x" * 20_000}}])
async def test_what_cannot_be_shown_whole_or_answered_by_yes_or_no_is_not_asked(
    scene: Scene, paseo: ScriptedPaseo, more: dict[str, Any]
) -> None:
    await scene.bridge.approvals.choose(None, "c1", every_agent=True)
    agent_id = paseo.add()
    await paseo.ask(agent_id, **more)
    await scene.until_told(agent_id, "permission_requested")
    await asyncio.sleep(0.05)
    assert scene.phone.shown == {}


async def test_a_phone_that_cannot_be_reached_is_asked_later(scene: Scene, paseo: ScriptedPaseo) -> None:
    await scene.bridge.approvals.choose(None, "c1", every_agent=True)
    scene.phone.unreachable = True
    agent_id = paseo.add()
    await paseo.ask(agent_id)
    await scene.until_told(agent_id, "permission_requested")
    scene.phone.unreachable = False
    scene.bridge.approvals.look()
    await until(lambda: scene.phone.shown, "the widget")
