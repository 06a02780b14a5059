"""The recipes of `pacerelle wake` with a real Claude Code and a real Codex: they start when nobody listens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import DEADLINE, stack, until
from tests.outside.node import Unavailable
from tests.outside.real_hosts import RealHost, claude_code, codex
from tests.outside.scripted_model import Call, Conversation, Script, scripted_model
from tests.outside.test_real_hosts import add_agent

pytestmark = pytest.mark.outside

PROGRAMS = {"claude-code": ("claude", claude_code), "codex": ("codex", codex)}


def script() -> Script:
    """As the recipe's prompt asks for, but for the length of the last wait."""
    while (got := (yield Call("wait_for_messages", {"timeoutMs": 500})))["messages"]:
        for message in got["messages"]:
            source = message["message_id"]
            yield Call("send_message", {"text": f"woken: {message['text']}", "sourceMessageId": source})
            yield Call("mark_processed", {"messageId": source})
    return "Nothing is left."


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_request_that_nobody_listens_for_is_answered(name: str, tmp_path: Path) -> None:
    command, find = PROGRAMS[name]
    try:
        program = find()
    except Unavailable as error:
        pytest.skip(str(error))
    async with stack(tmp_path) as running, scripted_model() as model:
        phone = await running.phone("ada")
        agent = await phone.create_agent("home")
        model.conversations[name] = Conversation(script())
        # A command that is woken has none of the terminal's variables but PATH: its settings are in its files.
        host = RealHost(name, program, running.home, running)
        host.prepare(model.url)
        own = {key: host.env[key] for key in ("HOME", "PATH", "LANG")}
        if name == "claude-code":
            settings = running.home / ".claude" / "settings.json"
            settings.parent.mkdir()
            settings.write_text(json.dumps({"env": {key: host.env[key] for key in set(host.env) - set(own)}}))
        (running.home / "bin").mkdir()
        (running.home / "bin" / command).symlink_to(program)
        host.env = own | {"PATH": f"{running.home / 'bin'}:{own['PATH']}"}
        await add_agent(running, agent, env=host.env)
        await host.install(agent.agent_id)
        (running.home / "work").mkdir()
        work = str(running.home / "work")
        await host.pacerelle("wake", "set", "--recipe", name, "--after", "0", "--cwd", work)

        question = await phone.send(agent.agent_id, "anybody there?")
        assert (await phone.wait_reply(question, DEADLINE)).text == "woken: anybody there?"

        async def ended() -> Any:
            (run,) = json.loads(await host.pacerelle("wake", "log", "--json"))["runs"]
            return run if run["state"] != "running" else None

        run = await until(ended, "the end of the run")
        output = json.loads(await host.pacerelle("wake", "log", run["id"], "--json"))["run"]["output"]
        assert (run["state"], run["exit_code"], run["reason"]) == ("exited", 0, "request"), output
        assert "Nothing is left." in output
        assert model.conversations[name].failed is None
