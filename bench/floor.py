"""The least that one durable inbound message can cost with the same libraries: decrypt, one synchronous commit."""

from __future__ import annotations

import os
import time
from pathlib import Path

from pacerelle_protocol.signal import SignalStore, agent_name, human_name
from pacerelled.store.driver import connect

from .stage import CONVERSATION, DEVICE, TEXT

ROW_BYTES = 400  # of a request, its receipt and its event, beside the text


class Floor:
    """Two ends of a conversation, and the agent's store with one table for messages and one for Signal pieces."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._conn = connect(folder / "floor.db", os.urandom(32))
        self._conn.execute("PRAGMA journal_mode = WAL")
        self._conn.execute("PRAGMA synchronous = FULL")
        self._conn.execute("CREATE TABLE messages (seq INTEGER PRIMARY KEY, body TEXT)")
        self._conn.execute("CREATE TABLE pieces (piece TEXT PRIMARY KEY, data BLOB)")
        self._names = agent_name("floor"), human_name("person-1", CONVERSATION, DEVICE)
        agent, human = self._names
        self._agent, self._human = SignalStore.create(agent), SignalStore.create(human)
        self._human.process_bundle(agent, self._agent.generate_prekeys(1).bundle)
        self._agent.decrypt(human, self._human.encrypt(agent, b"hello"))
        self._human.decrypt(agent, self._agent.encrypt(human, b"hello"))
        self._take(self._written(1))

    def seconds(self, count: int, *, batch: int = 1) -> list[float]:
        """How long each of `count` commits of `batch` messages takes."""
        times = []
        for _ in range(count):
            written = self._written(batch)
            began = time.perf_counter()
            self._take(written)
            times.append(time.perf_counter() - began)
        return times

    def close(self) -> None:
        self._conn.close()
        self._agent.close()
        self._human.close()

    def _written(self, count: int) -> list[bytes]:
        return [self._human.encrypt(self._names[0], TEXT.encode()) for _ in range(count)]

    def _take(self, messages: list[bytes]) -> None:
        self._conn.execute("BEGIN IMMEDIATE")
        for message in messages:
            text = self._agent.decrypt(self._names[1], message).decode()
            self._conn.execute("INSERT INTO messages (body) VALUES (?)", (text + " " * ROW_BYTES,))
        changes = self._agent.changes()
        self._conn.executemany("REPLACE INTO pieces (piece, data) VALUES (?, ?)", list(changes.upserts.items()))
        self._conn.execute("COMMIT")
        self._agent.mark_saved()
