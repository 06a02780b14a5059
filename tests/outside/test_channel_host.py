"""A channel into a real session of Claude Code, at a terminal: a request wakes it, the phone answers its question."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import struct
import termios
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.stack import DEADLINE, Stack, stack, until
from tests.outside.node import Unavailable
from tests.outside.real_hosts import RealHost, claude_code
from tests.outside.scripted_model import Call, Conversation, Script, scripted_model
from tests.outside.test_real_hosts import add_agent

pytestmark = pytest.mark.outside

COMMAND = "touch made-by-claude && echo '{\"made\": true}'"
SCREEN = struct.pack("HHHH", 50, 140, 0, 0)
CONTROLS = re.compile(rb"\x1b\[[0-9;?>]*[a-zA-Z]|\x1b\][^\x07]*\x07|\s+")


def script() -> Script:
    """Takes what was announced, and needs a permission for it."""
    (request,) = (yield Call("wait_for_messages", {"timeoutMs": 1000}))["messages"]
    assert request["text"] == "make the file"
    assert (yield Call("Bash", {"command": COMMAND, "description": "Make a file"}, own=True)) == {"made": True}
    yield Call("send_message", {"text": "It is made.", "sourceMessageId": request["message_id"]})
    yield Call("mark_processed", {"messageId": request["message_id"]})
    return "Done."


@contextlib.asynccontextmanager
async def terminal(host: RealHost, *arguments: str) -> AsyncIterator[tuple[int, bytearray]]:
    """The host at a terminal: where to type, and all that it has shown."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, SCREEN)
    host.process = await asyncio.create_subprocess_exec(
        str(host.program), *arguments,
        cwd=host.home / "work", env=host.env | {"TERM": "xterm-256color"},
        stdin=its, stdout=its, stderr=its, start_new_session=True,
    )  # fmt: skip
    os.close(its)
    os.set_blocking(ours, False)
    shown = bytearray()

    def read() -> None:
        with contextlib.suppress(OSError):
            shown.extend(os.read(ours, 65536))

    loop = asyncio.get_running_loop()
    loop.add_reader(ours, read)
    try:
        yield ours, shown
    finally:
        await host.kill()
        loop.remove_reader(ours)
        os.close(ours)


async def host_attached(running: Stack) -> None:
    async def look() -> bool:
        async with running.control() as control, control.get("/v1/hosts") as answer:
            return any(host["channel"] for host in (await answer.json())["hosts"])

    await until(look, "the session with its channel")


async def test_a_request_wakes_the_session_and_the_phone_permits(tmp_path: Path) -> None:
    try:
        program = claude_code()
    except Unavailable as error:
        pytest.skip(str(error))
    async with stack(tmp_path) as running, scripted_model() as model:
        phone = await running.phone("ada")
        agent = await phone.create_agent("home")
        model.conversations["claude-code"] = Conversation(script())
        host = RealHost("claude-code", program, running.home, running)
        host.prepare(model.url)
        # Channels are a preview behind a switch that their maker sets from afar; nobody does so here, so the settings
        # below have it set. Without telemetry they would be off all the same.
        for name in ("DISABLE_TELEMETRY", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"):
            del host.env[name]
        await add_agent(running, agent, env=host.env)
        await host.pacerelle("host", "install", "claude-code", "--channel", "--agent", agent.agent_id)
        settings = running.home / ".claude.json"
        told = json.loads(settings.read_text())
        told |= {
            "hasCompletedOnboarding": True,
            "customApiKeyResponses": {"approved": ["none"], "rejected": []},
            "cachedGrowthBookFeatures": {"tengu_harbor": True, "tengu_harbor_permissions": True},
            "projects": {str(running.home / "work"): {"hasTrustDialogAccepted": True}},
        }
        settings.write_text(json.dumps(told))
        (running.home / "work").mkdir()
        arguments = ("--dangerously-load-development-channels", "server:pacerelle", "--allowedTools", "mcp__pacerelle")
        async with terminal(host, *arguments) as (keyboard, shown):

            def screen() -> str:
                return CONTROLS.sub(b" ", bytes(shown)).decode(errors="replace")

            try:
                await until(lambda: "local development" in screen(), "its question whether the channel is ours")
                os.write(keyboard, b"\r")
                await host_attached(running)
                question = await phone.send(agent.agent_id, "make the file")
                asked = await phone.wait_for(lambda m: m.kind == "widget", DEADLINE)
                assert asked.widget is not None
                assert asked.widget.kind == "permission"
                assert "touch made-by-claude" in str(asked.widget.spec)
                assert not (running.home / "work" / "made-by-claude").exists()
                await phone.respond(asked, {"granted": True, "scope": "once"})
                answer = await phone.wait_for(lambda m: m.kind == "text" and m.reply_to == question, DEADLINE)
                assert answer.text == "It is made."
            except (AssertionError, TimeoutError) as error:
                raise AssertionError(f"{error}; it shows:\n{screen()[-3000:]}") from error
        assert (running.home / "work" / "made-by-claude").exists()
        assert "<channel source=" in model.told[0]
        assert "make the file" in model.told[0]
        assert model.conversations["claude-code"].failed is None
