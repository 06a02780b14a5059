"""The agent's HTTP calls: what each failure is called, and that nothing takes the token's place."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pacerelled.errors import LinkError, NotConnected, RelayRejected, RelayUnreachable, TokenRefused
from pacerelled.link import rest as module
from pacerelled.link.rest import RelayRest

from .core import pieces
from .scripted_relay import ScriptedRelay

TOKEN = "secret-token"


@pytest.fixture
async def rest(relay: ScriptedRelay) -> AsyncIterator[RelayRest]:
    rest = RelayRest(relay.url, lambda: TOKEN)
    yield rest
    await rest.close()


async def test_calls(rest: RelayRest, relay: ScriptedRelay) -> None:
    await rest.publish_bundle({"a": 1})
    await rest.publish_one_time({"one_time_prekeys": []})
    assert (relay.bundles, relay.one_time) == ([{"a": 1}], [{"one_time_prekeys": []}])
    relay.group_keys["c/1 &x"] = [1]
    assert await rest.group_keys("c/1 &x") == b"[1]"
    assert b"blob0" in await rest.upload_blob(pieces(b"\x00\xff", b"", b"more"), 6)
    assert b"blob1" in await rest.upload_blob(pieces(b"of unknown", b"length"), None)
    assert [b"".join([piece async for piece in rest.download_blob(f"blob{n}")]) for n in (0, 1)] == [
        b"\x00\xffmore",
        b"of unknownlength",
    ]
    assert set(relay.tokens) == {TOKEN}


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_token(rest: RelayRest, relay: ScriptedRelay, status: int) -> None:
    relay.refuse["/agent/prekey-bundle"] = status
    with pytest.raises(TokenRefused) as refused:
        await rest.publish_bundle({})
    assert TOKEN not in str(refused.value) + refused.value.hint


@pytest.mark.parametrize("status", [302, 400, 404, 413, 429, 500, 503])
async def test_other_answers(rest: RelayRest, relay: ScriptedRelay, status: int) -> None:
    relay.refuse["/agent/prekey-bundle"] = status
    with pytest.raises(RelayRejected) as refused:
        await rest.publish_bundle({})
    assert refused.value.status == status


async def test_no_token_asks_nobody(relay: ScriptedRelay) -> None:
    rest = RelayRest(relay.url, lambda: None)
    with pytest.raises(TokenRefused):
        await rest.publish_bundle({})
    await rest.close()
    assert relay.bundles == []


async def test_an_answer_that_is_too_large(
    rest: RelayRest, relay: ScriptedRelay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_BLOB", 1000)
    relay.blobs["big"] = b"x" * 5000
    with pytest.raises(LinkError):
        [piece async for piece in rest.download_blob("big")]


async def test_servers_that_are_none(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers = [b"", b"SSH-2.0\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"]

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answers[0])
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        rest = RelayRest(url, lambda: TOKEN)
        for _ in range(3):
            with pytest.raises(RelayUnreachable):
                await rest.group_keys("c1")
            answers.pop(0)
        await rest.close()
    rest = RelayRest(url, lambda: TOKEN)
    with pytest.raises(RelayUnreachable):
        await rest.group_keys("c1")
    await rest.close()
    assert TOKEN not in caplog.text


async def test_a_silent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.read()
        finally:
            writer.close()

    monkeypatch.setattr(module, "TIMEOUT", module.aiohttp.ClientTimeout(total=0.1))
    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        rest = RelayRest(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", lambda: TOKEN)
        with pytest.raises(RelayUnreachable):
            await rest.publish_bundle({})
        await rest.close()


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf"])
async def test_closing_ends_what_waits_for_a_server(answer: bytes) -> None:
    asked = asyncio.Event()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        asked.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        rest = RelayRest(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", lambda: TOKEN)
        calls = [asyncio.create_task(rest.group_keys(name)) for name in ("c1", "c2")]
        await asked.wait()
        await rest.close()
        for call in calls:
            with pytest.raises(NotConnected):
                await call
        await rest.close()
        with pytest.raises(NotConnected):
            await rest.group_keys("c1")


async def test_netrc_does_not_take_the_token_s_place(
    rest: RelayRest, relay: ScriptedRelay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / ".netrc"
    netrc.write_text("machine 127.0.0.1 login me password other\ndefault login me password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("HOME", str(tmp_path))
    await rest.publish_bundle({})
    assert relay.tokens == [TOKEN]


async def test_the_environment_s_proxy_is_used(monkeypatch: pytest.MonkeyPatch, relay: ScriptedRelay) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append((await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]")
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        monkeypatch.setenv("no_proxy", "")
        rest = RelayRest("http://relay.invalid", lambda: TOKEN)
        assert await rest.group_keys("c1") == b"[]"
        await rest.close()
        assert asked == [b"GET http://relay.invalid/agent/group-keys?conversation_id=c1 HTTP/1.1"]
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        rest = RelayRest(relay.url, lambda: TOKEN)
        await rest.publish_bundle({})
        await rest.close()
        assert len(asked) == 1
