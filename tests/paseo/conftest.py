from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.paseo.scene import Scene
from tests.paseo.scripted import ScriptedPaseo


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that comes back is found soon."""
    monkeypatch.setattr("pacerelled.paseo.connection.RECONNECT_MAX", 0.2)


@pytest.fixture
async def paseo(tmp_path: Path) -> AsyncIterator[ScriptedPaseo]:
    """A daemon of the older kind, that runs."""
    daemon = ScriptedPaseo(tmp_path / "paseo")
    await daemon.start()
    yield daemon
    await daemon.stop(kill=True)


@pytest.fixture
async def scene(tmp_path: Path, paseo: ScriptedPaseo) -> AsyncIterator[Scene]:
    """A bridge to it that is connected, with a store of its own."""
    scene = Scene(tmp_path, paseo)
    await scene.start()
    yield scene
    await scene.stop()
