"""Prekeys: committed before they are published, reused, topped up and pruned without killing first messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pacerelled.agent import crypto as crypto_module
from pacerelled.agent.agent import Agent
from pacerelled.errors import NotPossible, StoreCorrupt, StoreUnavailable
from pacerelled.store import agents as agent_rows
from pacerelled.store.database import Tx

from .core import Core, full_disk, pieces, quarantined
from .human import Human, message_id
from .polling import until
from .scripted_relay import ScriptedRelay


async def published(relay: ScriptedRelay, count: int) -> None:
    await until(lambda: len(relay.one_time) == count and len(relay.bundles) >= count)


async def test_a_set_is_committed_before_anybody_sees_it(core: Core, relay: ScriptedRelay) -> None:
    relay.refuse["/agent/prekey-bundle"] = 503
    agent = await core.agent(relay.url)

    async def stored() -> Any:
        return await core.store.run(lambda tx: tx.one("SELECT bundle, one_time, published FROM prekey_sets"))

    async def reported() -> bool:
        return "503" in str((await agent.status())["problems"])

    row = await until(stored)
    assert row[2] == 0
    await until(reported)
    del relay.refuse["/agent/prekey-bundle"]
    await published(relay, 1)
    assert relay.bundles[0] == json.loads(row[0])
    assert relay.one_time[0] == json.loads(row[1])
    assert len(relay.one_time[0]["one_time_prekeys"]) == 50
    await relay.connected()
    assert (await stored())[2] == 1


async def test_a_restart_publishes_the_same_bundle_and_no_new_one_time_prekeys(
    core: Core, relay: ScriptedRelay
) -> None:
    await core.agent(relay.url)
    human = await Human.meet(relay)
    await relay.connected()
    for count in (2, 3):
        await core.restart()
        core.hub.agent("a1").set_token("token")
        await relay.connected()
        assert len(relay.bundles) == count
    assert relay.bundles[0] == relay.bundles[2]
    assert len(relay.one_time) == 1
    frame = human.frame("made before the restarts")
    await relay.push(frame)
    await until(lambda: relay.acked == [message_id(frame)])
    assert [r.text for r in (await core.hub.agent("a1").inbox())[0]] == ["made before the restarts"]


async def test_a_set_whose_publishing_was_interrupted_is_published_after_the_restart(
    core: Core, relay: ScriptedRelay
) -> None:
    relay.refuse["/agent/one-time-prekeys"] = 500
    await core.agent(relay.url)
    await until(lambda: relay.bundles)
    await core.restart()
    del relay.refuse["/agent/one-time-prekeys"]
    core.hub.agent("a1").set_token("token")
    await relay.connected()
    assert relay.bundles[-1] == relay.bundles[0]
    assert len(relay.one_time) == 1
    rows = await core.store.run(lambda tx: agent_rows.prekey_sets(tx, "a1"))
    assert [(row.published, row.one_time) for row in rows] == [(True, relay.one_time[0])]


async def test_new_ones_are_made_when_few_are_left_and_old_pairs_are_kept_for_a_while(
    core: Core, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crypto_module, "ONE_TIME_PREKEYS", 22)
    agent = await core.agent(relay.url)
    early = await Human.meet(relay, user="early")  # has the first bundle, and writes late
    never = await Human.meet(relay, user="never")

    async def use(count: int, round_: int) -> None:
        """So many of them, after which there is one more set."""
        for number in range(count):
            human = await Human.meet(relay, user=f"u{round_}.{number}", conversation=f"round {round_} {number}")
            frame = human.frame("hello")
            await relay.push(frame)
            await until(lambda frame=frame: message_id(frame) in relay.acked)
        await published(relay, round_ + 1)

    await use(3, 1)  # of 22
    for round_ in range(2, crypto_module.KEEP_SETS):
        await use(22, round_)  # of 19 and 22 more
    assert await agent.quarantine.select() == []
    numbers = [p["prekey_id"] for made in relay.one_time for p in made["one_time_prekeys"]]
    assert len(numbers) == len(set(numbers))
    late = early.frame("late")
    await relay.push(late)
    await until(lambda: message_id(late) in relay.acked)
    assert await agent.quarantine.select() == []

    # One more set, and the first pair is gone; what is in memory, on disk and after a restart is the same.
    await use(22, crypto_module.KEEP_SETS)
    signed = agent._crypto.signal.signed_prekey_ids()
    assert len(signed) == crypto_module.KEEP_SETS
    assert relay.bundles[0]["signed_prekey_id"] not in signed
    await relay.push(never.frame("too late"))
    assert (await quarantined(agent, 1))[0]["reason"] == "prekey_missing"
    await core.restart()
    assert core.hub.agent("a1")._crypto.signal.signed_prekey_ids() == signed
    core.hub.agent("a1").set_token("token")
    still = early.frame("still the same session")
    await relay.push(still)
    await until(lambda: message_id(still) in relay.acked)
    assert len(await core.hub.agent("a1").quarantine.select()) == 1


async def test_a_full_disk_takes_new_keys_back(core: Core, relay: ScriptedRelay) -> None:
    agent = await core.agent(relay.url)
    await until(lambda: relay.one_time)
    signal = agent._crypto.signal
    before = signal.one_time_prekey_ids()

    def make_many(tx: Tx) -> None:
        agent._crypto.guard(tx)
        for number in range(1, 20):
            signal.generate_prekeys(50, signed_id=number, first_one_time_id=number * 100)
        agent._crypto.save(tx)

    await full_disk(core.store)
    with pytest.raises(StoreUnavailable):
        await core.store.run(make_many)
    assert signal.one_time_prekey_ids() == before
    await full_disk(core.store, full=False)
    await core.store.run(make_many)
    await core.restart()
    assert len(core.hub.agent("a1")._crypto.signal.one_time_prekey_ids()) == len(before) + 19 * 50


async def test_a_damaged_state_is_refused(core: Core, relay: ScriptedRelay) -> None:
    await core.agent(relay.url)
    await until(lambda: relay.one_time)

    def damage(tx: Tx) -> None:
        tx.execute("UPDATE signal_pieces SET data = zeroblob(length(data)) WHERE piece LIKE 'kyber/%'")

    with pytest.raises(StoreCorrupt) as refused:
        await core.restart(damage)
    assert "a1" in refused.value.message
    assert "Restore" in refused.value.hint


async def test_another_agent_s_state_is_refused(core: Core, relay: ScriptedRelay) -> None:
    await core.agent(relay.url)
    await until(lambda: relay.one_time)

    def swap(tx: Tx) -> None:
        tx.execute("UPDATE signal_pieces SET agent_id = 'a2'")
        tx.execute("UPDATE agents SET agent_id = 'a2'")

    with pytest.raises(StoreCorrupt):
        await core.restart(swap)


async def test_without_encryption_there_are_none(core: Core, relay: ScriptedRelay) -> None:
    agent: Agent = await core.agent(relay.url, e2ee=False)
    await relay.connected()
    assert relay.bundles == []
    assert (await agent.status())["one_time_prekeys"] == 0
    with pytest.raises(NotPossible):
        await agent.send_file(core.session(), name="x", data=pieces(b"y"), size=1)
