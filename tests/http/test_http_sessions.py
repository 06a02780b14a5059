"""Sessions over HTTP: both eras, their claims, streams that break and are taken up again, restarts, and their end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from mcp.server.streamable_http import EventMessage
from mcp.shared.exceptions import MCPDeprecationWarning
from mcp_types import JSONRPCNotification, JSONRPCResponse, ResourceUpdatedNotification

from pacerelled.servers.http import endpoint, replay
from pacerelled.servers.http.replay import MAX_EVENTS, Replay
from tests.daemon.polling import until

from .served import ERAS, MODERN, Raw, Served, events

WAIT = {"name": "wait_for_messages", "arguments": {"timeoutMs": 30_000}}


@asynccontextmanager
async def stream(raw: Raw, **headers: str) -> AsyncIterator[aiohttp.ClientResponse]:
    """The session's stream for notifications, or one that is taken up again."""
    async with raw.http.get(raw.url, headers={**raw.headers(), **headers}) as response:
        yield response


async def read_until(response: aiohttp.ClientResponse, method: str) -> dict[str, Any]:
    """The first event with this notification, or with an answer for ""."""
    text = ""
    async with asyncio.timeout(30):
        while True:
            text += (await response.content.readany()).decode()
            for event in events(text):
                if event.get("message", {}).get("method", "") == method and "message" in event:
                    return event


async def begin(raw: Raw, request_id: int, params: dict[str, Any]) -> aiohttp.ClientResponse:
    """A call whose answer is not read yet."""
    body = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
    return await raw.http.post(raw.url, json=body, headers={**raw.headers(), "MCP-Protocol-Version": "2025-11-25"})


@pytest.mark.parametrize("era", ERAS)
async def test_the_official_client_does_the_whole_job(served: Served, era: str) -> None:
    await served.ask("What time is it?")
    async with served.client(await served.token(), era) as client:
        assert {"wait_for_messages", "send_message", "mark_processed"} <= {
            tool.name for tool in (await client.list_tools()).tools
        }
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["start_pacerelle"]
        assert "conversation://current" in {str(r.uri) for r in (await client.list_resources()).resources}
        found = (await client.call_tool("wait_for_messages", {})).structured_content
        assert [(m["text"], m["delivery"], m["claim"]["mine"]) for m in found["messages"]] == [
            ("What time is it?", "new", True)
        ]
        (host,) = served.hosts()
        assert (host["transport"], host["agent_id"], host["host"], host["pid"]) == ("http", "a1", "laptop", None)
        assert host["label"].endswith("(laptop)")
        await client.call_tool("save_checkpoint", {"sourceMessageId": "m1", "summary": "s", "nextAction": "n"})
        done = (await client.call_tool("mark_processed", {"messageId": "m1"})).structured_content
        assert done["processed_at"]
        content = (await client.read_resource("conversation://current")).contents[0]
        assert '"c1"' in content.text
    if era == "legacy":  # it says DELETE
        await until(lambda: served.hosts() == [], "the end")


@pytest.mark.parametrize("era", ERAS)
async def test_changes_are_told(served: Served, era: str) -> None:
    told: list[str] = []

    async def note(message: Any) -> None:
        if isinstance(message, ResourceUpdatedNotification):
            told.append(str(message.params.uri))

    async with served.client(await served.token(), era, message_handler=note) as client:
        if era == MODERN:
            async with client.listen(resource_subscriptions=["conversation://current"]) as changes:
                await served.ask()
                served.core.hub.agent("a1")._notify("conversation")
                async with asyncio.timeout(30):
                    async for change in changes:
                        told.append(str(change.uri))
                        break
        else:
            with pytest.warns(MCPDeprecationWarning):  # the other era has listen for it
                await client.subscribe_resource("conversation://current")
            await served.ask()
            served.core.hub.agent("a1")._notify("conversation")
            await until(lambda: told, "the notification")
    assert told[0] == "conversation://current"


