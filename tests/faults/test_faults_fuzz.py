"""Spoilt frames of every kind, sent to a real daemon: each is accepted, noticed or quarantined, and nothing breaks."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType

from pacerelle_protocol.envelope import IncomingMessage, parse_frame
from pacerelle_protocol.errors import FrameError
from pacerelle_protocol.groups import encode_sender_key, new_group_key, seal_group
from pacerelle_protocol.history import HistoryKey, seal_record
from pacerelle_protocol.payload import encode_delivery
from tests.daemon.human import Human
from tests.daemon.polling import until
from tests.daemon.process import Daemon, daemon
from tests.daemon.scripted_relay import ScriptedRelay
from tests.faults.mutations import spoil, spoil_bytes

FILE = {
    "id": "f1", "blob_id": "b1", "key_b64": "A" * 43 + "=", "iv_b64": "A" * 16, "name": "päper.pdf",
    "mime": "application/pdf", "size": 12345, "width": 100, "height": 200, "duration_ms": 1,
}  # fmt: skip
PUBLIC = {
    "id": "f1", "name": "attachment", "mime": "application/octet-stream", "size": 12361, "blob_id": "b1",
    "sha256": "0" * 64, "thumbnail_blob_id": "b2",
}  # fmt: skip
HISTORY = HistoryKey("h1", 1, bytes(32))
SAID: list[Any] = [
    "text",
    {"kind": "chat.message", "text": "see", "attachments": [FILE, FILE | {"id": "f2"}]},
    {"type": "widget.response", "id": "r1", "ref": "w1", "v": 1, "value": {"choice": ["a", 1, None]}},
    {"type": "widget.response", "id": "r2", "ref": "w1", "v": 1, "cancelled": True},
    {"type": "widget.update", "id": "u1", "v": 1, "ref": "w1", "patch": {"spec": {"title": "t"}, "expires_at": "x"}},
    {"type": "widget.standard", "v": 1, "id": "w2", "kind": "choice", "spec": {"title": "t", "options": ["a", "b"]}},
    json.loads(encode_delivery("with a key", HISTORY)),
    json.loads(encode_delivery('{"kind":"chat.message","text":"both"}', HISTORY)),
]


def dumped(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


class Source:
    """Frames as a relay delivers them, from many devices and groups; spoilt where an `rng` says so."""

    def __init__(self, relay: ScriptedRelay, rng: random.Random, agent_id: str) -> None:
        self._relay, self._rng, self._agent_id = relay, rng, agent_id
        self._writers: list[Human] = []
        self._made = 0

    def spoilt(self) -> bytes:
        rng = self._rng
        frame = rng.choice((self._message, self._message, self._message, self._group, self._notice))()
        if rng.random() < 0.4:
            frame = spoil(frame, rng)
        raw = json.dumps(frame).encode()
        return spoil_bytes(raw, rng) if rng.random() < 0.25 else raw

    def _writer(self) -> Human:
        """One of a few devices, which are replaced now and then: a device whose key seems to change is held."""
        if self._made % 15 == 0:
            name = f"d{self._made}" if self._rng.random() < 0.8 else None
            human = Human(self._agent_id, f"eve{self._made}", f"c{self._made}", name)
            human.use_bundle(self._relay.bundles[-1], None)
            self._writers = [*self._writers[-2:], human]
        self._made += 1
        return self._rng.choice(self._writers)

    def _said(self) -> bytes:
        said = self._rng.choice(SAID)
        if self._rng.random() < 0.4:
            said = spoil(said, self._rng)
        text = dumped(said).encode("utf-8", "surrogatepass")
        return spoil_bytes(text, self._rng) if self._rng.random() < 0.2 else text

    def _message(self) -> Any:
        writer, said = self._writer(), self._said()
        frame = json.loads(writer.envelope(writer.encrypt(said)))
        if self._rng.random() < 0.3:
            frame |= {"attachments": [PUBLIC, PUBLIC | {"id": "f9"}], "reply_to_message_id": "earlier"}
        if self._rng.random() < 0.3:
            frame["history_record"] = seal_record(
                "text", HISTORY, conversation_id=writer.conversation, message_id=frame["id"], sender_id=writer.user,
                sender_type="human",
            )  # fmt: skip
        if self._rng.random() < 0.1:
            frame["encrypted"] = self._rng.choice((False, None, "true", 1))
        return frame

    def _group(self) -> Any:
        """A message of a group of its own, whose key the relay has in some state."""
        writer, rng = self._writer(), self._rng
        key = new_group_key(f"group-{self._made}-{rng.randrange(3)}")
        member = Human(self._agent_id, writer.user, key.conversation_id, writer.device)
        member.signal = writer.signal
        member.use_bundle(self._relay.bundles[-1], None)
        sealed: Any = json.loads(encode_sender_key(key))
        if rng.random() < 0.3:
            sealed = spoil(sealed, rng)
        entry = member.key_envelope(key) | {"envelope_b64": member.encrypt(dumped(sealed).encode("utf-8", "replace"))}
        listed: Any = [entry]
        if rng.random() < 0.4:
            listed = [spoil(entry, rng), entry] if rng.random() < 0.5 else spoil(listed, rng)
        self._relay.group_keys[key.conversation_id] = listed
        fields = {"to": f"group:{key.conversation_id}", "conversation_id": key.conversation_id}
        return json.loads(member.envelope(seal_group(self._said(), key), **fields))

    def _notice(self) -> Any:
        who = self._rng.choice(({"user_id": "eve0"}, {"agent_id": "a2"}, {}))
        return {"type": self._rng.choice(("IDENTITY_CHANGED", "IDENTITY_CHANGED", "NEWS", "")), **who}


class Ledger:
    """What became of an agent's frames, as the daemon's control API tells."""

    def __init__(self, control: aiohttp.ClientSession, agent_id: str) -> None:
        self._control, self._agent_id = control, agent_id
        self._after = "start"
        self._notices = 0

    async def _get(self, path: str) -> Any:
        async with self._control.get(path) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async def accepted(self) -> set[str]:
        found: set[str] = set()
        before = ""
        while True:
            page = await self._get(f"/v1/agents/{self._agent_id}/inbox?state=all&limit=500{before}")
            found |= {message["message_id"] for message in page["messages"]}
            if not page["has_more"]:
                return found
            before = f"&before={page['messages'][0]['cursor']}"

    async def quarantined(self) -> Counter[str]:
        rows = (await self._get(f"/v1/agents/{self._agent_id}/quarantine"))["quarantine"]
        counts: Counter[str] = Counter()
        for row in rows:
            counts[row["reason"]] += row["times"]
        return counts

    async def notices(self) -> int:
        """The relay's own so far; what the daemon notices by itself names the device."""
        while True:
            found = await self._get(f"/v1/events?cursor={self._after}&limit=500")
            for event in found["events"]:
                told = event["type"] == "identity.changed" and "device_id" not in event["data"]
                self._notices += told and event["agent"] == self._agent_id
            self._after = found["next_cursor"]
            if not found["events"] and not found["gap"]:
                return self._notices


