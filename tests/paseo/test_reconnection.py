"""Restarts of Paseo and of ours, broken connections, stale and repeated news: nothing is lost, nothing told twice."""

from __future__ import annotations

import asyncio

import pytest

from pacerelled.errors import PaseoUnavailable
from tests.paseo.scene import Scene
from tests.paseo.scripted import ScriptedPaseo, until


@pytest.mark.parametrize("kill", [False, True])
async def test_a_restart_in_the_middle_of_a_wait(scene: Scene, paseo: ScriptedPaseo, kill: bool) -> None:
    agent_id = (await scene.tool("paseo_create_agent", cwd=str(scene.code), prompt="run on"))["agent"]["id"]
    waiting = asyncio.create_task(scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=25))
    await scene.until_told(agent_id, "turn_started")
    if kill:
        paseo.agents[agent_id]["noTurn"] = True  # it still shows `running` afterwards
    await paseo.restart(kill=kill)
    found = await waiting
    assert found["state"] == "canceled"
    assert "stopped" in found["error"]
    await scene.connected()
    told = await scene.told(agent_id)
    assert told[:3] == ["created", "turn_started", "turn_ended canceled"]
    assert told[3:] == ([] if kill else ["closed"])
    await scene.tool("paseo_send_message", agent_id=agent_id, message="again")
    assert (await scene.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=20))["message"] == "Done: again"


async def test_a_turn_that_ended_while_the_connection_was_broken_is_told(scene: Scene, paseo: ScriptedPaseo) -> None:
    ids = [paseo.add(str(n)) for n in range(4)]
    for agent_id in ids[:3]:
        await paseo.begin(agent_id, "run on")
    permission = await paseo.ask(ids[1])
    await scene.until_told(ids[1], "permission_requested")
    await scene.until_told(ids[2], "turn_started")
    before = scene.bridge.looks._client.connection.connects
    paseo_clients, paseo.clients = paseo.clients, {}  # nothing reaches us any more
    for client in paseo_clients.values():
        assert client.socket is not None
        client.socket.transport.abort()
    await paseo.finish(ids[0], "Finished meanwhile")
    await paseo.resolve(ids[1], permission, "allow")
    await paseo.end(ids[2], "turn_failed", error="Rate limit exceeded")
    await paseo.begin(ids[3], "a whole turn")
    new = paseo.add("New")
    await until(lambda: scene.bridge.looks._client.connection.connects > before, "the reconnection")
    await scene.connected()
    assert await scene.told(ids[0]) == ["created", "turn_started", "turn_ended finished"]
    assert sorted((await scene.told(ids[1]))[3:]) == ["permission_resolved", "turn_ended finished"]
    assert (await scene.told(ids[2]))[2:] == ["turn_ended limit"]
    assert await scene.told(new) == ["created"]
    assert await scene.told(ids[3]) == ["created", "turn_started", "turn_ended finished"] or await scene.told(
        ids[3]
    ) == ["created"]


async def test_what_happens_while_we_are_stopped_is_told_after(scene: Scene, paseo: ScriptedPaseo) -> None:
    quiet, busy, gone, away = (paseo.add(name) for name in ("quiet", "busy", "gone", "away"))
    for agent_id in (quiet, busy, gone, away):
        await paseo.update(agent_id)
        await scene.until_told(agent_id, "created")
    await paseo.begin(busy, "run on")
    await scene.until_told(busy, "turn_started")
    cursor = await scene.bridge.looks.cursor()
    await scene.stop()
    await paseo.finish(busy, "While you were away")
    await paseo.begin(quiet, "a whole turn")
    await paseo.delete(gone)
    await paseo.archive(away)
    await scene.start()
    found = await scene.tool("paseo_wait_for_events", cursor=cursor, timeout_sec=0)
    assert sorted((e["agent_id"], e["type"]) for e in found["events"]) == sorted(
        [
            (busy, "agent.turn_ended"),
            (quiet, "agent.turn_started"),
            (quiet, "agent.turn_ended"),
            (gone, "agent.closed"),
            (away, "agent.archived"),
        ]
    )
    await scene.stop()
    await scene.start()
    assert len((await scene.tool("paseo_wait_for_events", cursor=cursor, timeout_sec=0))["events"]) == 5


