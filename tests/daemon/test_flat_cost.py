"""What a message writes is the same, however many were accepted before it."""

from __future__ import annotations

import json
import statistics
import uuid
from pathlib import Path

from pacerelle_protocol.payload import encode_text, pack_b64
from pacerelle_protocol.signal import PreKeyBundle, SignalStore, agent_name, human_name
from pacerelled.agent.crypto import AgentCrypto
from pacerelled.agent.intake import Intake, Result
from pacerelled.store.database import Store, Tx

FRAME = 4096 + 24  # bytes of one page in the log


class Receiver:
    """An agent's receiving side on a store of its own, and a device that writes to it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._crypto = AgentCrypto("a1", e2ee=True)
        self._intake = Intake("a1", self._crypto)
        self._human = SignalStore.create(human_name("ada", "c1", "d1"))

    async def meet(self) -> None:
        await self.store.run(self._crypto.load)
        published = await self.store.run(self._crypto.prekeys_to_publish)
        assert published is not None
        one_time = published.one_time["one_time_prekeys"][0]
        self._human.process_bundle(
            agent_name("a1"), PreKeyBundle.from_json({**published.bundle, "one_time_prekey": one_time})
        )
        await self.take(1)

        def answer(tx: Tx) -> bytes:
            self._crypto.guard(tx)
            sealed = self._crypto.signal.encrypt(human_name("ada", "c1", "d1"), b"hello")
            self._crypto.save(tx)
            return sealed

        self._human.decrypt(agent_name("a1"), await self.store.run(answer))

    async def take(self, count: int) -> None:
        """Accepts `count` messages in one transaction."""
        frames = [self._frame() for _ in range(count)]

        def job(tx: Tx) -> list[Result]:
            self._crypto.guard(tx)
            results = [self._intake.take(tx, frame) for frame in frames]
            self._crypto.save(tx)
            return results

        assert {result.outcome for result in await self.store.run(job)} == {"accepted"}

    async def pages_of_one_message(self) -> float:
        """The median of how many pages of the store a message writes."""
        counts = []
        await self.store.fold_log()
        await self.take(1)
        for _ in range(20):
            before = self.store.log_size()
            await self.take(1)
            counts.append((self.store.log_size() - before) / FRAME)
        return statistics.median(counts)

    def _frame(self) -> bytes:
        ciphertext = self._human.encrypt(agent_name("a1"), encode_text("word " * 40).encode())
        return json.dumps(
            {
                "type": "MSG",
                "id": str(uuid.uuid4()),
                "from": "ada",
                "from_device_id": "d1",
                "to": "a1",
                "conversation_id": "c1",
                "payload_b64": pack_b64(ciphertext),
                "encrypted": True,
            }
        ).encode()


async def test_a_message_writes_as_many_pages_after_thousands_as_at_first(tmp_path: Path) -> None:
    store = await Store.open(tmp_path / "store.db", bytes(32), new=True)
    try:
        receiver = Receiver(store)
        await receiver.meet()
        await receiver.take(50)
        first = await receiver.pages_of_one_message()
        for _ in range(32):
            await receiver.take(100)
        later = await receiver.pages_of_one_message()
        assert 3 <= first <= 12
        assert later <= first + 1  # its own pages may be split a little otherwise; state that grows would be hundreds
    finally:
        await store.close()
