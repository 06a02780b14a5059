"""The server through the official SDK's client, in both protocol eras, over a real socket."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mcp_types
import pytest
from mcp.client.subscriptions import ResourceUpdated, listen
from mcp_client import DEADLINE, ERAS, Daemon, client, hello, raw, until
from mcp_hub import HubDouble

from mcp import Client, MCPError
from pacerelled.errors import NotPossible, StoreUnavailable
from pacerelled.mcp import channel, texts, tools
from pacerelled.mcp import server as mcp_server
from pacerelled.mcp.paseo import texts as coding
from pacerelled.mcp.schemas import TOOLS

both_eras = pytest.mark.parametrize("era", ERAS)

NAMES = [
    "get_status",
    "wait_for_messages",
    "wait_for_events",
    "send_message",
    "send_widget",
    "update_widget",
    "mark_processed",
    "get_history",
    "read_message",
    "save_checkpoint",
    "get_checkpoints",
    "send_file",
    "save_attachment",
]


async def call(host: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """A call's structured content, which must also be its text."""
    result = await host.call_tool(tool, arguments)
    assert not result.is_error, result.content
    (content,) = result.content
    assert isinstance(content, mcp_types.TextContent)
    assert json.loads(content.text) == result.structured_content
    return dict(result.structured_content)


async def error(host: Client, tool: str, arguments: dict[str, Any]) -> str:
    result = await host.call_tool(tool, arguments)
    assert result.is_error
    assert result.structured_content is None
    (content,) = result.content
    assert isinstance(content, mcp_types.TextContent)
    return content.text