async def test_two_sessions_get_different_requests_and_two_clients_of_a_stateless_token_are_one(served: Served) -> None:
    token = await served.token()
    async with served.raw(token) as one, served.raw(token) as two:
        await one.initialize()
        await two.initialize()
        await served.ask()
        assert len((await one.tool("wait_for_messages", timeoutMs=0))["structuredContent"]["messages"]) == 1
        assert (await two.tool("wait_for_messages", timeoutMs=0))["structuredContent"]["messages"] == []
    other = await served.token("other")
    await served.ask()
    for _ in range(2):
        async with served.client(other, MODERN) as client:
            found = (await client.call_tool("wait_for_messages", {"timeoutMs": 0})).structured_content
            assert [m["message_id"] for m in found["messages"]] == ["m2"]


async def test_clients_of_one_token_may_number_their_calls_alike(served: Served) -> None:
    """What a shim repeats under one id is one call; over HTTP it is two."""
    await served.ask()
    token = await served.token()
    for _ in range(2):
        async with served.client(token, MODERN) as client:
            saved = await client.call_tool(
                "save_checkpoint", {"sourceMessageId": "m1", "summary": "same", "nextAction": "same"}
            )
            assert not saved.is_error
    rows = await served.core.store.run(lambda tx: tx.all("SELECT * FROM calls"))
    assert rows == []


async def test_a_cancelled_wait_claims_nothing(served: Served) -> None:
    token = await served.token()
    async with served.raw(token) as raw:
        await raw.initialize()
        response = await begin(raw, 7, WAIT)
        await until(lambda: any(host["waiting"] for host in served.hosts()), "the wait")
        assert (await raw.post({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}))[
            0
        ] == 202
        await until(lambda: not any(host["waiting"] for host in served.hosts()), "the end of the wait")
        response.close()
    async with served.client(token, MODERN) as client:
        task = asyncio.create_task(client.call_tool("wait_for_messages", {"timeoutMs": 30_000}))
        await until(lambda: any(host["waiting"] for host in served.hosts()), "the wait")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: not any(host["waiting"] for host in served.hosts()), "the end of the wait")
    await served.ask()
    assert (await served.core.hub.agent("a1").status())["claimed"] == 0


async def test_an_answer_whose_connection_broke_is_sent_again(served: Served) -> None:
    async with served.raw(await served.token()) as raw:
        await raw.initialize()
        response = await begin(raw, 5, WAIT)
        first = ""
        async with asyncio.timeout(30):
            while not events(first):
                first += (await response.content.readany()).decode()
        cursor = events(first)[0]["id"]
        response.close()
        await served.ask("while it was away")
        async with stream(raw, **{"Last-Event-ID": cursor, "MCP-Protocol-Version": "2025-11-25"}) as again:
            event = await read_until(again, "")
            assert event["message"]["id"] == 5
            assert event["message"]["result"]["structuredContent"]["messages"][0]["text"] == "while it was away"
        async with stream(raw, **{"Last-Event-ID": cursor}) as again:  # as often as one likes
            assert (await read_until(again, ""))["message"] == event["message"]
            async with asyncio.timeout(30):
                assert await again.content.read() == b""  # and it ends there
        async with stream(raw, **{"Last-Event-ID": "1-nothing"}) as unknown:
            assert await unknown.content.read() == b""
    async with served.raw(await served.token("thief")) as thief:
        await thief.initialize()
        async with stream(thief, **{"Last-Event-ID": cursor}) as theirs:
            assert b"while it was away" not in await theirs.content.read()


async def test_notifications_that_were_missed_are_sent_again(served: Served) -> None:
    async with served.raw(await served.token()) as raw:
        await raw.initialize()
        await raw.call("resources/subscribe", uri="conversation://current")
        async with stream(raw) as first:
            served.core.hub.agent("a1")._notify("conversation")
            seen = await read_until(first, "notifications/resources/updated")
            async with stream(raw) as second:
                assert second.status == 409  # one stream a session
        await until(lambda: served.hosts() == [], "the client's absence")
        served.core.hub.agent("a1")._notify("conversation")
        async with stream(raw, **{"Last-Event-ID": seen["id"]}) as again:
            missed = await read_until(again, "notifications/resources/updated")
            assert missed["id"] != seen["id"]


