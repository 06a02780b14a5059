"""Files: read and sealed on their way out, written where they cannot harm on their way in."""

from __future__ import annotations

import mimetypes
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from pacerelle_protocol.files import seal_file

from .errors import InvalidArgument
from .log import Upload

MAX_FILE = 64 << 20  # bytes; sealed files wait in the phone's database


@dataclass(frozen=True, slots=True)
class File:
    """A file to send: its bytes and what the receiver is told of it."""

    name: str
    data: bytes = field(repr=False)
    mime: str = "application/octet-stream"

    @classmethod
    def read(cls, path: Path) -> File:
        """Raises InvalidArgument for a path that cannot be read."""
        try:
            data = path.read_bytes()
        except OSError as e:
            raise InvalidArgument(f"{path} cannot be read: {e.strerror}.", argument="file") from None
        return cls(path.name, data, mimetypes.guess_type(path.name)[0] or "application/octet-stream")


def seal_upload(position: int, file: File | Path) -> Upload:
    """Raises InvalidArgument for a file that cannot be read or is too large."""
    if isinstance(file, Path):
        file = File.read(file)
    if len(file.data) > MAX_FILE:
        raise InvalidArgument(f"A file can have at most {MAX_FILE >> 20} MiB.", argument="files")
    sealed = seal_file(file.data)
    return Upload(
        position=position,
        file_id=str(uuid.uuid4()),
        name=file.name[:512] or "file",
        mime=file.mime,
        size=len(file.data),
        key=sealed.key,
        iv=sealed.iv,
        sha256=sealed.sha256,
        ciphertext=sealed.ciphertext,
    )


def write_new(folder: Path, name: str, data: bytes) -> Path:
    """Write under the sender's name, as far as that can be a file's name here. Raises InvalidArgument."""
    plain = "".join(c for c in name.replace("\\", "/").rpartition("/")[2] if c.isprintable()).strip(". ")
    # File systems limit names to 255 bytes: 50 and 10 characters of up to 4 bytes, and the number.
    stem, suffix = Path(plain).stem[:50] or "file", Path(plain).suffix[:10]
    for number in range(1, 1000):
        path = folder / (f"{stem}{suffix}" if number == 1 else f"{stem} ({number}){suffix}")
        try:
            with open(path, "xb", opener=lambda p, flags: os.open(p, flags, 0o600)) as file:
                file.write(data)
        except FileExistsError:
            continue
        except OSError as e:
            raise InvalidArgument(f"{path} cannot be written: {e.strerror}.", argument="folder") from None
        return path
    raise InvalidArgument(f"{folder} has too many files of that name.", argument="folder")
