"""What lies in a folder, so that two moments can be compared; and what damage looks like."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable
from pathlib import Path


def contents(folder: Path) -> dict[str, tuple[str, str]]:
    """Name → (mode, SHA-256) of every file."""
    return {
        str(path.relative_to(folder)): (
            oct(stat.S_IMODE(path.stat().st_mode)),
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def change(path: Path, edit: Callable[[bytearray], None]) -> None:
    data = bytearray(path.read_bytes())
    edit(data)
    path.write_bytes(data)


def flip(path: Path, at: float) -> None:
    """One bit, at a share of the file's length from 0 to 1."""

    def edit(data: bytearray) -> None:
        data[min(int(len(data) * at), len(data) - 1)] ^= 1

    change(path, edit)


def cut(path: Path, to: float) -> None:
    def edit(data: bytearray) -> None:
        del data[int(len(data) * to) :]

    change(path, edit)
