"""An OS keyring that is a file, so that it outlives a process that is killed. `use(path)` makes it the keyring here."""

from __future__ import annotations

import json
from pathlib import Path

import keyring
import keyring.backend

BUS = {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere"}


class FileKeyring(keyring.backend.KeyringBackend):
    priority = 9.0  # type: ignore[assignment]

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def get_password(self, service: str, username: str) -> str | None:
        found: str | None = self._all().get(username)
        return found

    def set_password(self, service: str, username: str, password: str) -> None:
        self._write(self._all() | {username: password})

    def delete_password(self, service: str, username: str) -> None:
        self._write({name: value for name, value in self._all().items() if name != username})

    def _all(self) -> dict[str, str]:
        kept: dict[str, str] = json.loads(self.path.read_text()) if self.path.exists() else {}
        return kept

    def _write(self, kept: dict[str, str]) -> None:
        """At once or not at all, as a keyring does it."""
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(kept))
        new.rename(self.path)


def use(path: Path) -> FileKeyring:
    made = FileKeyring(path)
    keyring.set_keyring(made)
    return made
