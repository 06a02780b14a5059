"""Several agents in one daemon: adding, telling apart, removing; and the events."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pacerelled.agent.hub import Hub
from pacerelled.agent.wanted import Wanted
from pacerelled.errors import (
    AgentExists,
    InvalidArgument,
    NoAgent,
    NotPossible,
    StoreUnavailable,
    UnknownAgent,
)
from pacerelled.store import agents as agent_rows
from pacerelled.store.database import Tx
from pacerelled.store.keyring import Keyring

from .core import Core
from .human import Human, message_id
from .polling import until
from .scripted_relay import ScriptedRelay


async def test_several_agents_at_once_keep_everything_apart(core: Core, relay: ScriptedRelay) -> None:
    names = ["a1", "a2", "a3"]
    humans = {}
    for name in names:
        await core.agent(relay.url, name, token=name)
        await relay.connected(name)
        humans[name] = await Human.meet(relay, agent_id=name)
    assert len({relay.bundles[n]["identity_key"] for n in range(3)}) == 3
    for name in names:
        await relay.push(*(humans[name].frame(f"{name} {n}", id=f"m{n}") for n in range(5)), token=name)
    await until(lambda: len(relay.acked) == 15)
    session = core.session()
    for name in names:
        agent = core.hub.agent(name)
        found = await agent.wait_for_messages(session, timeout=0)
        assert [r.text for r in found.messages] == [f"{name} {n}" for n in range(5)]
        await agent.mark_processed(session, "m0")
        reply = await agent.send_message(session, text=f"reply of {name}", source_message_id="m1", call_id="1")
        assert not reply.repeated
        await agent.wait_for_reply(reply.message_id, timeout=30)
    for name, frame in zip(names, relay.messages, strict=True):
        assert humans[name].read(frame).text == f"reply of {name}"
    status = await core.hub.status()
    assert [(a["agent_id"], a["pending"], a["claimed"]) for a in status["agents"]] == [(n, 4, 4) for n in names]
    assert status["health"]["ok"]

    await core.restart()
    assert [a.agent_id for a in core.hub.agents()] == names
    status = await core.hub.status()
    assert [a["login"] for a in status["agents"]] == ["needed"] * 3
    assert {p["code"] for p in status["health"]["problems"]} == {"token_missing"}


async def test_which_agent_is_meant(core: Core, relay: ScriptedRelay) -> None:
    hub = core.hub
    for name in (None, "-"):
        with pytest.raises(NoAgent):
            hub.agent(name)
    assert (await hub.status())["health"]["problems"][0]["code"] == "no_agent"
    first = await core.agent(relay.url)
    assert hub.agent(None) is hub.agent("-") is hub.agent("a1") is first
    session = core.session()
    assert hub.agent_for(session) is first
    second = await core.agent(relay.url, "a2", token="two")
    with pytest.raises(NoAgent) as several:
        hub.agent_for(session)
    assert "a1, a2" in several.value.message
    session.agent_id = "a2"
    assert hub.agent_for(session) is second
    with pytest.raises(UnknownAgent):
        hub.agent("a3")


async def test_adding_a_known_agent_takes_the_token_and_refuses_another_address(
    core: Core, relay: ScriptedRelay
) -> None:
    hub = core.hub
    agent = await core.agent(relay.url)
    assert await hub.add_agent("a1") is agent
    assert await hub.add_agent("a1", token="second", base_url=f"{relay.url}/") is agent
    await relay.connected("second")
    for different in ({"base_url": "http://other"}, {"ws_url": "ws://other"}, {"e2ee": False}):
        with pytest.raises(AgentExists) as refused:
            await hub.add_agent("a1", **different)  # type: ignore[arg-type]
        assert refused.value.hint
    assert agent.token == "second"


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a:b", "a\0", "a\n", "ä", "\ud800", "x" * 201])
async def test_ids_that_are_none(core: Core, name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await core.hub.add_agent(name)
    assert refused.value.argument == "agent_id"
    refused.value.message.encode()
    assert await core.store.run(agent_rows.list_agents) == []


@pytest.mark.parametrize("given", [{"base_url": "relay"}, {"ws_url": "http://relay"}])
async def test_addresses_that_are_none(core: Core, given: dict[str, str]) -> None:
    with pytest.raises(InvalidArgument) as refused:
        await core.hub.add_agent("a1", **given)  # type: ignore[arg-type]
    assert refused.value.argument == next(iter(given))


async def test_there_is_a_limit(core: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pacerelled.agent.hub.MAX_AGENTS", 2)
    for number in range(2):
        await core.hub.add_agent(f"a{number}")
    with pytest.raises(NotPossible):
        await core.hub.add_agent("a3")


async def test_many_hosts_that_add_the_same_agent_at_once_get_one(core: Core, relay: ScriptedRelay) -> None:
    found = await asyncio.gather(*(core.agent(relay.url) for _ in range(20)))
    assert len(set(map(id, found))) == 1
    await relay.connected()
    assert relay.connections == 1


def table_counts(tx: Tx, agent_id: str) -> dict[str, int]:
    tables = [row[0] for row in tx.all("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        table: tx.one(f"SELECT count(*) FROM {table} WHERE agent_id = ?", (agent_id,))[0]
        for table in tables
        if any(column[1] == "agent_id" for column in tx.all(f"PRAGMA table_info({table})"))
    }


async def busy_agent(core: Core, relay: ScriptedRelay) -> Human:
    """An agent with something in every corner of the store."""
    agent = await core.agent(relay.url)
    await relay.connected()  # so that the newest prekeys are this agent's
    human = await Human.meet(relay)
    frame = human.frame("hello")
    await relay.push(frame, "garbage")
    await until(lambda: relay.acked)
    session = core.session()
    await agent.wait_for_messages(session, timeout=0)
    await agent.send_message(session, text="reply", source_message_id=message_id(frame))
    await agent.save_checkpoint(session, source_message_id=message_id(frame), summary="s", next_action="n")
    return human


async def test_a_removed_agent_s_messages_stay_and_are_there_when_it_comes_back(
    core: Core, relay: ScriptedRelay
) -> None:
    human = await busy_agent(core, relay)
    await core.hub.remove_agent("a1")
    await until(lambda: not relay._sockets)
    with pytest.raises(UnknownAgent):
        core.hub.agent("a1")
    assert (await core.hub.status())["agents"] == []
    await core.restart()
    assert core.hub.agents() == []
    agent = await core.agent(relay.url)
    assert [r.text for r in (await agent.inbox(state="all"))[0]] == ["hello"]
    frame = human.frame("still the same session")
    await relay.push(frame)
    await until(lambda: message_id(frame) in relay.acked)
    assert len(await agent.quarantine.select()) == 1


async def test_a_purged_agent_leaves_nothing_and_other_agents_alone(core: Core, relay: ScriptedRelay) -> None:
    await core.agent(relay.url, "other", token="other")
    await relay.connected("other")
    kept = await core.store.run(lambda tx: table_counts(tx, "other"))
    await busy_agent(core, relay)
    before = await core.store.run(lambda tx: table_counts(tx, "a1"))
    assert {"requests", "replies", "claims", "checkpoints", "quarantine", "signal_pieces"} <= {
        table for table, count in before.items() if count
    }
    await core.hub.remove_agent("a1", purge=True)
    left = await core.store.run(lambda tx: table_counts(tx, "a1"))
    assert {table: count for table, count in left.items() if count} == {"events": 1}  # that it was removed
    assert await core.store.run(lambda tx: table_counts(tx, "other")) == kept
    identity = relay.bundles[-1]["identity_key"]
    await core.agent(relay.url)
    await until(lambda: relay.bundles[-1]["identity_key"] != identity)


async def test_an_agent_that_cannot_be_removed_goes_on(
    core: Core, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    await core.agent(relay.url)
    human = await Human.meet(relay)

    def failing(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("no space")

    monkeypatch.setattr(agent_rows, "remove_agent", failing)
    with pytest.raises(StoreUnavailable):
        await core.hub.remove_agent("a1")
    frame = human.frame("still here")
    await relay.push(frame)
    await until(lambda: relay.acked == [message_id(frame)])
    with pytest.raises(UnknownAgent):
        await core.hub.remove_agent("a2")


async def test_an_agent_that_does_not_start_leaves_nothing_running(
    core: Core, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> Any:
        raise StoreUnavailable("no space")

    before = asyncio.all_tasks()
    monkeypatch.setattr(agent_rows, "load_pieces", failing)
    with pytest.raises(StoreUnavailable):
        await core.agent(relay.url)
    assert core.hub.agents() == []
    assert asyncio.all_tasks() == before
    monkeypatch.undo()
    await core.agent(relay.url)
    await relay.connected()


async def test_an_agent_without_a_token_waits_for_one(core: Core, relay: ScriptedRelay) -> None:
    agent = await core.hub.add_agent("a1", base_url=relay.url)
    await until(lambda: agent.connection == "disconnected")
    assert agent.login == "needed"
    await core.hub.set_token("a1", "given by a person")
    await relay.connected("given by a person")
    await until(lambda: agent.connection == "connected")
    assert (await core.hub.status())["health"]["ok"]


async def test_subscribers_are_told_until_they_end_it(core: Core, relay: ScriptedRelay) -> None:
    told: set[tuple[str, str]] = set()
    end = core.hub.subscribe(lambda agent_id, topic: told.add((agent_id, topic)))
    await busy_agent(core, relay)
    await until(lambda: {("a1", topic) for topic in ("status", "inbox", "conversation", "outbox")} <= told)
    end()
    end()
    told.clear()
    await core.hub.remove_agent("a1")
    assert told == set()


MESSAGES = Wanted(types=("device.*", "message.*", "claim.*", "checkpoint.*", "reply.*"))


async def test_events_are_waited_for_and_numbered_over_restarts(core: Core, relay: ScriptedRelay) -> None:
    await core.agent(relay.url)
    human = await Human.meet(relay)
    log = core.hub.event_log
    first = await log.last(100, Wanted())
    assert first["events"][0]["type"] == "agent.added"

    async def waiting() -> dict[str, Any]:
        return await log.wait(first["next_cursor"], MESSAGES, timeout=30, limit=100)

    calls = [asyncio.create_task(waiting()) for _ in range(3)]
    await asyncio.sleep(0.05)
    frame = human.frame("words", id="m1")
    await relay.push(frame)
    for call in calls:
        found = await call
        assert [e["type"] for e in found["events"]] == ["device.added", "message.received"]
        assert found["events"][1]["data"] == {
            "message_id": "m1",
            "conversation_id": human.conversation,
            "sender": human.user,
            "kind": "text",
        }
        assert "words" not in str(found)
    agent = core.hub.agent("a1")
    session = core.session()
    after = found["next_cursor"]
    await agent.wait_for_messages(session, timeout=0)
    await agent.save_checkpoint(session, source_message_id="m1", summary="s", next_action="n")
    reply = await agent.send_message(session, text="r", source_message_id="m1")
    await agent.wait_for_reply(reply.message_id, timeout=30)
    await agent.mark_processed(session, "m1")
    found = await log.wait(after, MESSAGES, timeout=0, limit=100)
    assert [e["type"] for e in found["events"]] == [
        "message.claimed",
        "checkpoint.saved",
        "reply.queued",
        "reply.submitted",
        "message.processed",
    ]
    await core.restart()
    await core.hub.add_agent("a2")
    later = await core.hub.event_log.wait(found["next_cursor"], Wanted(), timeout=0, limit=100)
    last = found["events"][-1]
    assert [e["seq"] for e in later["events"]] == [last["seq"] + 1 + at for at in range(len(later["events"]))]
    assert {e["epoch"] for e in later["events"]} == {last["epoch"]}
    assert later["events"][-1]["type"] == "agent.added"


@pytest.mark.parametrize(
    ("act", "kind"),
    [
        ("checkpoint", "checkpoint.saved"),
        ("claim", "message.claimed"),
        ("add", "agent.added"),
        ("remove", "agent.removed"),
        ("quarantine", "message.quarantined"),
        ("queue offline", "reply.queued"),
    ],
)
async def test_every_event_ends_a_wait_at_once(core: Core, relay: ScriptedRelay, act: str, kind: str) -> None:
    agent = await core.agent(relay.url)
    human = await Human.meet(relay)
    await relay.push(human.frame("x", id="m1"))
    await until(lambda: relay.acked)
    session = core.session()
    if act == "queue offline":
        relay.refuse["/ws/agent"] = 500
        await relay.drop()
    log = core.hub.event_log
    newest = (await log.last(1, Wanted()))["next_cursor"]
    call = asyncio.create_task(log.wait(newest, Wanted(types=(kind,)), timeout=600, limit=100))
    await asyncio.sleep(0.02)
    match act:
        case "checkpoint":
            await agent.save_checkpoint(session, source_message_id="m1", summary="s", next_action="n")
        case "claim":
            await agent.wait_for_messages(session, timeout=0)
        case "add":
            await core.hub.add_agent("a2")
        case "remove":
            await core.hub.remove_agent("a1")
        case "quarantine":
            await relay.push("garbage")
        case _:
            await agent.send_message(session, text="x", source_message_id="m1")
    assert len((await asyncio.wait_for(call, 30))["events"]) == 1


async def test_the_environment_s_agent(tmp_path: Path, relay: ScriptedRelay) -> None:
    core = Core(tmp_path / "state")
    env = {"PACERELLE_AGENT_ID": "a1", "PACERELLE_AGENT_TOKEN": "from the environment"}
    await core.start()
    await core.hub.stop()
    settings = core._settings.__class__(base_url=relay.url, reconnect_max=0.1)
    core.hub = Hub(core.store, settings, keyring=Keyring(False, {}), env=env, state=tmp_path)
    await core.hub.start()
    await relay.connected("from the environment")
    await core.stop()
