"""MCP Inspector's command line and the real daemon, through the shim and over HTTP: every tool, prompt, resource."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pacerelle_phone.device import Device
from pacerelle_phone.model import PairedAgent
from tests.e2e.stack import DEADLINE, Stack, stack, until
from tests.outside.node import Unavailable, node_22, packages

pytestmark = pytest.mark.outside

INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
WIDGET = {"type": "widget.standard", "v": 1, "id": "go", "kind": "confirm", "spec": {"title": "Go on?"}}
NEW_TITLE = {"title": "Really?"}


@dataclass
class Inspected:
    """`command` is the Inspector with all that names our server."""

    command: list[str]
    env: dict[str, str]
    phone: Device
    agent: PairedAgent
    folder: Path

    async def run(self, method: str, *args: str) -> Any:
        """The result that it prints. Raises AssertionError with what it says if it fails."""
        child = await asyncio.create_subprocess_exec(
            *self.command, "--method", method, *args,
            cwd=self.folder, env=self.env, stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await asyncio.wait_for(child.communicate(), DEADLINE)
        assert child.returncode == 0, f"{method} {args}: {out.decode()} {err.decode()}"
        return json.loads(out)

    async def tool(self, name: str, /, **arguments: Any) -> Any:
        pairs = [f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in arguments.items()]
        given = ["--tool-arg", *pairs] if pairs else []
        result = await self.run("tools/call", "--tool-name", name, *given)
        assert not result.get("isError"), result
        return result["structuredContent"]

    async def page(self, uri: str) -> str:
        """A resource's JSON."""
        contents = (await self.run("resources/read", "--uri", uri))["contents"]
        assert [(content["uri"], content["mimeType"]) for content in contents] == [(uri, "application/json")]
        return str(contents[0]["text"])


async def pacerelle(machine: Stack, *args: str, stdin: str = "") -> str:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pacerelle_cli", "--store-root", str(machine.root), *args,
        env={"HOME": str(machine.home), "PATH": os.environ["PATH"]},
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await asyncio.wait_for(child.communicate(stdin.encode()), DEADLINE)
    assert child.returncode == 0, err.decode()
    return out.decode()


async def through_the_shim(machine: Stack, catalogue: Path) -> list[str]:
    """The Inspector's catalogue has the form of several hosts' files."""
    await pacerelle(machine, "host", "install", "claude-desktop", "--file", str(catalogue))
    return ["--server", "pacerelle"]


async def over_http(machine: Stack, catalogue: Path) -> list[str]:
    async def address() -> Any:
        async with machine.control() as control, control.get("/v1/status") as answer:
            return (await answer.json())["http"]["url"]

    url = await until(address, "the HTTP server")
    token = json.loads(await pacerelle(machine, "--json", "token", "create", "inspector"))["secret"]
    return [url, "--transport", "http", "--header", f"Authorization: Bearer {token}"]


@pytest.fixture(params=[through_the_shim, over_http])
async def inspected(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Inspected]:
    try:
        node, inspector = node_22(), packages(INSPECTOR)
    except Unavailable as error:
        pytest.skip(str(error))
    program = inspector / "node_modules" / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build"
    async with stack(tmp_path) as machine:
        machine.configure(
            # Each call of the Inspector is a session of its own, which should not be in the next one's way.
            f"http = true\nhttp_port = 0\nclaim_grace = 0\nfiles_in = [{json.dumps(str(tmp_path / 'in'))}]\n"
            f"files_out = [{json.dumps(str(tmp_path / 'out'))}]\n"
        )
        phone = await machine.phone("ada")
        agent = await phone.create_agent("home")
        token = agent.agent_token
        await pacerelle(
            machine, "agent", "add", agent.agent_id, "--token-stdin", "--base-url", machine.relay_url, stdin=token
        )
        catalogue = tmp_path / "servers.json"
        target = await request.param(machine, catalogue)
        env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "MCP_CATALOG_PATH": str(catalogue)}
        command = [node, str(program / "index.js"), "--cli", *target]
        yield Inspected(command, env, phone, agent, tmp_path)


