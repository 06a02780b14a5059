"""`service.json` in the daemon's folder: a service is installed for this store, and this is how it is started.

Shims read it too (docs/local-protocol.md): where it lies they ask the service manager to start the daemon.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

FILE: Final = "service.json"


@dataclass(frozen=True)
class Record:
    """`start` is the command that starts it. `environment` is what the daemon gets of the terminal's."""

    manager: str
    start: list[str]
    linger_set: bool = False  # by us, so that it is ours to undo
    environment: dict[str, str] = field(default_factory=dict)


def load(state: Path) -> Record | None:
    """None if no service is installed for this store."""
    try:
        return Record(**json.loads((state / FILE).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def save(state: Path, record: Record) -> None:
    """Raises OSError."""
    replace(state / FILE, json.dumps(asdict(record)) + "\n")


def remove(state: Path) -> None:
    """Raises OSError."""
    (state / FILE).unlink(missing_ok=True)


def replace(path: Path, text: str) -> None:
    """Writes a file, 0600, in one step; missing folders are made, 0700. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
