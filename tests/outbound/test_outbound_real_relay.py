"""A real relay that takes less than we send."""

from __future__ import annotations

from pathlib import Path

import pytest

from pacerelle_phone.device import Device
from pacerelle_relay.limits import Limits
from pacerelle_relay.server import Relay, RelayConfig
from pacerelled.agent import outbox
from tests.daemon.core import Core
from tests.daemon.polling import until


async def test_a_reply_that_is_too_long_for_the_relay_fails_and_the_next_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "RETRY", 0.02)
    limits = Limits(frame_bytes=200_000)
    async with Relay(RelayConfig(tmp_path / "relay.db", limits=limits)) as relay, Core(tmp_path / "state") as core:
        phone = await Device.open(tmp_path / "phone", relay.url)
        try:
            await phone.register("Ada")
            paired = await phone.create_agent("home")
            agent = await core.hub.add_agent(paired.agent_id, token=paired.agent_token, base_url=relay.url)
            source = await phone.send("home", "tell me all")
            session = core.session()
            (request,) = (await agent.wait_for_messages(session, timeout=30)).messages
            assert request.message_id == source
            said = [
                await agent.send_message(session, text=text, source_message_id=source)
                for text in ("first", "all of it " * 30_000, "the short of it")
            ]
            ended = [await agent.wait_for_reply(reply.message_id, timeout=30) for reply in said]
            assert [reply.state for reply in ended] == ["submitted", "failed", "submitted"]
            assert ended[1].reason == "the relay does not take a message as large as this one"

            async def arrived() -> list[str]:
                found = await phone.conversation(paired.conversation_id)
                texts = [m.text for m in found if m.direction == "in"]
                return texts if len(texts) >= 2 else []

            assert await until(arrived, "the replies") == ["first", "the short of it"]
        finally:
            await phone.close()
