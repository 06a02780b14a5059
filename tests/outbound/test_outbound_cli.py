"""`pacerelle outbox`, as a process against a real control socket."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.cli.world import World


async def reply_in(world: World, state: Any, text: str = "The  figures\nof March") -> str:
    agent = await world.agent()
    sent = await world.run("send", text, "--wait", "0")
    assert sent.code == 0
    agent.sent[-1] = replace(agent.sent[-1], state=state, reason="the link ended", attempts=2)
    return agent.sent[-1].message_id


async def test_the_list_shows_what_is_not_through(world: World) -> None:
    await reply_in(world, "submitted")
    first = await reply_in(world, "uncertain", "x" * 100 + "\x1b[2J")
    second = await reply_in(world, "failed")
    result = await world.run("outbox", "list")
    header, *rows = result.out.splitlines()
    assert header.split() == ["MESSAGE", "MADE", "STATE", "TRIED", "TO", "TEXT", "REASON"]
    assert [row.split()[0] for row in rows] == [first, second]
    assert "The figures of March" in rows[1]
    assert "\x1b" not in result.out
    assert "x" * 41 not in result.out
    only = await world.run("outbox", "list", "--state", "failed", "--json")
    assert [r["message_id"] for r in json.loads(only.out)["replies"]] == [second]


async def test_an_empty_outbox_says_so(world: World) -> None:
    await world.agent()
    result = await world.run("outbox", "list")
    assert (result.code, result.out) == (0, "The outbox is empty.\n")
    assert json.loads((await world.run("outbox", "list", "--json")).out) == {"version": 1, "replies": []}


@pytest.mark.parametrize(("becomes", "code"), [("submitted", 0), ("uncertain", 1), ("failed", 1)])
async def test_a_reply_is_sent_again(world: World, becomes: str, code: int) -> None:
    message = await reply_in(world, "uncertain")
    agent = await world.agent()
    agent.leaves_as = becomes
    result = await world.run("outbox", "retry", message)
    assert result.code == code
    assert ("the relay has it" in result.out) is (code == 0)
    assert (f"pacerelle outbox retry {message}" in result.err) is (code == 1)
    agent.sent[0] = replace(agent.sent[0], state="uncertain")
    result = await world.run("--json", "outbox", "retry", message, "--wait", "0")
    assert (result.code, json.loads(result.out)["reply"]["state"]) == (0, "queued")


async def test_a_reply_is_given_up(world: World) -> None:
    message = await reply_in(world, "queued")
    result = await world.run("outbox", "drop", message)
    assert (result.code, result.out) == (0, f"{message}: dropped before it was sent\n")
    assert json.loads((await world.run("outbox", "drop", message, "--json")).out)["reply"]["state"] == "dropped"


async def test_what_cannot_be_done_is_said(world: World) -> None:
    message = await reply_in(world, "submitted")
    result = await world.run("outbox", "drop", message)
    assert result.code == 1
    assert "is submitted" in result.err
    result = await world.run("outbox", "retry", "../status", "--json")
    assert (result.code, json.loads(result.out)["error"]["code"]) == (1, "unknown_message")
    assert (await world.run("outbox", "list", "--state", "lost")).code == 2
