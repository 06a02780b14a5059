"""What the relay's files and log never hold: message text, keys, tokens, codes."""

from __future__ import annotations

import base64
import logging
import secrets
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from relay_people import SKILLED, Device, sdk_agent

from pacerelle_relay.server import RelayConfig


def forms(secret: str) -> list[bytes]:
    """How a secret could lie in a file."""
    raw = secret.encode()
    encoded = base64.b64encode(raw)
    # In base64 of a longer text it begins at one of three offsets.
    shifted = [base64.b64encode(b"\0" * i + raw)[4:-4] for i in (1, 2)]
    return [raw, raw.hex().encode(), encoded.rstrip(b"="), encoded[:-4], *shifted, raw.decode().encode("utf-16-le")]


async def test_no_text_and_no_secret_lies_in_files_or_log(
    start_relay: Any, http: aiohttp.ClientSession, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    invite = secrets.token_urlsafe(16)
    relay = await start_relay(invite=invite)
    ann = await Device.first(http, relay.url, invite=invite)
    code = (await ann.ok("POST", "/devices/codes", {}))["link_code"]
    tablet = await ann.link_another()
    agent = await ann.new_agent()
    canary = secrets.token_hex(24)
    old_token = str(agent.token)
    agent.token = (await ann.ok("POST", f"/agents/{agent.id}/token", {}))["agent_token"]
    async with sdk_agent(SKILLED, agent, tmp_path), ann.connected() as wire:
        await ann.start_session(agent, agent.conversation_id)
        await ann.write(agent, canary)
        while (answer := await wire.receive())["type"] != "MSG":
            pass
        assert canary in ann.open(agent, answer)
    for token in (old_token, f"{agent.token}x"):  # wrong tokens and bad requests are not written down either
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await http.ws_connect(f"{relay.url}/ws/agent?token={token}")
    async with agent.connected() as agent_wire:
        await agent_wire.ws.send_str('{"type": "MSG", "payload_b64": "' + canary)
        await agent_wire.send({"type": canary})
        await agent_wire.stored()
    await ann.refused(400, "malformed", "POST", "/messages", {"id": f"{canary} with spaces"})

    hidden = [canary, code, str(ann.token), str(tablet.token), old_token, str(agent.token), invite]
    files = {path: path.read_bytes() for path in data.rglob("*") if path.is_file()}
    log = "\n".join(
        record.getMessage() + str(record.exc_info) for record in caplog.records if "pacerelle" in record.name
    )
    assert answer["payload_b64"].encode() in b"".join(files.values())  # the search looks at the right place
    assert log
    for secret in hidden:
        for form in forms(secret):
            assert [path.name for path, content in files.items() if form in content] == []
        assert secret not in caplog.text
        assert secret not in log
    assert invite not in repr(RelayConfig(data / "relay.db", invite=invite))