async def test_every_tool_prompt_and_resource(inspected: Inspected) -> None:
    tools = {tool["name"] for tool in (await inspected.run("tools/list", "--strict"))["tools"]}
    called: set[str] = set()

    async def call(name: str, /, **arguments: Any) -> Any:
        called.add(name)
        return await inspected.tool(name, **arguments)

    photo = inspected.folder / "photo.txt"
    photo.write_text("a picture")
    phone, agent = inspected.phone, inspected.agent
    began = (await call("wait_for_events", timeoutMs=0))["next_cursor"]
    question = await phone.send(agent.agent_id, "look at “this”", files=[photo])
    [received] = (await call("wait_for_events", cursor=began, timeoutMs=20000, types='["message.received"]'))["events"]
    assert received["data"]["message_id"] == question

    got = await call("wait_for_messages", timeoutMs=20000, limit=5)
    assert [message["message_id"] for message in got["messages"]] == [question]
    attachment = got["messages"][0]["attachments"][0]["id"]
    assert (await call("get_status"))["pending_requests"] == 1
    await call("save_checkpoint", sourceMessageId=question, summary="read", nextAction="answer")
    assert [row["summary"] for row in (await call("get_checkpoints"))["checkpoints"]] == ["read"]
    assert (await call("read_message", messageId=question))["content"] == "look at “this”"
    saved = await call("save_attachment", messageId=question, attachmentId=attachment)
    assert Path(saved["path"]).read_text() == "a picture"

    await call("send_message", text="got it = yes", sourceMessageId=question)
    assert (await phone.wait_reply(question, DEADLINE)).text == "got it = yes"
    widget = await call("send_widget", widgetJson=WIDGET, sourceMessageId=question)
    shown = await phone.wait_for(lambda message: message.kind == "widget", DEADLINE)
    assert shown.id == widget["message_id"]
    await call("update_widget", messageId=widget["message_id"], spec=NEW_TITLE)
    await phone.respond(shown, True)
    out = inspected.folder / "out"
    out.mkdir()
    shutil.copy(photo, out / "answer.txt")
    await call("send_file", path=str(out / "answer.txt"), sourceMessageId=question)

    listed = {page["uri"] for page in (await inspected.run("resources/list"))["resources"]}
    assert listed == {"conversation://current", "widget://pending", "inbox://pending"}
    assert agent.conversation_id in await inspected.page("conversation://current")
    assert question in await inspected.page("inbox://pending")

    async def answered() -> bool:
        return f'"ref": "{WIDGET["id"]}"' in await inspected.page("widget://pending")

    await until(answered, "the widget's answer")

    await call("mark_processed", messageId=question, note="done")
    assert (await call("get_history"))["requests"][0]["message_id"] == question
    assert called == tools

    prompts = (await inspected.run("prompts/list"))["prompts"]
    assert [prompt["name"] for prompt in prompts] == ["start_pacerelle"]
    prompt = await inspected.run("prompts/get", "--prompt-name", "start_pacerelle")
    assert "get_status" in prompt["messages"][0]["content"]["text"]


async def test_a_very_long_request_is_read_to_its_end(inspected: Inspected) -> None:
    text = "".join(f"line {number}\n" for number in range(6_000))
    await inspected.phone.send(inspected.agent.agent_id, text)
    got = await inspected.tool("wait_for_messages", timeoutMs=20000)
    message = got["messages"][0]
    whole, rest = message["text"], message["shortened"]["rest"]
    while len(whole) < len(text):
        page = json.loads(await inspected.page(rest))
        assert page["start"] == len(whole)
        whole += page["content"]
        rest = rest.partition("?")[0] + f"?start={page['next']}"
    assert whole == text
