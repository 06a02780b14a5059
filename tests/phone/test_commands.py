"""`pacerelle chat` in scripts: the real command in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from phone_world import COMMAND, DEADLINE, StartAgent

from pacerelle_phone.device import Device
from pacerelle_phone.model import PairedAgent
from pacerelle_relay.server import Relay


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> dict[str, str]:
        return dict(json.loads(self.err)["error"])


Chat = Callable[..., Coroutine[Any, Any, Outcome]]


@pytest.fixture
def chat(tmp_path: Path) -> Chat:
    async def run(*args: str, home: str = "phone") -> Outcome:
        env = os.environ | {"PACERELLE_PHONE_HOME": str(tmp_path / home)}
        process = await asyncio.create_subprocess_exec(
            *COMMAND, *args, env=env, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(DEADLINE):
            out, err = await process.communicate()
        assert process.returncode is not None
        return Outcome(process.returncode, out.decode(), err.decode())

    return run


@pytest.fixture
async def agent(chat: Chat, relay: Relay, start_agent: StartAgent) -> PairedAgent:
    """Paired from the command line, and running."""
    done = await chat("--relay", relay.url, "pair", "--name", "Ann", "--new-agent", "Echo", "--json")
    assert done.code == 0, done.err
    paired = PairedAgent(**done.lines[0]["agent"])
    await start_agent(paired)
    return paired


async def heard(chat: Chat, count: int) -> list[dict[str, Any]]:
    """What `listen` shows, once that many messages have come."""
    lines: list[dict[str, Any]] = []
    async with asyncio.timeout(DEADLINE):
        while len(lines) < count:
            lines += (await chat("listen", "0.5", "--json")).lines
    return lines


async def test_send_and_wait_for_the_reply(chat: Chat, agent: PairedAgent) -> None:
    done = await chat("--send", "hello", "--wait", "20", "--json")
    assert done.code == 0, done.err
    sent, reply = done.lines
    assert (sent["direction"], sent["text"]) == ("out", "hello")
    assert (reply["text"], reply["reply_to"], reply["agent_id"]) == ("Received: hello", sent["id"], agent.agent_id)

    plain = await chat("send", "again", "--agent", "Echo", "--wait", "20")
    assert plain.out.splitlines() == ["You: again", "Echo: Received: again"]


async def test_a_reply_that_does_not_come_is_a_timeout(chat: Chat, agent: PairedAgent) -> None:
    done = await chat("--send", "progress", "--wait", "1", "--json")  # answered, with nothing that refers to it
    assert done.code == 1
    assert done.error["code"] == "timeout"
    assert done.lines[0]["text"] == "progress"
    later = [] if len(done.lines) == 3 else await heard(chat, 3 - len(done.lines))
    assert [line["kind"] for line in done.lines[1:] + later] == ["widget", "widget_update"]
    assert (await chat("listen", "0")).out == ""  # everything has been shown once


async def test_widgets_are_answered_from_the_command_line(chat: Chat, agent: PairedAgent) -> None:
    await chat("--send", "ask choice")
    [shown] = await heard(chat, 1)
    assert shown["widget"]["id"] == "choice-1"
    wrong = await chat("answer", "3")
    assert (wrong.code, "1 to 2" in wrong.err) == (1, True)
    done = await chat("answer", "2", "--wait", "20", "--json")
    assert done.lines[-1]["text"] == "widget choice-1: 'csv'"
    none_left = await chat("answer", "--cancel", "--json")
    assert (none_left.code, none_left.error["message"]) == (1, "There is no open widget.")


async def test_files_are_sent_and_saved(chat: Chat, agent: PairedAgent, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("my notes")
    done = await chat("--send", "look", "--file", "notes.txt", "--wait", "20", "--json")
    assert done.lines[-1]["text"] == "got notes.txt text/plain my notes"
    await chat("--send", "send file")
    [received] = await heard(chat, 1)
    for expected in ("report.txt", "report (2).txt"):
        saved = await chat("save", received["id"], "--json")
        assert saved.lines[0]["path"] == expected
        assert (tmp_path / expected).read_bytes() == b"private report"


async def test_a_second_device_is_linked_with_a_code(chat: Chat, agent: PairedAgent, relay: Relay) -> None:
    [code] = (await chat("link-code", "--json")).lines
    linked = await chat("--relay", relay.url, "link", code["link_code"], "--json", home="tablet")
    assert linked.code == 0, linked.err
    done = await chat("--send", "from the tablet", "--wait", "20", "--json", home="tablet")
    assert done.lines[-1]["text"] == "Received: from the tablet"
    [listed] = (await chat("agents", "--json", home="tablet")).lines
    assert (listed["agent_id"], listed["connected"], listed["identity"]) == (agent.agent_id, True, "trusted")
    assert listed["safety_code"]


async def test_control_characters_of_a_peer_are_shown_and_not_obeyed(chat: Chat, agent: PairedAgent) -> None:
    done = await chat("--send", "colours", "--wait", "20")
    assert done.out.splitlines()[-1] == "Echo: red \\x1b[31m\\x07 end"


async def test_errors_name_the_cause_and_the_next_step(chat: Chat, relay: Relay, phone: Device, tmp_path: Path) -> None:
    unpaired = await chat("--send", "hello", home="other")
    assert unpaired.code == 4
    assert "pacerelle chat pair" in unpaired.err

    taken = await chat("agents", "--json")  # the fixture's device holds this home
    assert (taken.code, taken.error["code"]) == (1, "home_in_use")
    assert str(os.getpid()) in taken.error["message"]

    away = await chat("--relay", "http://127.0.0.1:1", "pair", "--name", "Ann", "--json", home="other")
    assert (away.code, away.error["code"]) == (5, "relay_unreachable")

    bad = await chat("--relay", "ftp://x", "pair", "--name", "Ann", home="other")
    assert (bad.code, "http://" in bad.err) == (1, True)

    wrong = await chat("--relay", relay.url, "link", "no-such-code", "--json", home="other")
    assert wrong.code == 1

    (tmp_path / "file").write_text("")
    unusable = await chat("agents", home="file")
    assert unusable.code == 1
    assert "--home" in unusable.err


async def test_new_tokens_replace_old_ones(chat: Chat, agent: PairedAgent) -> None:
    [made] = (await chat("new-token", "--json")).lines
    assert made["agent_id"] == agent.agent_id
    assert made["agent_token"] != agent.agent_token


async def test_with_several_agents_one_must_be_named(chat: Chat, agent: PairedAgent) -> None:
    assert (await chat("new-agent", "Second")).code == 0
    done = await chat("--send", "hello", "--json")
    assert (done.code, done.error["code"]) == (1, "invalid_argument")
    waiting = await chat("--send", "hello", "--agent", "Second", "--wait", "0.5", "--json")
    assert (waiting.code, waiting.error["code"]) == (1, "no_prekeys")


async def test_talking_needs_a_terminal(chat: Chat) -> None:
    done = await chat()
    assert done.code == 2
    assert "--send" in done.err