async def test_what_was_there_before_the_first_look_is_no_news(paseo: ScriptedPaseo, scene: Scene) -> None:
    await scene.stop()
    paseo.server_id = "srv_another"  # a Paseo that this store has never seen
    for n in range(5):
        await paseo.begin(paseo.add(str(n)), "done before")
    await scene.start()
    assert await scene.log() == []


async def test_duplicated_and_stale_news_change_nothing(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    await paseo.begin(agent_id, "run on")
    stale = dict(paseo.agents[agent_id])
    permission = await paseo.ask(agent_id)
    asking = dict(paseo.agents[agent_id])
    await paseo.resolve(agent_id, permission, "deny")
    for snapshot in (stale, asking, stale, paseo.agents[agent_id], asking):
        await paseo.push("agent_update", {"kind": "upsert", "agent": snapshot, "project": None})
    for _ in range(2):
        await paseo.stream(agent_id, "turn_completed")
        told = {"agentId": agent_id, "requestId": permission, "resolution": {"behavior": "allow"}}
        await paseo.push("agent_permission_resolved", told)
        await paseo.push("agent_update", {"kind": "remove", "agentId": agent_id})
    await paseo.begin(agent_id, "the end")
    told_of = await scene.until_told(agent_id, "turn_started", "turn_ended finished")
    assert sorted(told_of) == sorted(
        [
            *("created", "turn_started", "permission_requested", "turn_ended finished", "permission_resolved deny"),
            *("turn_started", "turn_ended finished"),
        ]
    )


async def test_unknown_and_broken_messages_are_passed_over(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    socket = next(iter(paseo.clients.values())).socket
    assert socket is not None
    for raw in ("not json", "[1]", '{"type":"session"}', '{"type":"session","message":{"type":5}}', "[" * 5000):
        await socket.send(raw)
    await socket.send(b"\x01terminal")
    await paseo.push("agent_update", {"kind": "upsert", "agent": {"id": 5}})
    await paseo.push(
        "agent_update", {"kind": "upsert", "agent": {"id": agent_id, "labels": [1], "pendingPermissions": 3}}
    )
    await paseo.push("agent_stream", {"agentId": agent_id, "event": {"type": "from_the_future"}, "timestamp": 7})
    await paseo.push("agent_stream", {"agentId": agent_id, "event": None})
    await paseo.item(agent_id, {"type": "hologram", "text": "a new kind of item"})
    await paseo.item(agent_id, {"type": 9})
    await paseo.begin(agent_id, "hello")
    assert await scene.until_told(agent_id, "turn_ended finished") == ["created", "turn_started", "turn_ended finished"]
    read = await scene.tool("paseo_read_timeline", agent_id=agent_id)
    assert read["entries"][0] == {
        "who": "note",
        "text": "[hologram] a new kind of item",
        "at": read["entries"][0]["at"],
    }


async def test_looking_survives_a_broken_connection(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    paseo.bad.cut_off.add("fetch_agent_request")
    assert (await scene.tool("paseo_get_agent", agent_id=agent_id))["agent"]["id"] == agent_id


async def test_an_answer_that_never_comes_ends_the_call_and_not_the_others(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    scene.bridge.looks._client.connection._answer_timeout = 0.3
    paseo.bad.silent.add("fetch_agent_timeline_request")
    error = await scene.refused("paseo_read_timeline", agent_id=agent_id)
    assert isinstance(error, PaseoUnavailable)
    assert "did not answer" in error.message
    assert (await scene.tool("paseo_get_agent", agent_id=agent_id))["agent"]["id"] == agent_id


async def test_a_slow_listing_does_not_hide_what_happens_meanwhile(scene: Scene, paseo: ScriptedPaseo) -> None:
    agent_id = paseo.add()
    await paseo.update(agent_id)
    await scene.until_told(agent_id, "created")
    paseo.bad.slow["fetch_agents_request"] = 0.2
    before = scene.bridge.looks._client.connection.connects
    await paseo.drop_sockets()
    await until(lambda: scene.bridge.looks._client.connection.connects > before, "the reconnection")
    await paseo.begin(agent_id, "while it lists")
    await scene.until_told(agent_id, "created", "turn_started", "turn_ended finished")
