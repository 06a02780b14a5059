"""Who is let in: hosts and origins, tokens and scopes, sizes; and that no secret shows anywhere."""

from __future__ import annotations

import asyncio
import io
import logging
import re

import pytest

from pacerelled.errors import InvalidArgument, NotPossible, UnknownAgent, UnknownToken
from pacerelled.servers.http.endpoint import MAX_BODY
from tests.daemon.polling import until

from .served import ERAS, MODERN, NOWHERE, Served

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
}


HOSTS = [
    ("127.0.0.1:{port}", 200),
    ("localhost:{port}", 200),
    ("LOCALHOST", 200),
    ("[::1]:{port}", 200),
    ("mybox:80", 200),
    ("evil.example:{port}", 421),
    ("127.0.0.1.evil.example", 421),
    ("evil.example@127.0.0.1", 421),
    ("127.0.0.1/evil.example", 421),
    ("127.0.0.1:port", 421),
    ("", 421),
]


async def test_only_known_host_names_are_answered(served: Served) -> None:
    token = await served.token()
    for host, status in HOSTS:
        async with served.raw(token, Host=host.format(port=served.port)) as raw:
            assert (await raw.post(INITIALIZE))[0] == status, host


ORIGINS = [
    ("http://localhost:{port}", 200),
    ("https://127.0.0.1", 200),
    ("http://evil.example", 403),
    ("http://localhost.evil.example", 403),
    ("null", 403),
    ("file://localhost", 403),
]


async def test_other_web_pages_are_refused(served: Served) -> None:
    token = await served.token()
    for origin, status in ORIGINS:
        async with served.raw(token, Origin=origin.format(port=served.port)) as raw:
            assert (await raw.post(INITIALIZE))[0] == status, origin


async def test_without_the_right_token_nothing_is_answered(served: Served) -> None:
    token = await served.token()
    headers = ("", "Bearer", "Bearer ", f"Basic {token}", f"Bearer {token}x", "Bearer pcl_wrong", token)
    for given in ({}, *({"Authorization": header} for header in headers)):
        async with served.raw(None, **given) as raw:
            for method in ("POST", "GET", "DELETE", "OPTIONS"):
                async with raw.http.request(method, raw.url, data=b"{}") as response:
                    assert response.status == 401
                    assert response.headers["WWW-Authenticate"].startswith('Bearer realm="pacerelle"')
                    assert "pacerelle token create" in (await response.json())["error"]["message"]
    assert served.hosts() == []


async def test_the_head_is_looked_at_before_the_token_and_other_paths_do_not_exist(served: Served) -> None:
    async with served.raw(None) as raw:
        for path in ("/", "/mcp/", "/mcp/a1", "/.well-known/oauth-protected-resource"):
            async with raw.http.get(f"http://127.0.0.1:{served.port}{path}") as response:
                assert response.status == 404
        assert (await raw.post(PING, Host="evil.example"))[0] == 421