def repeated(frames: list[bytes], accepted: set[str]) -> int:
    """How many frames at most were repetitions of an accepted one."""
    seen: Counter[tuple[str, str]] = Counter()
    for raw in frames:
        try:
            frame = parse_frame(raw)
        except FrameError:
            continue
        if isinstance(frame, IncomingMessage) and frame.id in accepted:
            seen[frame.id, frame.digest] += 1
    return sum(count - 1 for count in seen.values())


async def fuzz(running: Daemon, seed: int, *, frames: int) -> Counter[str]:
    """One agent's life under spoilt frames. Returns what was quarantined, by reason."""
    rng = random.Random(seed)
    agent_id = f"a{seed}"
    connector = aiohttp.UnixConnector(str(running.paths.control_sock))
    async with ScriptedRelay() as relay, aiohttp.ClientSession("http://localhost", connector=connector) as control:
        body = {"agent_id": agent_id, "token": "token", "base_url": relay.url}
        async with control.post("/v1/agents", json=body) as response:
            assert response.status == 201, await response.text()
        good = await Human.meet(relay, agent_id=agent_id, user="ada", conversation="good", device="good")
        source, ledger = Source(relay, rng, agent_id), Ledger(control, agent_id)
        await ledger.notices()  # older events may be forgotten meanwhile
        sent: list[bytes] = []
        wanted: list[str] = []
        while len(sent) < frames:
            for _ in range(20):
                sent.append(source.spoilt())
                kind = WSMsgType.BINARY if rng.random() < 0.05 else WSMsgType.TEXT
                await relay.push_raw(sent[-1], kind=kind)
            frame = good.frame(f"good {len(sent)}")
            wanted.append(json.loads(frame)["id"])
            await relay.push(frame)
            await until(lambda: wanted[-1] in relay.acked, "a good message's acknowledgement")

        async def balanced() -> bool:
            accepted = await ledger.accepted()
            found = len(accepted) + (await ledger.quarantined()).total() + await ledger.notices()
            return found <= len(sent) + len(wanted) <= found + repeated(sent, accepted)

        await until(balanced, "all frames to be accepted, in quarantine or noticed", 60)
        assert set(wanted) <= await ledger.accepted()
        async with control.post(f"/v1/agents/{agent_id}/quarantine/retry", json={}) as response:
            assert response.status == 200, await response.text()
        await until(balanced, "the same after all quarantine was tried again")
        assert relay.connections == 1
        quarantined = await ledger.quarantined()
        async with control.delete(f"/v1/agents/{agent_id}?purge=true") as response:
            assert response.status == 204
    return quarantined


def check_log(errors: str) -> None:
    assert " ERROR " not in errors, errors
    assert "Traceback" not in errors, errors


async def test_spoilt_frames(tmp_path: Path) -> None:
    async with daemon(tmp_path) as running:
        reasons = await fuzz(running, 0, frames=300)
        running.signal()
        assert await running.ended() == 0
    check_log(await running.errors())
    assert reasons.keys() > {"undecryptable", "not_encrypted", "not_json"}
    assert not reasons["internal_error"]


@pytest.mark.long
@pytest.mark.parametrize("block", range(10))
async def test_many_spoilt_frames(tmp_path: Path, block: int) -> None:
    async with daemon(tmp_path) as running:
        for seed in range(1000 + 10 * block, 1010 + 10 * block):
            async with asyncio.timeout(120):
                reasons = await fuzz(running, seed, frames=700)
            assert not reasons["internal_error"], seed
        running.signal()
        assert await running.ended() == 0
    check_log(await running.errors())
