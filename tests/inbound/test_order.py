"""Messages that come out of order, that never come, or that come from too far ahead."""

from __future__ import annotations

import random

from pacerelled.agent.agent import Agent
from tests.daemon.core import Core
from tests.daemon.human import Human
from tests.daemon.polling import until
from tests.daemon.scripted_relay import ScriptedRelay

from .seen import deliver, reasons, texts

CHAIN_LIMIT = 25_000  # messages ahead that libsignal refuses (the relay protocol reference, "Signal sessions")


async def answered(agent: Agent, core: Core, ada: Human, relay: ScriptedRelay) -> None:
    """Both sides have heard each other: what follows are no more first messages."""
    await deliver(agent, relay, ada.frame("hello"))
    await agent.send_message(core.session(), text="hello yourself", conversation_id="c1")
    ada.read((await until(lambda: relay.messages))[-1])


async def test_first_messages_open_in_any_order(agent: Agent, ada: Human, relay: ScriptedRelay) -> None:
    frames = [ada.frame(f"{number}") for number in range(12)]
    await deliver(agent, relay, *reversed(frames))
    assert await texts(agent) == [f"{number}" for number in reversed(range(12))]
    assert await reasons(agent) == []


async def test_later_messages_open_in_any_order_and_over_restarts(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    await answered(agent, core, ada, relay)
    frames = [ada.frame(f"{number}") for number in range(60)]
    random.Random(1).shuffle(frames)
    await deliver(agent, relay, *frames[:30])
    await core.restart()
    agent = core.hub.agent("a1")
    agent.set_token("token")
    await deliver(agent, relay, *frames[30:], frames[0])
    assert sorted((await texts(agent))[1:], key=int) == [f"{number}" for number in range(60)]
    assert await reasons(agent) == []


async def test_skipped_messages_cost_nothing_and_may_still_come(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    await answered(agent, core, ada, relay)
    skipped = [ada.frame(f"late {number}") for number in range(500)]
    await deliver(agent, relay, ada.frame("ahead"))
    await deliver(agent, relay, skipped[499], skipped[0], ada.frame("on"))
    assert (await texts(agent))[1:] == ["ahead", "late 499", "late 0", "on"]
    assert await reasons(agent) == []


async def test_a_jump_too_far_is_quarantined_and_neither_connection_nor_other_sessions_suffer(
    agent: Agent, core: Core, ada: Human, relay: ScriptedRelay
) -> None:
    await answered(agent, core, ada, relay)
    bob = await Human.meet(relay, user="bob", conversation="c2", device="d2")
    near = ada.frame("still in reach")
    for _ in range(CHAIN_LIMIT + 1):
        ada.encrypt("lost")
    await deliver(agent, relay, ada.frame("too far"), bob.frame("somebody else"), near)
    assert await reasons(agent) == ["undecryptable"]
    assert await texts(agent) == ["hello", "somebody else", "still in reach"]
    assert relay.connections == 1
    assert (await agent.quarantine.retry())["left"] == 1
    # That session is lost for what follows, as libsignal has it; the device starts another with the same key.
    ada.start(relay)
    await deliver(agent, relay, ada.frame("here again"))
    assert (await texts(agent))[-1] == "here again"