async def test_a_body_over_the_limit_is_refused_announced_or_not(served: Served) -> None:
    async def pieces():
        for _ in range(20):
            yield b" " * (MAX_BODY // 10)

    async with served.raw(await served.token(), **{"Content-Type": "application/json"}) as raw:
        for body in (io.BytesIO(b" " * (MAX_BODY + 1)), pieces()):
            async with raw.http.post(raw.url, data=body) as response:
                assert response.status == 413
        await raw.initialize()
        text = "x" * (MAX_BODY - 300)
        result = await raw.tool("send_message", text=text, sourceMessageId="nobody's")
        assert "(code: unknown_message)" in result["content"][0]["text"]


@pytest.mark.parametrize("era", ERAS)
async def test_a_read_token_only_looks(served: Served, era: str) -> None:
    await served.ask()
    async with served.client(await served.token("watcher", "read"), era) as client:
        tools = {tool.name for tool in (await client.list_tools()).tools}
        assert tools == {"get_status", "get_history", "get_checkpoints", "read_message", "wait_for_events"}
        assert (await client.list_prompts()).prompts == []
        for name, arguments in (("wait_for_messages", {"timeoutMs": 0}), ("mark_processed", {"messageId": "m1"})):
            refused = await client.call_tool(name, arguments)
            assert refused.is_error
            assert "scope `read`" in refused.content[0].text
            assert "(code: read_only)" in refused.content[0].text
        history = await client.call_tool("get_history", {})
        assert [r["text"] for r in history.structured_content["requests"]] == ["please"]
        status = (await client.call_tool("get_status", {})).structured_content
        assert (status["claimed"], status["pending_requests"]) == (0, 1)


async def test_a_session_of_another_token_is_unknown(served: Served) -> None:
    async with served.raw(await served.token("one")) as mine, served.raw(await served.token("two")) as other:
        await mine.initialize()
        other.session_id = mine.session_id
        status, (unknown,) = await other.post(PING)
        assert status == 404
        async with other.http.delete(other.url, headers=other.headers()) as response:
            assert response.status == 404
        async with other.http.get(other.url, headers=other.headers()) as response:
            assert response.status == 404
        other.session_id = "0" * 32
        assert await other.post(PING) == (404, [unknown])  # word for word the same
        assert (await mine.call("ping"))["result"] == {}


@pytest.mark.parametrize("era", ERAS)
async def test_revoking_ends_what_is_under_way_at_once(served: Served, era: str) -> None:
    token = await served.token()
    async with served.raw(token) as raw, served.raw(await served.token("other")) as other:
        await other.initialize()
        call = {"name": "wait_for_messages", "arguments": {"timeoutMs": 30_000}}
        if era == MODERN:
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "wait_for_messages"}
            meta = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            waiting = raw.post(
                {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {**call, "_meta": meta}}, **headers
            )
        else:
            await raw.initialize()
            waiting = raw.post({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
        task = asyncio.create_task(waiting)
        await until(lambda: any(host["waiting"] for host in served.hosts()), "the call")
        await served.core.hub.access.revoke("laptop")
        status, answer = await asyncio.wait_for(task, 20)
        assert (status, [a for a in answer if "result" in a]) in ((401, []), (200, []))
        assert (await raw.post(PING))[0] == 401
        await until(lambda: [host["host"] for host in served.hosts()] == ["other"], "the session's end")
        await served.ask()
        assert (await other.tool("wait_for_messages", timeoutMs=0))["structuredContent"]["messages"]


async def test_a_body_that_ends_after_the_token_was_revoked_opens_nothing(served: Served) -> None:
    token = await served.token()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(
        b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999\r\n"
        b"Authorization: Bearer " + token.encode() + b"\r\n\r\n{"
    )
    await until(lambda: served.core.hub.access.select()[0].last_used_at, "the request")
    await served.core.hub.access.revoke("laptop")
    assert b" 401 " in await asyncio.wait_for(reader.readline(), 20)
    writer.close()


async def test_a_token_is_for_its_agents(served: Served) -> None:
    await served.core.agent(NOWHERE, "a2")
    everything, second = await served.token("all"), await served.token("second", "full", "a2")
    async with served.client(second, MODERN) as client:
        assert (await client.call_tool("get_status", {})).structured_content["agent_id"] == "a2"
    async with served.raw(second, **{"Pacerelle-Agent": "a1"}) as raw:
        assert (await raw.post(INITIALIZE))[0] == 403
    async with served.raw(everything) as raw:
        status, (body,) = await raw.post(INITIALIZE)
        assert status == 400
        assert "Pacerelle-Agent: a1, a2" in body["error"]["message"]
    async with served.raw(everything, **{"Pacerelle-Agent": "a3"}) as raw:
        assert (await raw.post(INITIALIZE))[0] == 400
    for agent in ("a1", "a2"):
        async with served.raw(everything, **{"Pacerelle-Agent": agent}) as raw:
            await raw.initialize()
            assert (await raw.tool("get_status"))["structuredContent"]["agent_id"] == agent


async def test_a_token_whose_agent_is_gone_does_not_reach_the_one_that_is_left(served: Served) -> None:
    await served.core.agent(NOWHERE, "a2")
    token = await served.token("second", "full", "a2")
    async with served.raw(token) as raw:
        await raw.initialize()
        await served.core.hub.remove_agent("a2")
        assert "(code: unknown_agent)" in (await raw.tool("get_status"))["content"][0]["text"]
    async with served.raw(token) as raw:
        await raw.initialize()
        assert "(code: unknown_agent)" in (await raw.tool("get_history"))["content"][0]["text"]


async def test_tokens_are_made_once_kept_as_digests_and_known_after_a_restart(served: Served) -> None:
    access = served.core.hub.access
    secret = await served.token("laptop", "full", "a1", "a1")
    assert re.fullmatch(r"pcl_[A-Za-z0-9_-]{43}", secret)
    for label in ("laptop", " laptop ", access.select()[0].id):
        with pytest.raises(NotPossible):
            await served.token(label)
    for label in ("", "  ", "x" * 101, "a\nb"):
        with pytest.raises(InvalidArgument):
            await served.token(label)
    with pytest.raises(UnknownAgent):
        await served.token("other", "read", "a9")
    with pytest.raises(UnknownToken):
        await access.revoke("nobody's")
    async with served.raw(secret) as raw:
        await raw.initialize()
    rows = await served.core.store.run(lambda tx: tx.all("SELECT * FROM access_tokens"))
    assert secret not in str([tuple(row) for row in rows])
    await served.restart()
    (token,) = served.core.hub.access.select()
    assert (token.label, token.scope, token.agents) == ("laptop", "full", ("a1",))
    assert token.last_used_at is not None
    assert secret not in repr(token)
    async with served.raw(secret) as raw:
        await raw.initialize()


async def test_the_last_use_is_written_once_a_minute(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    monkeypatch.setattr("pacerelled.store.access.used", lambda tx, token_id, at: written.append(at))
    async with served.raw(await served.token()) as raw:
        await raw.initialize()
        for _ in range(20):
            await raw.call("ping")
    assert len(written) == 1


async def test_no_secret_is_logged(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "pacerelled")
    caplog.set_level(logging.WARNING, "mcp")
    caplog.set_level(logging.WARNING, "sse_starlette")  # as the daemon sets them
    secret = await served.token()
    async with served.raw(secret) as raw:
        await raw.initialize()
        await raw.post(b"{secret words")
        await raw.post({"jsonrpc": "2.0", "id": 3, "method": "no/such", "params": {"x": "secret words"}})
        await raw.post(PING, Authorization=f"Bearer {secret}secret words")
        await raw.post(PING, Host="secret words")
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"secret words\r\n\r\n")
    await reader.read()
    writer.close()
    await served.core.hub.access.revoke("laptop")
    assert secret not in caplog.text
    assert "secret words" not in caplog.text
