"""Reading and replacing a host's file: symlink, mode and owner stay, a copy is kept, a crash spoils nothing."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import BadHostFile

BACKUP: Final = ".pacerelle-backup"
"""What a backup's name ends with. There is one for each file: as it was before our last change."""

_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class HostFile:
    """A file as it was read; `raw` is None if there is none."""

    path: Path
    raw: bytes | None

    @property
    def text(self) -> str:
        """Raises BadHostFile."""
        try:
            return (self.raw or b"").removeprefix(_BOM).decode()
        except UnicodeDecodeError as error:
            line = (self.raw or b"").count(b"\n", 0, error.start) + 1
            raise BadHostFile(f"{self.path}, line {line}: it is not UTF-8.", hint=UNTOUCHED) from error

    def write(self, text: str) -> Path | None:
        """Replaces it, and returns the backup, if there was something to keep. Raises BadHostFile."""
        try:
            data = text.encode()
        except UnicodeEncodeError as error:
            raise BadHostFile(
                f"{self.path} is in UTF-8, which cannot hold the path of this installation.",
                hint="Install Pacerelle into a folder whose path is UTF-8.",
            ) from error
        if self.raw is not None and self.raw.startswith(_BOM):
            data = _BOM + data
        try:
            return self._replace(data)
        except OSError as error:
            raise BadHostFile(
                f"{self.path} cannot be written: {error.strerror}.", hint="The entry, to add by hand: --print"
            ) from error

    def _replace(self, data: bytes) -> Path | None:
        target = Path(os.path.realpath(self.path))  # a symlink stays one
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        backup = None
        if self.raw is not None:
            backup = self.path.with_name(self.path.name + BACKUP)
            _write(backup, self.raw, like=target)
        if read(self.path).raw != self.raw:
            raise BadHostFile(f"{self.path} was changed by another program just now.", hint="Try again.")
        _write(target, data, like=target if self.raw is not None else None)
        return backup


UNTOUCHED: Final = "It was left as it is. Correct it, or add the entry by hand: --print shows it."


def read(path: Path) -> HostFile:
    """Raises BadHostFile."""
    try:
        return HostFile(path, path.read_bytes())
    except FileNotFoundError:
        return HostFile(path, None)
    except OSError as error:
        raise BadHostFile(f"{path} cannot be read: {error.strerror}.", hint="The entry: --print") from error


def _write(path: Path, data: bytes, *, like: Path | None) -> None:
    """In one step, on the disk afterwards; with mode and owner of `like`, else for the user alone."""
    fd, made = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            if like is not None:
                known = like.stat()
                if (known.st_uid, known.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(file.fileno(), known.st_uid, known.st_gid)
                os.fchmod(file.fileno(), known.st_mode & 0o7777)
            file.flush()
            os.fsync(file.fileno())
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise
