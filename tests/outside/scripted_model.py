"""A model on this machine that follows a script, for real hosts.

It speaks Anthropic's Messages API, OpenAI's Responses API and Google's Gemini API, as far as the hosts need it.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

SERVER = "pacerelle"


@dataclass(frozen=True)
class Call:
    """The model calls a tool of ours, or with `own` one of the host's. `after` is waited for before it says so."""

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    after: asyncio.Event | None = None
    own: bool = False


Script = Generator[Call, dict[str, Any], str]
"""Yields calls and gets their results; returns the model's last words."""


class Conversation:
    """One session of a host. What was answered to so many results is answered again if it asks again."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._steps: list[Call | str] = [next(script)]
        self.failed: BaseException | None = None

    async def next(self, results: list[Any]) -> Call | str:
        while len(self._steps) <= len(results):
            try:
                step: Call | str = self._script.send(_structured(results[len(self._steps) - 1]))
            except StopIteration as done:
                step = str(done.value)
            except Exception as error:
                self.failed = error
                step = f"The script failed: {error!r}"
            self._steps.append(step)
        found = self._steps[len(results)]
        if isinstance(found, Call) and found.after is not None:
            await found.after.wait()
        return found


def _structured(result: Any) -> dict[str, Any]:
    """The tool's structured content, out of what the host makes of it for the model."""
    if isinstance(result, list):
        result = "".join(block.get("text", "") for block in result)
    text = str(result)
    found: Any = json.JSONDecoder().raw_decode(text[text.index("{") :])[0] if "{" in text else None
    if not isinstance(found, dict):
        raise AssertionError(f"the tool answered: {text}")
    return found


class ScriptedModel:
    """Serves the APIs on 127.0.0.1; each host has its own conversation and its own model, in the place of the API's
    paths that it is given."""

    def __init__(self) -> None:
        self.url = ""
        self.conversations: dict[str, Conversation] = {}
        self.told: list[str] = []  # Claude Code's whole conversation, each time that it asked
        self._ids = itertools.count(1)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        blocks = [
            block
            for message in body["messages"]
            if isinstance(message["content"], list)
            for block in message["content"]
            if block.get("type") == "tool_result"
        ]
        if any(str(tool.get("name")).startswith(f"mcp__{SERVER}__") for tool in body.get("tools", [])):
            self.told.append(json.dumps(body["messages"]))
            step = await self.conversations["claude-code"].next([block.get("content") for block in blocks])
        else:
            step = "Yes."  # a title for the session, or something like it
        block: dict[str, Any]
        if isinstance(step, Call):
            name = step.tool if step.own else f"mcp__{SERVER}__{step.tool}"
            block = {"type": "tool_use", "id": f"toolu_{next(self._ids)}", "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(step.arguments)}
        else:
            block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": step}
        usage = {"input_tokens": 1, "output_tokens": 1}
        head = {"id": f"msg_{next(self._ids)}", "type": "message", "role": "assistant", "model": body["model"]}
        head |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        why = "tool_use" if isinstance(step, Call) else "end_turn"
        return await _events(
            request,
            {"type": "message_start", "message": head},
            {"type": "content_block_start", "index": 0, "content_block": block},
            {"type": "content_block_delta", "index": 0, "delta": delta},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": why, "stop_sequence": None}, "usage": usage},
            {"type": "message_stop"},
        )

    async def responses(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        results = [item["output"] for item in body["input"] if item.get("type") == "function_call_output"]
        step = await self.conversations["codex"].next(results)
        number = next(self._ids)
        item: dict[str, Any]
        if isinstance(step, Call):
            item = {"type": "function_call", "id": f"fc_{number}", "call_id": f"call_{number}"}
            item |= {"namespace": f"mcp__{SERVER}", "name": step.tool, "arguments": json.dumps(step.arguments)}
        else:
            content = [{"type": "output_text", "text": step}]
            item = {"type": "message", "id": f"msg_{number}", "role": "assistant", "content": content}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        response = {"id": f"resp_{number}"}
        return await _events(
            request,
            {"type": "response.created", "response": response},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {"type": "response.completed", "response": response | {"usage": usage}},
        )

    async def generate(self, request: web.Request) -> web.StreamResponse:
        parts = [part for content in (await request.json())["contents"] for part in content["parts"]]
        results = [part["functionResponse"]["response"]["output"] for part in parts if "functionResponse" in part]
        step = await self.conversations["gemini"].next(results)
        part: dict[str, Any] = {"text": step}
        if isinstance(step, Call):
            part = {"functionCall": {"name": f"mcp_{SERVER}_{step.tool}", "args": step.arguments}}
        candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(f"data: {json.dumps({'candidates': [candidate]})}\r\n\r\n".encode())
        await answer.write_eof()
        return answer


async def _events(request: web.Request, *events: dict[str, Any]) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    try:
        await answer.prepare(request)
        for event in events:
            await answer.write(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
        await answer.write_eof()
    except ConnectionError:
        pass  # the host was killed
    return answer


@asynccontextmanager
async def scripted_model() -> AsyncIterator[ScriptedModel]:
    model = ScriptedModel()
    app = web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/messages", model.messages)
    app.router.add_post("/v1/responses", model.responses)
    app.router.add_post("/v1beta/models/{method:.*}", model.generate)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    model.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield model
    finally:
        await runner.cleanup()