def schemas(schema: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a schema, itself included."""
    yield schema
    for each in schema.get("properties", {}).values():
        yield from schemas(each)
    if "items" in schema:
        yield from schemas(schema["items"])


@both_eras
async def test_a_host_sees_the_tools_the_prompt_and_the_resources(daemon: Daemon, era: str) -> None:
    async with client(daemon.path, era) as host:
        listed = (await host.list_tools()).tools
        prompts = (await host.list_prompts()).prompts
        resources = (await host.list_resources()).resources
        (template,) = (await host.list_resource_templates()).resource_templates
    assert [tool.name for tool in listed] == NAMES
    assert [prompt.name for prompt in prompts] == ["start_pacerelle"]
    assert [str(resource.uri) for resource in resources] == [
        "conversation://current",
        "widget://pending",
        "inbox://pending",
    ]
    assert template.uri_template == "message://{message_id}{?start}"
    for tool in listed:
        assert tool.title
        assert tool.description
        assert tool.annotations is not None
        assert tool.annotations.destructive_hint is False
        assert tool.annotations.read_only_hint is tool.name.startswith(("get_", "read_", "wait_for_events"))
        assert tool.annotations.open_world_hint is tool.name.startswith(("send_", "update_"))
        assert tool.annotations.idempotent_hint is not (tool.name.startswith("send_") or tool.name == "save_attachment")
        assert tool.output_schema is not None
        for top in (tool.input_schema, tool.output_schema):
            assert top["type"] == "object"
            for each in schemas(top):
                assert "type" in each
                assert not each.keys() & {"anyOf", "oneOf", "allOf", "$ref"}
        assert tool.input_schema["additionalProperties"] is False
        assert all("description" in each for each in tool.input_schema["properties"].values())


async def test_instructions_reach_hosts_of_both_eras(daemon: Daemon) -> None:
    async with client(daemon.path, "legacy") as host:
        assert host.session.instructions == texts.INSTRUCTIONS
        assert host.server_capabilities.resources is not None
        assert host.server_capabilities.resources.subscribe
    async with client(daemon.path, "auto") as host:
        assert host.protocol_version == "2026-07-28"
        assert host.session.instructions == texts.INSTRUCTIONS
        assert host.server_capabilities.resources is not None
        assert host.server_capabilities.resources.subscribe
    for name in NAMES:
        if name != "get_history":
            assert name in texts.INSTRUCTIONS


def test_no_host_cuts_anything_off() -> None:
    assert len(texts.INSTRUCTIONS + coding.INSTRUCTIONS + channel.INSTRUCTIONS) <= texts.LIMIT
    for spec in TOOLS.values():
        assert len(str(spec.tool.description)) <= texts.LIMIT


@pytest.mark.parametrize("version", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2099-01-01"])
async def test_every_handshake_version_is_served(daemon: Daemon, version: str) -> None:
    async with raw(daemon.path, initialized=False) as host:
        answer = await host.ask(
            1, "initialize", protocolVersion=version, capabilities={}, clientInfo={"name": "n", "version": "1"}
        )
        assert answer["result"]["protocolVersion"] == (version if version < "2026" else "2025-11-25")
        await host.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        assert (await host.call(2, "get_status"))["result"]["isError"] is False


@both_eras
async def test_a_request_is_taken_answered_and_marked(daemon: Daemon, era: str) -> None:
    await daemon.agent.put("Write the report")
    async with client(daemon.path, era) as host:
        got = await call(host, "wait_for_messages")
        (message,) = got["messages"]
        assert message["text"] == "Write the report"
        assert message["text_is"]
        assert got["notice"]
        assert (got["cursor"], got["has_more"], got["connection"]) == ("1", False, "connected")
        sent = await call(host, "send_message", text="Done", sourceMessageId="m1")
        assert (sent["message_id"], sent["state"]) == ("r1", "queued")
        assert "text" not in sent
        sent = await call(host, "send_widget", widgetJson={"kind": "confirm"}, sourceMessageId="m1")
        assert sent["widget_id"] == "w1"
        await call(host, "send_widget", widgetJson='{"kind": "confirm"}')
        for spec in ({"title": "Really?"}, '{"title": "Really?"}'):
            await call(host, "update_widget", messageId="r2", spec=spec, expiresAt="2030-01-01T00:00:00Z")
            assert daemon.agent.calls[-1][1]["spec"] == {"title": "Really?"}
        marked = await call(host, "mark_processed", messageId="m1", note="sent")
        assert (marked["message_id"], marked["note"]) == ("m1", "sent")
        assert marked["processed_at"]
        assert "text" not in marked
        assert await call(host, "wait_for_messages", timeoutMs=0) == {
            "messages": [],
            "cursor": None,
            "has_more": False,
            "connection": "connected",
        }
        history = await call(host, "get_history", limit=5)
        assert [len(history[k]) for k in ("requests", "replies")] == [1, 5]
        assert history["notice"]
    named = dict(daemon.agent.calls)
    assert named["send_message"]["source_message_id"] == "m1"
    assert named["send_widget"]["widget"] == '{"kind": "confirm"}'
    assert named["history"] == {"conversation_id": None, "limit": 5, "before": None}


@both_eras
async def test_files_go_both_ways(daemon: Daemon, era: str) -> None:
    await daemon.agent.put("Sign this")
    async with client(daemon.path, era) as host:
        saved = await call(host, "save_attachment", messageId="m1", attachmentId="f1")
        assert (saved["path"], saved["size"]) == ("/home/ada/Downloads/Pacerelle/a (2).pdf", 100)
        assert "data" in saved["notice"]
        sent = await call(host, "send_file", path="~/signed.pdf", sourceMessageId="m1", idempotencyKey="k")
        assert (sent["message_id"], sent["state"]) == ("r1", "queued")
    named = dict(daemon.agent.calls)
    assert named["save_attachment"] == {"message_id": "m1", "attachment_id": "f1", "directory": None}
    assert {name: value for name, value in named["send_path"].items() if value} == {
        "path": "~/signed.pdf",
        "source_message_id": "m1",
        "idempotency_key": "k",
        "call_id": named["send_path"]["call_id"],
    }
    assert named["send_path"]["call_id"]


@both_eras
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("save_attachment", {"messageId": "m", "attachmentId": "f"}), ("send_file", {"path": "/f"})],
)
async def test_the_progress_of_a_file_is_told_now_and_then(
    daemon: Daemon, era: str, tool: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "TRANSFER_EVERY", 0.1)
    daemon.agent.slow_transfers = True
    told: list[tuple[float, float | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total))

    async with client(daemon.path, era) as host:
        assert not (await host.call_tool(tool, arguments, progress_callback=note)).is_error
    assert 1 <= len(told) < 50
    assert told == sorted(set(told))
    assert {total for _, total in told} == {100.0}


@both_eras
async def test_checkpoints(daemon: Daemon, era: str) -> None:
    async with client(daemon.path, era) as host:
        saved = await call(
            host, "save_checkpoint", sourceMessageId="m1", summary="s", nextAction="n", hostSessionLabel="desk"
        )
        assert saved["host_session_label"] == "desk"
        await call(host, "save_checkpoint", sourceMessageId="m2", summary="s", nextAction="n", status="completed")
        assert [c["source_message_id"] for c in (await call(host, "get_checkpoints"))["checkpoints"]] == ["m1"]
        assert len((await call(host, "get_checkpoints", includeCompleted=True))["checkpoints"]) == 2


@both_eras
async def test_status_names_problems_and_hosts(daemon: Daemon, era: str) -> None:
    daemon.hub.problems = [
        {"code": "relay_unreachable", "message": "m", "hint": "h", "agent_id": "a1"},
        {"code": "other", "message": "m", "hint": "h", "agent_id": "a2"},
        {"code": "disk_full", "message": "m", "hint": "h"},
    ]
    await daemon.agent.put()
    async with client(daemon.path, era) as host, client(daemon.path, era) as other:
        await call(other, "wait_for_messages")
        status = await call(host, "get_status")
    assert (status["connection"], status["pending_requests"], status["uncertain_sends"]) == ("connected", 1, [])
    assert (status["login"], status["claimed"], status["last_traffic_age_s"]) == ("ok", 1, 1.5)
    assert [p["code"] for p in status["problems"]] == ["relay_unreachable", "disk_full"]
    assert sorted(h["this_session"] for h in status["hosts"]) == [False, True]
    assert {h["label"] for h in status["hosts"]} == {"test-host 7"}


@both_eras
async def test_the_host_is_known_by_its_name(daemon: Daemon, era: str) -> None:
    async with client(daemon.path, era, hello(host="codex", cwd="/x")) as host:
        (session,) = daemon.hub.open
        before = session.last_active
        await call(host, "get_status")
        assert (session.client, session.client_version) == ("test-host", "7")
        assert session.last_active > before
    await until(lambda: daemon.hub.closed == [session])


async def test_a_name_cannot_write_on_terminals(daemon: Daemon) -> None:
    async with raw(daemon.path, initialized=False) as host:
        info = {"name": "evil\x1b[2J" + "x" * 500, "version": "\n"}
        await host.ask(1, "initialize", protocolVersion="2025-11-25", capabilities={}, clientInfo=info)
        (session,) = daemon.hub.open
        assert session.client is not None
        assert session.client.startswith("evil[2Jxxx")
        assert len(session.client) < 101
        assert session.client_version is None


@both_eras
async def test_a_wait_ends_when_a_request_arrives(daemon: Daemon, era: str) -> None:
    async with client(daemon.path, era) as host:
        waiting = asyncio.create_task(call(host, "wait_for_messages", timeoutMs=30_000))
        await until(lambda: daemon.hub.open[0].waiting)
        await call(host, "get_status")  # answered meanwhile
        await daemon.agent.put("now")
        assert [m["text"] for m in (await waiting)["messages"]] == ["now"]


@both_eras
async def test_progress_is_told_to_a_host_that_asked_for_it(
    daemon: Daemon, era: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "PROGRESS_EVERY", 0.02)
    told: list[tuple[float, float | None]] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append((progress, total))

    async with client(daemon.path, era) as host:
        waiting = asyncio.create_task(host.call_tool("wait_for_messages", {}, progress_callback=note))
        await until(lambda: len(told) >= 3)
        await daemon.agent.put()
        assert not (await waiting).is_error
        assert told == sorted(told)
        assert {total for _, total in told} == {25.0}
    async with raw(daemon.path) as other:
        await other.call(1, "wait_for_messages", timeoutMs=200)  # asked for none: the answer is the next line


@both_eras
async def test_a_cancelled_wait_claims_nothing_and_is_not_answered(daemon: Daemon, era: str) -> None:
    async with client(daemon.path, era) as host:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await host.call_tool("wait_for_messages", {})
        await until(lambda: daemon.agent.cancelled == 1)
        await daemon.agent.put()
        assert daemon.agent.claims == {}
        assert (await call(host, "wait_for_messages"))["messages"]


async def test_a_wait_can_be_cancelled_by_a_notification(daemon: Daemon) -> None:
    async with raw(daemon.path) as host:
        params = {"name": "wait_for_messages", "arguments": {}}
        await host.send({"jsonrpc": "2.0", "id": "w", "method": "tools/call", "params": params})
        await until(lambda: daemon.hub.open[0].waiting)
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "w"}}
        await host.send(cancel)
        await until(lambda: daemon.agent.cancelled == 1)
        assert (await host.call("next", "get_status"))["id"] == "next"


async def test_a_repeated_call_is_the_same_call_and_ids_have_types(daemon: Daemon) -> None:
    same = hello()
    async with raw(daemon.path, same) as host:
        first = await host.call(1, "send_message", text="a")
        other = await host.call("1", "send_message", text="a")
    async with raw(daemon.path, same) as host:
        again = await host.call(1, "send_message", text="a")
    ids = [answer["result"]["structuredContent"]["message_id"] for answer in (first, other, again)]
    assert ids == ["r1", "r2", "r1"]
    assert [c["call_id"] for _, c in daemon.agent.calls] == ["1", '"1"', "1"]


@both_eras
async def test_an_uncertain_reply_is_sent_again_by_its_id_alone(daemon: Daemon, era: str) -> None:
    async with client(daemon.path, era) as host:
        await call(host, "send_message", text="a", idempotencyKey="k")
        assert daemon.agent.calls[-1][1]["idempotency_key"] == "k"
        assert (await call(host, "send_message", retryMessageId="r1", text=None))["message_id"] == "r1"
        assert daemon.agent.calls[-1] == ("retry_reply", {"message_id": "r1"})
        assert "uncertain_sends" in await error(host, "send_message", {"retryMessageId": "r9"})
        assert "goes alone, without text" in await error(host, "send_message", {"retryMessageId": "r1", "text": "b"})
        assert "spec must be an object" in await error(host, "update_widget", {"messageId": "r1", "spec": "[1]"})


@both_eras
async def test_wrong_calls_are_tool_errors_that_say_what_to_do(daemon: Daemon, era: str) -> None:
    async with client(daemon.path, era) as host:
        text = await error(host, "send_message", {"text": "a", "source_message_id": "m1"})
        assert "did you mean sourceMessageId" in text
        assert 'A right call: send_message {"text"' in text
        assert "did you mean send_message?" in await error(host, "sendMessage", {})
        assert "get_checkpoints" in await error(host, "launch", {})
        assert "Leave afterCursor out" in await error(host, "wait_for_messages", {"afterCursor": "abc"})
        assert "cursor" in await error(host, "wait_for_messages", {"afterCursor": "9" * 19})
        assert "there is no request m9\nTake the message_id" in await error(host, "mark_processed", {"messageId": "m9"})
        assert [name for name, _ in daemon.agent.calls] == ["mark_processed"]


@both_eras
async def test_arguments_that_are_no_object_are_refused_with_the_reason(daemon: Daemon, era: str) -> None:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    async with raw(daemon.path, initialized=era == "legacy") as host:
        more = {} if era == "legacy" else {"_meta": meta}
        for wrong in ([1], "{}", 7):
            answer = await host.ask(1, "tools/call", name="get_status", arguments=wrong, **more)
            assert answer["error"]["code"] == -32602
            assert "must be a JSON object" in answer["error"]["message"]
        answer = await host.ask(1, "tools/call", name="get_status", arguments=None, **more)
        assert answer["result"]["isError"] is False


@both_eras
async def test_failures_of_the_domain_name_cause_and_next_step(
    daemon: Daemon, era: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(daemon.path, era) as host:
        daemon.agent.fail = NotPossible("Already processed by Codex.", hint="Nothing to do.")
        assert (
            await error(host, "get_history", {}) == "Already processed by Codex.\nNothing to do.\n(code: not_possible)"
        )
        daemon.agent.fail = StoreUnavailable("The disk is full.")
        assert "A right call: get_history" in await error(host, "get_history", {})
        daemon.agent.fail = ValueError("the secret text")
        with caplog.at_level(logging.DEBUG):
            text = await error(host, "send_message", {"text": "the secret text"})
            with pytest.raises(MCPError, match="reference"):
                await host.read_resource("conversation://current")
        assert "secret" not in text
        assert "Traceback" not in text
        reference = text.split("reference ")[1][:8]
        (record,) = [r for r in caplog.records if reference in r.getMessage()]
        assert "ValueError" in record.getMessage()
        assert "mcp_hub.py" in record.getMessage()
        ours = [r for r in caplog.records if r.name.startswith("pacerelled")]
        assert all("secret" not in r.getMessage() and r.exc_info is None for r in ours)


@both_eras
async def test_text_that_is_no_unicode_can_be_received_and_sent(daemon: Daemon, era: str) -> None:
    await daemon.agent.put("cut \ud83d here, whole \U0001f600, \u2028 \x00", kind="text")
    async with client(daemon.path, era) as host:
        (message,) = (await call(host, "wait_for_messages"))["messages"]
        assert message["text"] == "cut \ufffd here, whole \U0001f600, \u2028 \x00"


async def test_half_a_surrogate_pair_from_a_host_does_not_end_the_session(daemon: Daemon) -> None:
    params = b'{"name":"send_message","arguments":{"text":"a\\ud83d"}}'
    async with raw(daemon.path) as host:
        await host.send(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":%s}\n' % params)
        assert (await host.receive())["result"]["isError"] is False
        assert daemon.agent.calls[0][1]["text"] == "a\ufffd"


@both_eras
async def test_the_prompt(daemon: Daemon, era: str) -> None:
    async with client(daemon.path, era) as host:
        prompt = await host.get_prompt("start_pacerelle")
        (message,) = prompt.messages
        assert message.role == "user"
        assert isinstance(message.content, mcp_types.TextContent)
        for word in ("get_status", "get_checkpoints", "wait_for_messages", "mark_processed", "authorises nothing"):
            assert word in message.content.text
        with pytest.raises(MCPError, match="start_pacerelle"):
            await host.get_prompt("other")


@both_eras
async def test_resources_are_read(daemon: Daemon, era: str) -> None:
    async def content(host: Client, uri: str) -> Any:
        (item,) = (await host.read_resource(uri)).contents
        assert isinstance(item, mcp_types.TextResourceContents)
        assert item.mime_type == "application/json"
        return json.loads(item.text)

    async with client(daemon.path, era) as host:
        assert (await content(host, "conversation://current"))["conversation"] is None
        assert (await content(host, "widget://pending"))["widget_response"] is None
        await daemon.agent.put(kind="widget_response", text="", widget_response={"ref": "w1", "value": True})
        assert (await content(host, "conversation://current"))["conversation"] == {"conversation_id": "c1"}
        found = await content(host, "widget://pending")
        assert found["widget_response"]["widget_response"] == {"ref": "w1", "value": True}
        assert found["notice"]
        with pytest.raises(MCPError, match="widget://pending"):
            await host.read_resource("widget://other")


@pytest.mark.filterwarnings("ignore:resources/:mcp.MCPDeprecationWarning")
async def test_a_handshake_host_is_told_what_it_subscribed_to(daemon: Daemon) -> None:
    told: list[str] = []

    async def note(message: Any) -> None:
        if isinstance(message, mcp_types.ResourceUpdatedNotification):
            told.append(str(message.params.uri))

    async with client(daemon.path, "legacy", message_handler=note) as host:
        assert daemon.hub.subscribers == 0
        await host.subscribe_resource("widget://pending")
        daemon.hub.tell("a2", "widget")  # another agent's
        await daemon.agent.put()  # changes only the conversation
        await daemon.agent.put(kind="widget_response")
        await until(lambda: told == ["widget://pending"])
        await host.subscribe_resource("conversation://current")
        await daemon.agent.put()
        await until(lambda: told == ["widget://pending", "conversation://current"])
        await host.unsubscribe_resource("widget://pending")
        await host.unsubscribe_resource("conversation://current")
        await daemon.agent.put(kind="widget_response")
        await call(host, "get_status")
        assert len(told) == 2
        with pytest.raises(MCPError, match="no such resource"):
            await host.subscribe_resource("widget://other")
    await until(lambda: daemon.hub.subscribers == 0)


async def test_a_modern_host_listens(daemon: Daemon) -> None:
    async with client(daemon.path, "2026-07-28") as host:
        async with listen(host.session, resource_subscriptions=["widget://pending"]) as changes:
            await daemon.agent.put()
            await daemon.agent.put(kind="widget_response")
            async with asyncio.timeout(DEADLINE):
                assert await anext(aiter(changes)) == ResourceUpdated("widget://pending")
        await call(host, "get_status")
    await until(lambda: daemon.hub.subscribers == 0)


@pytest.mark.parametrize("known", [[], ["a1", "a2"]])
@both_eras
async def test_without_an_agent_a_host_starts_and_every_call_says_what_to_do(
    tmp_path: Path, era: str, known: list[str]
) -> None:
    daemon = Daemon(tmp_path / "mcp.sock", HubDouble(*known))
    daemon.server.start()
    try:
        async with client(daemon.path, era) as host:
            assert len((await host.list_tools()).tools) == len(NAMES)
            assert "PACERELLE_AGENT_ID" in await error(host, "get_status", {})
            with pytest.raises(MCPError, match="PACERELLE_AGENT_ID"):
                await host.read_resource("widget://pending")
    finally:
        await daemon.server.stop()


async def test_a_host_has_only_so_many_calls_at_a_time(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "MAX_IN_FLIGHT", 3)
    async with raw(daemon.path) as host:
        params = {"name": "wait_for_messages", "arguments": {}}
        for request_id in range(1, 4):
            await host.send({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params})
        await until(lambda: daemon.hub.open[0].waiting == 3)
        assert "At most 3" in (await host.call(4, "get_status"))["error"]["message"]
        await host.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await until(lambda: daemon.agent.cancelled == 1)
        assert (await host.call(5, "get_status"))["result"]["isError"] is False


async def test_a_hundred_calls_while_one_waits(daemon: Daemon) -> None:
    async with client(daemon.path, "legacy") as host:
        waiting = asyncio.create_task(call(host, "wait_for_messages", timeoutMs=30_000))
        await until(lambda: daemon.hub.open[0].waiting)
        await asyncio.gather(*(call(host, "get_status") for _ in range(100)))
        assert not waiting.done()
        await daemon.agent.put()
        await waiting
