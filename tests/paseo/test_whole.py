"""All of it: a phone, a relay, the daemon, a host behind a shim, and a Paseo daemon."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.e2e.stack import Stack, stack, until
from tests.paseo.scripted import ScriptedPaseo


async def test_the_phone_asks_an_agent_wants_a_permission_the_phone_allows_and_the_host_replies(
    tmp_path: Path, paseo: ScriptedPaseo
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    async with stack(tmp_path) as machine:
        machine.configure(
            f'[paseo]\ndaemon_url = "{paseo.url}"\nhome = "{paseo.home}"\n'
            f'allowed_roots = ["{code}"]\ndefault_provider = "mock"\n'
        )
        phone = await machine.phone("ada")
        agent = await phone.create_agent("home")
        host = await machine.host(agent)
        await host.connected()
        question = await phone.send(agent.agent_id, "Tidy up my project")
        request = (await host.tool("wait_for_messages", timeoutMs=20000))["messages"][0]
        await choose(machine, agent.agent_id, request["conversation_id"])

        made = await host.tool(
            "paseo_create_agent", cwd=str(code), prompt="ask before you delete", source_message_id=question
        )
        agent_id = made["agent"]["id"]
        waits = await host.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=40)
        assert waits["state"] == "permission"

        widget = await phone.wait_for(lambda m: m.kind == "widget", 40)
        assert widget.widget is not None
        assert "rm -rf build" in widget.widget.spec["body"]
        await phone.respond(widget, {"granted": True, "scope": "once"})
        await until(lambda: paseo.asked("agent_permission_response"), "the phone's answer at Paseo")
        done = await until_done(host, agent_id)
        assert (done["state"], done["message"]) == ("finished", "It was allow.")

        waiting = await host.tool("wait_for_messages", timeoutMs=0)
        assert [m["message_id"] for m in waiting["messages"]] == [question]  # the widget's answer is no host's work
        await host.tool("send_message", text=f"It says: {done['message']}", sourceMessageId=question)
        await host.tool("mark_processed", messageId=question)
        await phone.wait_for(lambda m: m.kind == "text" and m.text == "It says: It was allow.", 40)
        async with machine.control() as control:
            listed = await (await control.get("/v1/paseo/approvals")).json()
            assert listed["conversations"][0]["conversation_id"] == request["conversation_id"]


async def choose(machine: Stack, agent_id: str, conversation_id: str) -> None:
    async with machine.control() as control:
        body = {"agent_id": agent_id}
        answer = await control.put(f"/v1/paseo/approvals/{conversation_id}", json=body)
        assert answer.status == 200, await answer.text()


async def until_done(host: Any, agent_id: str) -> Any:
    async def look() -> Any:
        found = await host.tool("paseo_wait_for_agent", agent_id=agent_id, timeout_sec=20)
        return found if found["state"] != "permission" else None

    return await until(look, "the agent's end")
