"""What a relay, an agent or the network can do wrong: nothing is lost, nothing is doubled, the connection stays."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from phone_proxy import Proxy
from phone_world import DEADLINE, StartAgent

from pacerelle_phone.device import Device
from pacerelle_phone.errors import IdentityChanged, TokenRefused
from pacerelle_phone.files import File
from pacerelle_phone.model import PairedAgent
from pacerelle_protocol.errors import DecryptError
from pacerelle_protocol.signal import SignalStore, safety_code
from pacerelle_relay.server import Relay


@pytest.fixture
async def proxy(relay: Relay) -> AsyncIterator[Proxy]:
    async with Proxy(relay.url) as running:
        yield running


@pytest.fixture
async def phone(proxy: Proxy, tmp_path: Path) -> AsyncIterator[Device]:
    """A phone behind the proxy."""
    async with await Device.open(tmp_path / "phone", proxy.url) as phone:
        await phone.register("Ann")
        yield phone


TOO_LARGE = b'{"error":{"code":"too_large","message":"too large"}}'


def frame(agent: PairedAgent, **changed: Any) -> str:
    fields: dict[str, Any] = {
        "type": "MSG",
        "id": "bad-1",
        "from": agent.agent_id,
        "conversation_id": agent.conversation_id,
        "to": "someone",
        "payload_b64": "AgMEBQ==",
        "encrypted": True,
    } | changed
    return json.dumps({name: value for name, value in fields.items() if value is not None})


async def test_garbage_does_not_end_the_connection(phone: Device, proxy: Proxy, start_agent: StartAgent) -> None:
    paired = await phone.create_agent("Echo")
    await start_agent(paired)
    await phone.wait_reply(await phone.send("Echo", "before"), DEADLINE)
    after = await phone.last_seq()

    nothing = ["", "{", "[]", "null", '"text"', "{}", '{"type":7}', "[" * 100_000, "1" * 5000, '{"seq":"x"}']
    spoilt = [b"\xff\xfe"]
    notices = [
        '{"type":"READ","message_id":"\\ud800"}',
        '{"type":"READ"}',
        '{"type":"READ","message_id":5}',
        '{"type":"IDENTITY_CHANGED"}',
        '{"type":"NEWS"}',
    ]
    shown = [
        frame(paired, id="b64", payload_b64="not base64!"),
        frame(paired, id="short", payload_b64=""),
        frame(paired, id="noise"),
        frame(paired, id="plain", encrypted=False, payload_b64="aGVsbG8="),
        frame(paired, id="group", to=f"group:{paired.conversation_id}"),
        frame(paired, id="stranger", **{"from": "nobody"}),
        frame(paired, id="elsewhere", conversation_id="other"),
        frame(paired, id="no-payload", payload_b64=None),
        frame(paired, id=None),
    ]
    for bad in [*nothing, *spoilt, *notices, *shown]:
        await proxy.inject(bad)
    await phone.wait_reply(await phone.send("Echo", "after"), DEADLINE)

    told = [m async for m in _all(phone, after)]
    reasons = {m.id: m.reason for m in told if m.kind == "undecryptable"}
    assert len(reasons) == len(shown)
    assert reasons["b64"] == "bad_base64"
    assert reasons["plain"] == "not_encrypted"
    assert reasons["stranger"] == "no_session"
    assert reasons["no-payload"] == "missing_field"
    status = await phone.status()
    assert (status.link, status.unreadable) == ("connected", len([*nothing, *spoilt]) + 1)
    assert len([r for r in proxy.requests if r[1].endswith("/ws")]) == 0


async def _all(phone: Device, after: int) -> AsyncIterator[Any]:
    last = await phone.last_seq()
    async for message in phone.messages(after):
        yield message
        if message.seq >= last:
            return


async def test_a_frame_that_comes_twice_is_one_message(phone: Device, proxy: Proxy, start_agent: StartAgent) -> None:
    paired = await phone.create_agent("Echo")
    await start_agent(paired)
    await phone.wait_reply(await phone.send("Echo", "one"), DEADLINE)
    for _ in range(2):
        await proxy.inject(frame(paired, id="same", seq=1))
    await phone.wait_reply(await phone.send("Echo", "two"), DEADLINE)
    told = await phone.conversation(paired.conversation_id)
    assert [m.id for m in told].count("same") == 1


async def test_a_lost_answer_is_no_second_message(phone: Device, proxy: Proxy, start_agent: StartAgent) -> None:
    paired = await phone.create_agent("Echo")
    await start_agent(paired)
    lost = 0

    def lose_two(method: str, path: str, status: int, body: bytes) -> tuple[int, bytes] | None:
        nonlocal lost
        if path.endswith("/messages") and lost < 2:
            lost += 1
            return None
        return status, body

    proxy.answer = lose_two
    reply = await phone.wait_reply(await phone.send("Echo", "once"), DEADLINE)
    assert reply.text == "Received: once"
    await phone.wait_reply(await phone.send("Echo", "another"), DEADLINE)
    sent = [body for method, path, body in proxy.requests if path.endswith("/messages")]
    assert sent[0] == sent[1] == sent[2] != sent[3]
    told = await phone.conversation(paired.conversation_id)
    assert [m.text for m in told if m.direction == "in"] == ["Received: once", "Received: another"]


async def test_refusals_and_nonsense_are_told_apart(phone: Device, proxy: Proxy, start_agent: StartAgent) -> None:
    paired = await phone.create_agent("Echo")
    await start_agent(paired)
    await phone.wait_reply(await phone.send("Echo", "start"), DEADLINE)
    refusals = iter([(503, b"oops"), (200, b"not json"), (429, b"{}"), (413, TOO_LARGE)])
    proxy.refuse = lambda path: next(refusals, None) if path.endswith("/messages") else None
    refused = await phone.wait_sent(await phone.send("Echo", "refused in the end"), DEADLINE)
    assert (refused.state, refused.reason) == ("failed", "too_large")
    assert (await phone.wait_sent(await phone.send("Echo", "next"), DEADLINE)).state in ("sent", "read")


async def test_a_broken_connection_comes_back(phone: Device, proxy: Proxy, start_agent: StartAgent) -> None:
    await start_agent(await phone.create_agent("Echo"))
    await phone.wait_reply(await phone.send("Echo", "one"), DEADLINE)
    await proxy.drop()
    assert (await phone.wait_reply(await phone.send("Echo", "two"), DEADLINE)).text == "Received: two"
    await phone.connected(DEADLINE)


async def test_bad_keys_of_an_agent_are_refused(phone: Device, proxy: Proxy, start_agent: StartAgent) -> None:
    await start_agent(await phone.create_agent("Echo"))

    def spoil(method: str, path: str, status: int, body: bytes) -> tuple[int, bytes]:
        if path.endswith("/prekey-bundle"):
            bundle = json.loads(body)
            signature = bundle["signed_prekey_signature"]
            bundle["signed_prekey_signature"] = signature[:4] + ("B" if signature[4] != "B" else "C") + signature[5:]
            body = json.dumps(bundle).encode()
        return status, body

    proxy.answer = spoil
    message_id = await phone.send("Echo", "hello")
    held = await phone.wait_sent(message_id, 0.5)
    assert (held.state, held.reason) == ("queued", "bad_bundle")
    proxy.answer = lambda method, path, status, body: (status, body)
    assert (await phone.wait_reply(message_id, DEADLINE)).text == "Received: hello"


async def test_a_changed_or_missing_blob_is_an_error(phone: Device, proxy: Proxy, start_agent: StartAgent) -> None:
    await start_agent(await phone.create_agent("Echo"))
    await phone.send("Echo", "send file")
    [file] = (await phone.wait_for(lambda m: bool(m.files), DEADLINE)).files
    proxy.answer = lambda method, path, status, body: (status, body[:-1] + bytes([body[-1] ^ 1]))
    with pytest.raises(DecryptError) as info:
        await phone.download(file)
    assert info.value.reason == "digest_mismatch"


async def test_an_upload_is_repeated_until_it_is_there(phone: Device, proxy: Proxy, start_agent: StartAgent) -> None:
    await start_agent(await phone.create_agent("Echo"))
    failures = iter([None, (500, b"")])

    def spoil(method: str, path: str, status: int, body: bytes) -> tuple[int, bytes] | None:
        return next(failures, (status, body)) if path.endswith("/blobs") else (status, body)

    proxy.answer = spoil
    message_id = await phone.send("Echo", "", files=[File("a.txt", b"bytes", "text/plain")])
    assert (await phone.wait_reply(message_id, DEADLINE)).text == "got a.txt text/plain bytes"


async def test_a_refused_token_is_said_and_not_tried_for_ever(phone: Device, proxy: Proxy) -> None:
    await phone.connected(DEADLINE)
    proxy.refuse = lambda path: (401, b"")
    with pytest.raises(TokenRefused):
        await phone.agents()
    await proxy.drop()
    async with asyncio.timeout(DEADLINE):
        while (await phone.status()).link != "refused":  # noqa: ASYNC110 - there is no event of that
            await asyncio.sleep(0.01)
    with pytest.raises(TokenRefused):
        await phone.connected(0)


async def test_a_false_alarm_about_a_key_changes_nothing(phone: Device, proxy: Proxy, start_agent: StartAgent) -> None:
    paired = await phone.create_agent("Echo")
    await start_agent(paired)
    await phone.wait_reply(await phone.send("Echo", "one"), DEADLINE)
    await proxy.inject(json.dumps({"type": "IDENTITY_CHANGED", "agent_id": paired.agent_id}))
    await proxy.inject(json.dumps({"type": "IDENTITY_CHANGED", "agent_id": "unknown"}))
    assert (await phone.wait_reply(await phone.send("Echo", "two"), DEADLINE)).text == "Received: two"
    assert [a.identity for a in await phone.known_agents()] == ["trusted"]


async def test_a_relay_that_hands_out_its_own_keys_is_noticed(
    phone: Device, proxy: Proxy, start_agent: StartAgent
) -> None:
    paired = await phone.create_agent("Echo")
    await start_agent(paired)
    await phone.wait_reply(await phone.send("Echo", "one"), DEADLINE)
    attacker = SignalStore.create("agent:attacker").generate_prekeys(1).bundle

    def swap(method: str, path: str, status: int, body: bytes) -> tuple[int, bytes]:
        bundle = json.dumps(attacker.to_json() | {"one_time_prekey": None}).encode()
        return (status, bundle) if path.endswith("/prekey-bundle") else (status, body)

    proxy.answer = swap
    with pytest.raises(IdentityChanged):
        await phone.create_group(["Echo"], "Trap")
    assert await phone.new_safety_code(paired.agent_id) == safety_code(attacker.identity_key)
    held = await phone.wait_sent(await phone.send("Echo", "two"), 0.2)
    assert (held.state, held.reason) == ("queued", "identity_changed")

    proxy.answer = lambda method, path, status, body: (status, body)
    await proxy.inject(json.dumps({"type": "IDENTITY_CHANGED", "agent_id": paired.agent_id}))
    assert (await phone.wait_reply(held.id, DEADLINE)).text == "Received: two"


async def test_only_the_key_that_was_shown_can_be_trusted(phone: Device, proxy: Proxy, start_agent: StartAgent) -> None:
    paired = await phone.create_agent("Echo")
    await start_agent(paired)
    await phone.wait_reply(await phone.send("Echo", "one"), DEADLINE)
    code = await phone.safety_code(paired.agent_id)
    shown, later = (SignalStore.create("agent:x").generate_prekeys(1).bundle for _ in range(2))
    handed_out = shown

    def swap(method: str, path: str, status: int, body: bytes) -> tuple[int, bytes]:
        bundle = json.dumps(handed_out.to_json() | {"one_time_prekey": None}).encode()
        return (status, bundle) if path.endswith("/prekey-bundle") else (status, body)

    proxy.answer = swap
    with pytest.raises(IdentityChanged):
        await phone.create_group(["Echo"], "Trap")
    handed_out = later
    with pytest.raises(IdentityChanged):
        await phone.trust_new_key(paired.agent_id)
    assert await phone.safety_code(paired.agent_id) == code
    assert await phone.new_safety_code(paired.agent_id) == safety_code(later.identity_key)

    proxy.answer = lambda method, path, status, body: (status, body)
    await phone.trust_new_key(paired.agent_id)  # by now the agent's own key is back
    assert await phone.safety_code(paired.agent_id) == code
    assert await phone.new_safety_code(paired.agent_id) is None
    assert (await phone.wait_reply(await phone.send("Echo", "two"), DEADLINE)).text == "Received: two"
