from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from pacerelled.agent.event_log import EventLog
from pacerelled.store.database import Store
from tests.notify.receiver import Receiver, receiver

KEY = bytes(range(32))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    store = await Store.open(tmp_path / "store.db", KEY, new=True)
    yield store
    await store.close()


@pytest.fixture
async def log(store: Store) -> AsyncIterator[EventLog]:
    async def state() -> dict[str, Any]:
        return {"agents": []}

    log = EventLog(store, state=state)
    log.start()
    yield log
    await log.stop()


@pytest.fixture
async def hook() -> AsyncIterator[Receiver]:
    async with receiver() as running:
        yield running
