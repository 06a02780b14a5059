"""Where the store's key and the tokens live: credentials, keyring, file. No key is made for a store there is."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keyring as library
import keyring.backend
import pytest

from pacerelled.errors import StoreCorrupt, StoreKeyError, StoreUnavailable
from pacerelled.store import keyring as keyring_module
from pacerelled.store.custody import StoreKey, obtain_store_key, store_created, token_from_outside
from pacerelled.store.keyring import Keyring

from .disk import contents, mode

BUS = {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere"}
NO_KEYRING = Keyring(False, {})


class Backend(keyring.backend.KeyringBackend):
    """A keyring in memory, which can also fail or hang as real ones do."""

    priority = 5.0  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}
        self.calls = 0
        self.forgets = False
        self.error: Exception | None = None
        self.hang: threading.Event | None = None

    def _called(self) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error
        if self.hang is not None:
            self.hang.wait(30)

    def get_password(self, service: str, username: str) -> str | None:
        self._called()
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self._called()
        if not self.forgets:
            self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        self._called()
        del self.kept[service, username]


@pytest.fixture
def backend() -> Iterator[Backend]:
    before = library.get_keyring()
    backend = Backend()
    library.set_keyring(backend)
    yield backend
    if backend.hang is not None:
        backend.hang.set()
    library.set_keyring(before)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return state


async def obtain(state: Path, keyring: Keyring = NO_KEYRING, env: dict[str, str] | None = None) -> StoreKey:
    return await obtain_store_key(
        state, state / "store.key", state / "store.db", keyring=keyring, env=env if env is not None else {}
    )


async def made(state: Path, keyring: Keyring = NO_KEYRING, env: dict[str, str] | None = None) -> StoreKey:
    """The key of a store that has been made."""
    key = await obtain(state, keyring, env)
    assert key.new
    (state / "store.db").write_bytes(b"the store")
    store_created(state, key)
    return key


async def refused(state: Path, kind: type[Exception], *args: Any) -> Any:
    before = contents(state)
    with pytest.raises(kind) as caught:
        await obtain(state, *args)
    assert contents(state) == before
    error: Any = caught.value
    assert error.hint
    return error


def credentials(tmp_path: Path, **files: str) -> dict[str, str]:
    folder = tmp_path / "credentials"
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", "-")).write_text(text)
    return {"CREDENTIALS_DIRECTORY": str(folder)}


def encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


async def test_a_key_file_is_made_once_and_private(state: Path) -> None:
    key = await made(state)
    assert (key.source, len(key.raw)) == ("file", 32)
    assert {name: m for name, (m, _) in contents(state).items()}["store.key"] == "0o600"
    assert mode(state / "store.json") == 0o600
    again = await obtain(state)
    assert (again.raw, again.source, again.new) == (key.raw, "file", False)
    assert key.raw.hex() not in repr(key)
    assert encoded(key.raw) not in (state / "store.json").read_text()


async def test_a_key_from_a_credential(state: Path, tmp_path: Path) -> None:
    env = credentials(tmp_path, pacerelled_store_key=encoded(b"c" * 32) + "\n")
    key = await made(state, NO_KEYRING, env)
    assert (key.raw, key.source) == (b"c" * 32, "credential")
    assert not (state / "store.key").exists()
    assert (await obtain(state, NO_KEYRING, env)).raw == b"c" * 32
    error = await refused(state, StoreKeyError)
    assert "credential" in error.message


async def test_the_store_remembers_where_its_key_is(state: Path, tmp_path: Path) -> None:
    """Another key that turns up elsewhere is not tried, let alone used."""
    key = await made(state)
    env = credentials(tmp_path, pacerelled_store_key=encoded(b"c" * 32))
    assert (await obtain(state, NO_KEYRING, env)).raw == key.raw


async def test_a_missing_key_makes_no_new_one(state: Path) -> None:
    await made(state)
    (state / "store.key").unlink()
    error = await refused(state, StoreKeyError)
    assert "store.key" in error.message


async def test_a_missing_key_makes_no_new_one_without_the_note_either(state: Path) -> None:
    await made(state)
    (state / "store.key").unlink()
    (state / "store.json").unlink()
    await refused(state, StoreKeyError)


async def test_another_store_s_key(state: Path, tmp_path: Path) -> None:
    await made(state)
    other = tmp_path / "other"
    other.mkdir()
    await made(other)
    (state / "store.key").write_bytes((other / "store.key").read_bytes())
    error = await refused(state, StoreKeyError)
    assert "not the key of" in error.message


@pytest.mark.parametrize("text", ["", "nonsense", encoded(b"short"), encoded(b"x" * 33), "\x00\xff"])
async def test_an_unreadable_key(state: Path, text: str) -> None:
    await made(state)
    (state / "store.key").write_text(text)
    error = await refused(state, StoreKeyError)
    assert "store.key" in error.message
    assert text == "" or text not in error.message


async def test_a_folder_where_the_key_should_be(state: Path) -> None:
    await made(state)
    (state / "store.key").unlink()
    (state / "store.key").mkdir()
    await refused(state, StoreKeyError)


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"store_id": 1, "key_source": "file", "key_check": "x"}'])
async def test_a_damaged_note(state: Path, text: str) -> None:
    await made(state)
    (state / "store.json").write_text(text)
    await refused(state, StoreCorrupt)


async def test_a_lost_note_is_made_again(state: Path) -> None:
    key = await made(state)
    (state / "store.json").unlink()
    again = await obtain(state)
    assert (again.raw, again.new) == (key.raw, False)
    store_created(state, again)
    (state / "store.db").unlink()
    assert not (await obtain(state)).new  # remembered: a missing store is a loss


async def test_a_crash_before_the_store_was_made_begins_again_with_the_same_key(state: Path) -> None:
    key = await obtain(state)
    again = await obtain(state)
    assert (again.raw, again.new) == (key.raw, True)
    (state / "store.json").unlink()
    again = await obtain(state)
    assert (again.raw, again.new) == (key.raw, True)
    (state / "store.db").write_bytes(b"")  # made, and nothing written yet
    again = await obtain(state)
    assert (again.raw, again.new) == (key.raw, True)
    store_created(state, again)
    assert not (await obtain(state)).new


async def test_readable_files_are_taken_away_from_others(state: Path) -> None:
    await made(state)
    for name in ("store.key", "store.json"):
        (state / name).chmod(0o644)
    await obtain(state)
    assert {mode(state / name) for name in ("store.key", "store.json")} == {0o600}


async def test_a_folder_that_takes_no_files(state: Path) -> None:
    (state / ".store.key.new").mkdir()  # stands in for a full or read-only disk, also for root
    with pytest.raises(StoreUnavailable) as refused:
        await obtain(state)
    assert refused.value.hint
    assert [p.name for p in state.iterdir()] == [".store.key.new"]


# -- keyring ---------------------------------------------------------------------------------------------------


async def test_a_key_in_the_keyring(state: Path, backend: Backend) -> None:
    keyring = Keyring(True, BUS)
    key = await made(state, keyring)
    assert key.source == "keyring"
    assert backend.kept == {("pacerelled", f"store-key:{state}"): encoded(key.raw)}
    assert not (state / "store.key").exists()
    assert (await obtain(state, keyring)).raw == key.raw
    assert "keyring" in (await refused(state, StoreKeyError)).message  # switched off meanwhile


async def test_a_keyring_that_fails_is_not_used(
    state: Path, backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.error = RuntimeError("secret words")
    assert (await made(state, Keyring(True, BUS))).source == "file"
    assert "RuntimeError" in caplog.text
    assert "secret words" not in caplog.text


async def test_a_keyring_that_forgets_is_not_used(state: Path, backend: Backend) -> None:
    backend.forgets = True
    assert (await made(state, Keyring(True, BUS))).source == "file"


async def test_a_keyring_that_hangs_is_waited_for_once(
    state: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyring_module, "TIMEOUT", 0.05)
    backend.hang = threading.Event()
    keyring = Keyring(True, BUS)
    assert (await made(state, keyring)).source == "file"
    assert await keyring.get("token:x") is None
    assert not await keyring.set("token:x", "y")
    assert backend.calls == 1
    backend.hang.set()
    await asyncio.sleep(0.05)  # its late answer harms nobody


async def test_a_keyring_that_hangs_when_its_key_is_needed(
    state: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await made(state, Keyring(True, BUS))
    monkeypatch.setattr(keyring_module, "TIMEOUT", 0.05)
    backend.hang = threading.Event()
    error = await refused(state, StoreKeyError, Keyring(True, BUS))
    assert "does not answer" in error.message
    assert "Restart the keyring" in error.hint


async def test_a_system_without_a_keyring(state: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyring_module.sys, "platform", "linux")
    assert (await made(state, Keyring(True, {}))).source == "file"  # no session bus: looking could hang
    assert backend.calls == 0


async def test_the_backend_that_only_fails_is_none(state: Path) -> None:
    before = library.get_keyring()
    from keyring.backends.fail import Keyring as Fail

    library.set_keyring(Fail())
    try:
        assert (await made(state, Keyring(True, BUS))).source == "file"
    finally:
        library.set_keyring(before)


# -- tokens ----------------------------------------------------------------------------------------------------


async def test_tokens_from_outside(tmp_path: Path, backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    keyring = Keyring(True, BUS)

    async def token(agent_id: str, env: dict[str, str]) -> str | None:
        found = await token_from_outside(agent_id, keyring=keyring, env=env)
        assert found is None or found[1] in found[0], "the source is named as it is"
        return found[0] if found else None

    env = {"PACERELLE_AGENT_ID": "a1", "PACERELLE_AGENT_TOKEN": "secret-from-environment"}
    assert await token("a1", {}) is None
    await keyring.set("token:a1", "secret-from-keyring")
    assert await token("a1", {}) == "secret-from-keyring"
    assert await token("a1", env) == "secret-from-environment"
    assert await token("a2", env) is None
    both = env | credentials(tmp_path, pacerelled_token_a1="secret-from-credential\n")
    assert await token("a1", both) == "secret-from-credential"
    await keyring.delete("token:a1")
    await keyring.delete("token:a1")  # what is not there is no error
    assert await token("a1", {}) is None
    assert "secret-" not in caplog.text


def test_the_note_tells_nothing_of_the_key(state: Path) -> None:
    async def run() -> None:
        key = await made(state)
        memo = json.loads((state / "store.json").read_text())
        assert set(memo) == {"version", "store_id", "key_source", "key_check", "created"}
        assert memo["created"] is True
        assert key.raw.hex()[:8] not in json.dumps(memo)

    asyncio.run(run())
