"""Which of several tokens is used."""

from __future__ import annotations

from pacerelled.agent.agent import Agent
from pacerelled.agent.tokens import Tokens

from .core import Core
from .polling import until
from .scripted_relay import ScriptedRelay


def test_the_newest_token_is_used_and_the_same_one_is_no_news() -> None:
    tokens = Tokens()
    assert tokens.give("one", current_refused=False)
    assert not tokens.give("one", current_refused=False)
    assert tokens.give("two", current_refused=False)
    assert tokens.current == "two"


def test_a_refused_token_gives_way_to_the_one_before_and_does_not_come_back() -> None:
    tokens = Tokens()
    tokens.give("good", current_refused=False)
    tokens.give("old", current_refused=False)
    assert tokens.refuse_current()
    assert tokens.current == "good"
    assert not tokens.give("old", current_refused=False)
    assert tokens.current == "good"
    assert not tokens.refuse_current()  # nothing else is left
    assert tokens.current == "good"


def test_where_nothing_works_everything_is_tried_again() -> None:
    tokens = Tokens()
    tokens.give("one", current_refused=False)
    assert not tokens.refuse_current()
    assert tokens.give("one", current_refused=True)
    assert tokens.give("two", current_refused=True)
    assert not tokens.refuse_current()
    assert tokens.give("one", current_refused=True)


async def test_a_host_with_an_old_token_does_not_take_the_agent_offline(core: Core, relay: ScriptedRelay) -> None:
    relay.valid = {"good"}
    agent: Agent = await core.agent(relay.url, token="good")
    await relay.connected("good")
    await core.agent(relay.url, token="old")  # as a shim's hello hands it over
    await until(lambda: "old" in relay.refused)
    await until(lambda: agent.token == "good" and agent.connection == "connected")
    connections = relay.connections
    await core.agent(relay.url, token="old")
    assert agent.token == "good"
    assert (await agent.status())["login"] == "ok"
    assert relay.connections == connections
    relay.valid = {"newest"}
    await relay.close(4001, "good")
    await until(lambda: agent.login == "refused")
    await core.agent(relay.url, token="newest")
    await relay.connected("newest")
    assert agent.login == "ok"
