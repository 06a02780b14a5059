"""Every result stays below what hosts accept, and everything can be read all the same."""

from __future__ import annotations

import json
from typing import Any

import mcp_types
import pytest

from mcp import Client, MCPError
from pacerelled.agent.model import Attachment, Reply, Request
from pacerelled.mcp import sizes
from pacerelled.mcp.results import json_text
from pacerelled.mcp.sizes import MAX_RESULT, message_uri, parse_message_uri, shown
from pacerelled.store import replies
from pacerelled.store.database import Tx
from pacerelled.store.replies import NewReply

from .machine import ERAS, Machine, call, error

both_eras = pytest.mark.parametrize("era", ERAS)
ALPHABETS = ("abc def\n", "«→ü»", "請求書を", "😀🏴‍☠️", '"\\\t', "\x01\x7f\u2028")


def text_of(size: int, alphabet: str = "abc") -> str:
    return (alphabet * (size // len(alphabet) + 1))[:size]


def request(text: str = "", **more: Any) -> Request:
    fields: dict[str, Any] = {
        "seq": 1,
        "message_id": "m-1",
        "conversation_id": "c-1",
        "sender": "u-1",
        "device_id": "d-1",
        "group": False,
        "kind": "text",
        "received_at": "2030-01-01T09:00:00Z",
    }
    return Request(text=text, **{**fields, **more})


async def measured(host: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """A call's content, whose two forms are the same and small enough."""
    result = await host.call_tool(tool, arguments)
    assert not result.is_error, result.content
    first, *links = result.content
    assert isinstance(first, mcp_types.TextContent)
    assert len(first.text.encode()) <= MAX_RESULT
    assert json.loads(first.text) == result.structured_content
    content = dict(result.structured_content)
    rows = [row for rows in content.values() if isinstance(rows, list) for row in rows]
    short = [row["shortened"]["rest"] for row in rows if "shortened" in row]
    assert [link.uri for link in links if isinstance(link, mcp_types.ResourceLink)] == short
    return content


async def whole(host: Client, message_id: str) -> str:
    """A message, read with the tool and as a resource, page by page; both are the same."""
    pages, start = [], 0
    while start is not None:
        page = await measured(host, "read_message", messageId=message_id, start=start)
        (content,) = (await host.read_resource(message_uri(message_id, start))).contents
        assert isinstance(content, mcp_types.TextResourceContents)
        assert json.loads(content.text) == page
        assert (page["start"], page["end"] - page["start"]) == (start, len(page["content"]))
        pages.append(page["content"])
        start = page["next"]
    text = "".join(pages)
    assert len(text) == page["characters"] == page["end"]
    return text


@both_eras
@pytest.mark.parametrize("alphabet", ALPHABETS)
async def test_a_very_long_message_is_shown_in_part_and_read_in_full(machine: Machine, era: str, alphabet: str) -> None:
    text = text_of(70_000, alphabet)
    await machine.ask(text)
    async with machine.client(era) as host:
        (message,) = (await measured(host, "wait_for_messages"))["messages"]
        short = message["shortened"]
        assert message["text"] == text[: short["shown"]]
        assert 0 < short["shown"] < short["characters"] == len(text)
        assert short["rest"] == message_uri(text[:20], short["shown"])
        assert parse_message_uri(short["rest"]) == (text[:20], short["shown"])
        assert short["how"] == f"read_message {json_text({'messageId': text[:20], 'start': short['shown']})}"
        assert await whole(host, text[:20]) == text
        (seen,) = (await measured(host, "get_history"))["requests"]
        assert seen["shortened"] == short


@both_eras
async def test_the_inbox_pages_by_size_and_claims_only_what_it_shows(machine: Machine, era: str) -> None:
    texts = [f"{number:02} " + text_of(3_000 + 500 * number) for number in range(30)]
    await machine.ask(*texts)
    async with machine.client(era) as host:
        got: list[str] = []
        cursor: dict[str, str] = {}
        more = True
        while more:
            page = await measured(host, "wait_for_messages", limit=50, **cursor)
            assert page["messages"]
            got += [message["text"] for message in page["messages"]]
            assert len(await machine.claimed()) == len(got)
            cursor, more = {"afterCursor": page["cursor"]}, page["has_more"]
        full = [message if len(message) < 12_000 else None for message in got]
        assert [a for a, b in zip(got, texts, strict=True) if not b.startswith(a)] == []
        assert sum(each is not None for each in full) > 15
        pending = json.loads((await host.read_resource("inbox://pending")).contents[0].text)  # type: ignore[union-attr]
        assert 0 < len(pending["requests"]) < 30
        assert pending["has_more"]


@both_eras
async def test_the_history_pages_back_to_its_beginning(machine: Machine, era: str) -> None:
    received = [f"q{number}" + text_of(1_500, "ü") for number in range(40)]
    sent = [f"a{number}" + text_of(2_500) for number in range(25)]
    for number, text in enumerate(received):
        await machine.ask(text, conversation=f"c{number % 2}")
        if number < len(sent):
            await machine.core.store.run(lambda tx, n=number: save_reply(tx, sent[n], f"c{n % 2}"))
    async with machine.client(era) as host:
        for conversation in ({}, {"conversationId": "c0"}):
            got: dict[str, list[str]] = {"requests": [], "replies": []}
            before: dict[str, str] = {}
            more, pages = True, 0
            while more:
                page = await measured(host, "get_history", **conversation, **before)
                for kind, rows in got.items():
                    rows[:0] = [row["text"] for row in page[kind]]
                more, before = page["has_more"], {"before": page["cursor"]}
                pages += 1
            assert page["cursor"] is None
            step = 2 if conversation else 1
            assert got == {"requests": received[::step], "replies": sent[::step]}
            assert pages > 2
        few = await measured(host, "get_history", limit=2)
        assert [len(few["requests"]), few["has_more"]] == [2, True]
        for wrong in ("", "x", "1", "1.2.3", "-1.0", "9" * 30 + "."):
            assert "before" in await error(host, "get_history", before=wrong)


def save_reply(tx: Tx, text: str, conversation: str, **more: Any) -> None:
    fields: dict[str, Any] = {
        "message_id": text[:6],
        "conversation_id": conversation,
        "recipient": "ada",
        "device_id": None,
        "kind": "text",
        "text": text,
        "widget_id": None,
        "widget": None,
        "source_id": None,
        "reply_to": None,
        "envelope": "{}",
        "call_key": None,
    }
    replies.insert_reply(tx, "a1", NewReply(**{**fields, **more}))


@both_eras
async def test_checkpoints_page_and_are_never_cut(machine: Machine, era: str) -> None:
    await machine.ask(*(f"m{number}" for number in range(60)))
    async with machine.client(era) as host:
        for number in range(60):
            await call(
                host,
                "save_checkpoint",
                sourceMessageId=f"m{number}",
                summary=text_of(4_000 if number % 9 == 0 else 40, "😀"),
                nextAction=text_of(1_000, "ü"),
                hostSessionLabel=text_of(100, "字"),
            )
        got: list[str] = []
        more, after = True, {}
        while more:
            page = await measured(host, "get_checkpoints", **after)
            got += [row["source_message_id"] for row in page["checkpoints"]]
            more, after = page["has_more"], {"afterCursor": page["cursor"]}
        assert got == [f"m{number}" for number in range(60)]
        assert len((await measured(host, "get_checkpoints", limit=2))["checkpoints"]) == 2
        text = await error(host, "save_checkpoint", sourceMessageId="m1", summary="x" * 4_001, nextAction="n")
        assert "summary has 4001 characters; at most 4000 are allowed" in text


@both_eras
async def test_long_answers_to_widgets_and_long_widgets_are_read_as_json(machine: Machine, era: str) -> None:
    value = {"field": text_of(40_000), "other": [1, 2]}
    detail = {"id": "r", "ref": "w", "value": value, "cancelled": False, "widget": {"widget_id": "w", "title": "T"}}
    await machine.ask("", "again", kind="widget_response", detail=detail, files=files(3))
    widget = {"type": "widget.standard", "v": 1, "id": "w", "kind": "form", "spec": {"title": text_of(30_000, "字")}}
    await machine.core.store.run(
        lambda tx: save_reply(tx, "widget", "c1", kind="widget", widget_id="w", widget=json.dumps(widget))
    )
    async with machine.client(era) as host:
        messages = (await measured(host, "wait_for_messages"))["messages"]
        for message in messages:
            assert "widget_response" not in message
            assert (message["shortened"]["left_out"], message["shortened"]["shown"]) == (["widget_response"], 0)
            assert message["widget"] == detail["widget"]
            assert len(message["attachments"]) == 3
        history = await measured(host, "get_history")
        (reply,) = history["replies"]
        assert reply["shortened"]["left_out"] == ["widget"]
        parsed = json.loads(await whole(host, "widget"))
        assert parsed == {"text": "widget", "widget": widget}
        parsed = json.loads(await whole(host, "again"))
        assert parsed["text"] == "again"
        assert parsed["widget_response"]["value"] == value
        assert len(parsed["attachments"]) == 3
        found = json.loads((await host.read_resource("widget://pending")).contents[0].text)  # type: ignore[union-attr]
        assert found["widget_response"]["shortened"]["left_out"] == ["widget_response"]


def files(count: int) -> list[dict[str, Any]]:
    return [{"id": f"f{n}", "name": "n" * 200, "mime": "image/png", "size": 1} for n in range(count)]


def test_a_message_of_any_shape_fits_into_a_list() -> None:
    long_id, name = "字" * 512, "n" * 512
    for item in (
        request(text_of(1 << 20, "😀"), message_id=long_id, conversation_id=long_id, sender=long_id, device_id=long_id),
        request("x" * 5, attachments=tuple(Attachment(str(n), name, name, n) for n in range(900))),
        request("", kind="widget_update", widget_update={"patch": {str(n): "v" * 90 for n in range(9_000)}}),
        request(text_of(20_000), widget={"title": name * 900}, kind="widget_response", widget_response={"value": 1}),
        Reply(1, "r", "c", "u", None, "widget", text_of(90_000), "queued", "2030", widget={"a": "ü" * 90_000}),
    ):
        row = shown(item)
        assert sizes.size(row) < MAX_RESULT - 1_500
        assert "shortened" in row
        page = sizes.page(item, 0)
        assert sizes.size(page) < MAX_RESULT
        assert page["next"]


def test_what_is_short_enough_is_shown_as_it_is() -> None:
    for item in (request("hello"), request(""), request("x" * 11_000), request("ü" * 5_000)):
        assert shown(item) == item.as_dict()
        page = sizes.page(item, 0)
        assert (page["content"], page["next"], page["mime"]) == (item.text, None, "text/plain")


@both_eras
async def test_what_cannot_be_read_says_why(machine: Machine, era: str) -> None:
    await machine.ask("short")
    async with machine.client(era) as host:
        assert "start is 9, but the message has 5 characters" in await error(
            host, "read_message", messageId="short", start=9
        )
        assert "no request or reply zzz" in await error(host, "read_message", messageId="zzz")
        for uri in ("message://zzz", "message://short?start=9"):
            with pytest.raises(MCPError, match=r"zzz|5 characters"):
                await host.read_resource(uri)
        for uri in ("message://", "message://short?start=x", "message://short/x", "message:short"):
            with pytest.raises(MCPError, match="no such resource"):
                await host.read_resource(uri)
        assert (await measured(host, "read_message", messageId="short", start=5))["content"] == ""


async def test_hosts_of_old_versions_get_no_links(machine: Machine) -> None:
    await machine.ask("x" * 50_000)
    for version, count in (("2024-11-05", 1), ("2025-03-26", 1), ("2025-06-18", 2), ("2025-11-25", 2)):
        async with machine.raw(version=version) as host:
            result = await host.tool(1, "get_history")
            assert len(result["content"]) == count
            assert result["structuredContent"]["requests"][0]["shortened"]


async def test_the_status_shows_what_fits_and_says_what_does_not(machine: Machine) -> None:
    for number in range(80):
        machine.core.hub.open_session(machine.core.session(f"host {number}"))
    await machine.core.store.run(
        lambda tx: (
            [save_reply(tx, f"u{n:05}", "c" * 300) for n in range(50)]
            and tx.execute("UPDATE replies SET state = 'uncertain'")
        )
    )
    async with machine.client("legacy", machine.hello(cwd="/deep" * 800)) as host:
        status = await measured(host, "get_status")
    assert status["hosts"][0]["this_session"]
    assert len(status["hosts"]) + status["not_shown"]["hosts"] == 81
    assert len(status["uncertain_sends"]) + status["not_shown"]["uncertain_sends"] == 50
    assert status["uncertain"] == 50