class Follower:
    """Somebody who has taken up a stream of `store` after an event."""

    def __init__(self, store: Replay, after: str) -> None:
        self.got: list[str] = []
        self.slow = asyncio.Event()
        self.slow.set()
        self.task = asyncio.create_task(store.replay_events_after(after, self._send))

    async def _send(self, message: EventMessage) -> None:
        await self.slow.wait()
        self.got.append(str(message.event_id))

    async def ended(self) -> list[str]:
        await asyncio.wait_for(self.task, 10)
        return self.got


SMALL = JSONRPCNotification(jsonrpc="2.0", method="x")
ANSWER = JSONRPCResponse(jsonrpc="2.0", id=5, result={})


async def test_what_is_kept_for_that_is_bounded() -> None:
    store = Replay()
    ids = [await store.store_event("a\nb/ü" if n % 2 else "_GET_stream", SMALL) for n in range(MAX_EVENTS + 10)]
    assert all(each.isascii() and each.isprintable() for each in ids)
    first = Follower(store, ids[1])  # it is gone itself
    await until(lambda: first.got == ids[11::2], "what is kept")
    large = JSONRPCNotification(jsonrpc="2.0", method="x" * (replay.MAX_BYTES // 2))
    for _ in range(5):
        await store.store_event("_GET_stream", large)
    second = Follower(store, ids[0])
    await until(lambda: second.got, "what is kept")
    store.close()
    assert len(await second.ended()) == 1
    await first.ended()
    for junk in ("", "x", "-", "1", "²-_GET_stream", f"{'9' * 400}-nothing", "1-%ff"):
        assert await Follower(store, junk).ended() == []


async def test_nothing_is_left_out_between_what_was_missed_and_what_comes() -> None:
    store = Replay()
    beginning = await store.store_event("5", None)
    ids = [await store.store_event("5", SMALL)]
    follower = Follower(store, beginning)
    follower.slow.clear()
    await asyncio.sleep(0)  # it sends the first
    ids.append(await store.store_event("5", SMALL))
    await store.store_event("6", SMALL)
    follower.slow.set()
    await until(lambda: follower.got == ids, "both")
    ids.append(await store.store_event("5", ANSWER))
    assert await follower.ended() == ids
    assert await Follower(store, beginning).ended() == ids, "as often as one likes"
    assert await Follower(store, ids[-1]).ended() == [], "it has the answer"


async def test_the_newest_follower_is_the_one() -> None:
    store = Replay()
    beginning = await store.store_event("_GET_stream", SMALL)
    first, other = Follower(store, beginning), Follower(store, await store.store_event("5", None))
    await asyncio.sleep(0)
    second = Follower(store, beginning)
    await asyncio.sleep(0)
    event = await store.store_event("_GET_stream", SMALL)
    await until(lambda: event in second.got, "the event")
    assert event not in await first.ended()
    store.release("_GET_stream")
    assert await second.ended() == [event]
    assert not other.task.done()
    store.close()
    assert await other.ended() == []


async def test_a_client_that_is_gone_loses_its_requests_after_the_grace_and_one_that_is_back_does_not(
    served: Served,
) -> None:
    hub = served.core.hub
    async with served.raw(await served.token()) as raw:
        await raw.initialize()
        await served.ask()
        assert (await raw.tool("wait_for_messages", timeoutMs=0))["structuredContent"]["messages"]
        async with stream(raw):
            await until(lambda: served.hosts(), "the session")
        await until(lambda: served.hosts() == [], "the client's absence")
        assert (await hub.agent("a1").status())["claimed"] == 1
        again = (await raw.tool("wait_for_messages", timeoutMs=0))["structuredContent"]["messages"]
        assert [m["claim"]["mine"] for m in again] == [True]
        assert len(served.hosts()) == 1
        hub._sessions._grace = 0.05
        async with stream(raw):
            pass
    async with served.raw(await served.token("other")) as other:
        await other.initialize()
        found = (await other.tool("wait_for_messages", timeoutMs=20_000))["structuredContent"]["messages"]
        assert [m["delivery"] for m in found] == ["again"]


async def test_after_a_restart_sessions_are_unknown_and_a_stateless_tokens_claims_are_kept(served: Served) -> None:
    token = await served.token()
    async with served.raw(token) as raw, served.client(token, MODERN) as client:
        await raw.initialize()
        await served.ask()
        found = (await client.call_tool("wait_for_messages", {"timeoutMs": 0})).structured_content
        assert len(found["messages"]) == 1
        await served.restart()
        status, (body,) = await raw.post({"jsonrpc": "2.0", "id": 9, "method": "ping"})
        assert status == 404
        assert "initialize" in body["error"]["message"]
        raw.session_id = None
        await raw.initialize()
        assert (await raw.tool("wait_for_messages", timeoutMs=0))["structuredContent"]["messages"] == []
        found = (await client.call_tool("wait_for_messages", {"timeoutMs": 0})).structured_content
        assert [(m["delivery"], m["claim"]["mine"]) for m in found["messages"]] == [("again", True)]


async def test_delete_ends_a_session(served: Served) -> None:
    async with served.raw(await served.token()) as raw:
        await raw.initialize()
        async with raw.http.delete(raw.url, headers=raw.headers()) as response:
            assert response.status == 200
        assert (await raw.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}))[0] == 404
        await until(lambda: served.hosts() == [], "the end")


