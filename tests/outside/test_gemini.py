"""A real Gemini CLI does the whole job in one session, on the entry that `pacerelle host install` writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.stack import DEADLINE, stack
from tests.outside.node import Unavailable
from tests.outside.real_hosts import RealHost, gemini
from tests.outside.scripted_model import Call, Conversation, Script, scripted_model
from tests.outside.test_real_hosts import add_agent

pytestmark = pytest.mark.outside


def script() -> Script:
    assert (yield Call("get_status"))["pending_requests"] == 1
    (request,) = (yield Call("wait_for_messages", {"timeoutMs": 5000}))["messages"]
    source = request["message_id"]
    yield Call("save_checkpoint", {"sourceMessageId": source, "summary": "read", "nextAction": "answer"})
    widget = {"type": "widget.standard", "v": 1, "id": "w", "kind": "progress", "spec": {"title": "Work", "value": 50}}
    yield Call("send_widget", {"widgetJson": widget, "sourceMessageId": source})
    yield Call("send_message", {"text": f"re: {request['text']}", "sourceMessageId": source})
    yield Call("mark_processed", {"messageId": source})
    assert (yield Call("get_status"))["pending_requests"] == 0
    return "Done."


async def test_a_whole_session(tmp_path: Path) -> None:
    try:
        node, program = gemini()
    except Unavailable as error:
        pytest.skip(str(error))
    async with stack(tmp_path) as running, scripted_model() as model:
        phone = await running.phone("ada")
        agent = await phone.create_agent("home")
        model.conversations["gemini"] = Conversation(script())
        host = RealHost("gemini", node, running.home, running)
        arguments = [program, *host.prepare(model.url)]
        await add_agent(running, agent, env=host.env)
        await host.install(agent.agent_id)
        await host.check()
        question = await phone.send(agent.agent_id, "hello")
        await host.start(arguments)
        try:
            assert await host.end() == 0, host.words()
        finally:
            await host.kill()
        assert model.conversations["gemini"].failed is None
        reply = await phone.wait_for(lambda m: m.kind == "text" and m.reply_to == question, DEADLINE, after=0)
        assert reply.text == "re: hello"
        assert (await phone.wait_for(lambda m: m.kind == "widget", DEADLINE, after=0)).reply_to == question
