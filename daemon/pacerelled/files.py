"""Private files and folders: 0700 and 0600 from the first moment, replaced atomically; and hidden ones."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from .errors import ConfigError


def private_directory(path: Path) -> None:
    """Makes `path` (and its parents) and sees to it that it is ours and 0700. Raises ConfigError."""
    try:
        missing = []
        parent = path
        while not parent.exists():
            missing.append(parent)
            parent = parent.parent
        for directory in reversed(missing):
            directory.mkdir(mode=0o700, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ConfigError(
            f"The folder {path} cannot be made: {error.strerror}",
            hint="Set PACERELLE_STORE_ROOT (or --store-root) to a folder you can write to.",
        ) from error
    if not stat.S_ISDIR(found.st_mode):
        raise ConfigError(
            f"{path} is not a folder", hint="Move it away, or set PACERELLE_STORE_ROOT to another folder."
        )
    if found.st_uid != os.getuid():
        raise ConfigError(
            f"The folder {path} belongs to another user (uid {found.st_uid})",
            hint="Set PACERELLE_STORE_ROOT to a folder of your own.",
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        path.chmod(0o700)
    if not os.access(path, os.W_OK | os.X_OK):
        raise ConfigError(
            f"The folder {path} is not writable",
            hint="Set PACERELLE_STORE_ROOT to a folder you can write to.",
        )


def is_hidden(path: Path) -> bool:
    """Whether a part of it begins with a dot; the home's own path does not count."""
    for home in (os.path.expanduser("~"), os.path.realpath(os.path.expanduser("~"))):
        if path.is_relative_to(home):
            path = path.relative_to(home)
            break
    return any(part.startswith(".") for part in path.parts)


def make_private(path: Path) -> None:
    """Takes a file that others can read or write (restored from a backup, say) away from them."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        path.chmod(mode & 0o700)


def write_private(path: Path, data: bytes) -> None:
    """Writes `path` durably and atomically, 0600. Raises OSError."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.unlink(missing_ok=True)  # of a process that was killed here; there is one writer at a time
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Makes what was renamed, made or removed in it durable. Raises OSError."""
    directory = os.open(path, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