@pytest.mark.parametrize("era", ERAS)
async def test_a_silent_session_ends(served: Served, era: str) -> None:
    served.server._endpoint._idle = 0.05
    token = await served.token()
    async with served.raw(token) as raw:
        if era == "legacy":
            await raw.initialize()
            async with stream(raw):
                await asyncio.sleep(0.2)
                assert len(served.hosts()) == 1  # an open stream is no silence
        else:
            async with served.client(token, era) as client:
                await client.list_tools()
        await until(lambda: served.hosts() == [], "the end")
        await until(lambda: not served.server._endpoint._sessions, "the end")
        if era == "legacy":
            assert (await raw.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}))[0] == 404
    async with served.client(token, era) as client:  # and begins again
        assert (await client.list_tools()).tools


async def test_a_forgetful_client_costs_only_its_own_sessions(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "MAX_SESSIONS", 3)
    token, other = await served.token(), await served.token("other")
    async with served.raw(other) as kept, served.raw(token) as raw, served.raw(token) as busy:
        await kept.initialize()
        await busy.initialize()
        async with stream(busy):
            ids = []
            for _ in range(4):
                raw.session_id = None
                await raw.initialize()
                ids.append(raw.session_id)
            for session_id, status in zip(ids, (404, 404, 200, 200), strict=True):
                raw.session_id = session_id
                assert (await raw.post({"jsonrpc": "2.0", "id": 1, "method": "ping"}))[0] == status
        assert (await kept.call("ping"))["result"] == {}


async def test_what_opens_nothing_leaves_nothing(served: Served) -> None:
    token = await served.token()
    async with served.raw(token) as raw:
        for body in (b"", b"{", b"[]", b"1", {"jsonrpc": "2.0", "id": 1, "method": "ping"}):
            assert (await raw.post(body))[0] == 400
        for method in ("GET", "DELETE", "PUT"):
            async with raw.http.request(method, raw.url) as response:
                assert response.status in (400, 405)
        assert (await raw.post(b"{", **{"MCP-Protocol-Version": "1999-01-01"}))[0] == 400
    assert all(host["label"] == "laptop" for host in served.hosts())  # the token's own session, at most
    await until(lambda: len(served.server._endpoint._tasks) <= 1, "the end of what was begun")
