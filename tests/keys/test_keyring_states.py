"""Each way in which an OS keyring can be has a name and a remedy, and none of them makes anybody wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import keyring as library
import keyring.errors
import pytest

from pacerelled.store import keyring as module
from pacerelled.store.keyring import MEANING, Keyring
from tests.keys.kept_keyring import BUS, FileKeyring


class Secretive(FileKeyring):
    """As the Secret Service: it can be locked, and asks its user for a password when something is wanted of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.locked = False
        self.asked = 0
        self.answer = threading.Event()
        self.dismissed = False
        self.hanging = False

    def get_password(self, service: str, username: str) -> str | None:
        self._unlock()
        return super().get_password(service, username)

    def set_password(self, service: str, username: str, password: str) -> None:
        self._unlock()
        super().set_password(service, username, password)

    def _unlock(self) -> None:
        if self.locked or self.hanging:
            self.asked += 1
            self.answer.wait(30)
            if self.dismissed:
                raise keyring.errors.KeyringLocked
            self.locked = self.hanging = False


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secretive]:
    before = library.get_keyring()
    backend = Secretive(tmp_path / "ring.json")
    library.set_keyring(backend)
    monkeypatch.setattr(module, "_is_locked", lambda _: backend.locked)
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    yield backend
    backend.answer.set()
    library.set_keyring(before)


async def poll(keyring: Keyring, state: str) -> None:
    async with asyncio.timeout(20):
        while await keyring.look() != state:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.02)


def test_every_state_says_what_it_means() -> None:
    for state, (meaning, remedy) in MEANING.items():
        assert meaning
        assert bool(remedy) == (state != "ready")


async def test_off_and_absent_are_known_without_asking(backend: Secretive) -> None:
    assert await Keyring(False, BUS).look() == "off"
    assert await Keyring(True, {}).look() == "absent"
    assert backend.asked == 0


async def test_ready(backend: Secretive) -> None:
    keyring = Keyring(True, BUS)
    assert await keyring.look() == "ready"
    assert await keyring.set("a", "b")
    assert await keyring.get("a") == "b"
    await keyring.delete("a")
    assert await keyring.get("a") is None
    assert keyring.state == "ready"


async def test_a_locked_one_is_not_asked_in_the_background(backend: Secretive) -> None:
    backend.locked = True
    keyring = Keyring(True, BUS)
    assert await keyring.look() == "locked"
    assert await keyring.get("a", prompt=False) is None
    assert backend.asked == 0
    assert "is locked" in str(keyring)
    assert "Unlock" in keyring.hint


async def test_one_that_asks_its_user_is_told_from_one_that_hangs(backend: Secretive) -> None:
    backend.locked = True
    keyring = Keyring(True, BUS)
    assert not await keyring.set("a", "b")
    assert keyring.state == "prompting"
    assert await keyring.get("a") is None, "nobody waits a second time"
    assert backend.asked == 1
    backend.answer.set()
    await poll(keyring, "ready")
    assert await keyring.get("a") == "b", "what was given is kept when its user has answered"


async def test_a_prompt_that_is_dismissed(backend: Secretive) -> None:
    backend.locked = backend.dismissed = True
    backend.answer.set()
    keyring = Keyring(True, BUS)
    assert not await keyring.set("a", "b")
    assert keyring.state == "locked"


async def test_one_that_hangs_is_used_again_when_it_answers(backend: Secretive) -> None:
    backend.hanging = True
    keyring = Keyring(True, BUS)
    assert await keyring.get("a") is None
    assert keyring.state == "hanging"
    backend.answer.set()
    await poll(keyring, "ready")


async def test_one_that_fails(backend: Secretive, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("secret words")

    monkeypatch.setattr(backend, "get_password", fail)
    keyring = Keyring(True, BUS)
    assert await keyring.get("a") is None
    assert keyring.state == "failed"
    assert "secret" not in str(keyring)


async def test_no_backend(backend: Secretive) -> None:
    from keyring.backends.fail import Keyring as Fail

    library.set_keyring(Fail())
    assert await Keyring(True, BUS).look() == "absent"
