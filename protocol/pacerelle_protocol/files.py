"""Attachments: AES-256-GCM, a fresh key per file, 12-byte IV, no additional data, ciphertext followed by the tag.

`FileSealer` and `FileOpener` take a file in pieces, so that its size costs no memory.
"""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from .errors import DecryptError

KEY_BYTES = 32
IV_BYTES = 12
TAG_BYTES = 16


class FileSealer:
    """Seals one file: the ciphertext is what `update` returns for each piece, then what `finish` returns.

    `size` counts the plaintext so far, in bytes; `sha256` is of the whole ciphertext, in hex, once it is finished.
    """

    def __init__(self) -> None:
        self.key = secrets.token_bytes(KEY_BYTES)
        self.iv = secrets.token_bytes(IV_BYTES)
        self.size = 0
        self._encryptor = Cipher(AES(self.key), GCM(self.iv)).encryptor()
        self._digest = hashlib.sha256()

    def update(self, plaintext: bytes) -> bytes:
        self.size += len(plaintext)
        ciphertext = self._encryptor.update(plaintext)
        self._digest.update(ciphertext)
        return ciphertext

    def finish(self) -> bytes:
        """The tag."""
        self._encryptor.finalize()
        self._digest.update(self._encryptor.tag)
        return self._encryptor.tag

    @property
    def sha256(self) -> str:
        return self._digest.hexdigest()


class FileOpener:
    """Opens one file, against what its message says of it: `sha256` (hex) of the ciphertext, `size` of the plaintext.

    Whoever made the pieces up is known only at the end: nobody may use what `update` returned before `finish` has
    returned. Raises DecryptError: bad_key at once; size_mismatch, as soon as there is too much or at the end;
    digest_mismatch and not_authentic at the end.
    """

    def __init__(self, *, key: bytes, iv: bytes, sha256: str | None = None, size: int | None = None) -> None:
        if len(key) != KEY_BYTES or len(iv) != IV_BYTES:
            raise DecryptError("bad_key", "the file's key or IV has the wrong length")
        self._decryptor = Cipher(AES(key), GCM(iv)).decryptor()
        self._digest = hashlib.sha256()
        self._sha256 = sha256
        self._size = size
        self._done = 0
        self._held = b""  # the last bytes, which may be the tag

    def update(self, ciphertext: bytes) -> bytes:
        self._digest.update(ciphertext)
        data = self._held + ciphertext
        self._held = data[-TAG_BYTES:]
        self._done += max(len(data) - TAG_BYTES, 0)
        if self._size is not None and self._done > self._size:
            raise DecryptError("size_mismatch", "the file is larger than its message says")
        return self._decryptor.update(data[:-TAG_BYTES])

    def finish(self) -> None:
        if self._size is not None and self._done < self._size:
            raise DecryptError("size_mismatch", "the file is shorter than its message says")
        if self._sha256 is not None and self._digest.hexdigest() != self._sha256.lower():
            raise DecryptError("digest_mismatch", "the file is not the one that was sent")
        try:
            self._decryptor.finalize_with_tag(self._held)
        except (InvalidTag, ValueError):  # ValueError: there was not even a whole tag
            raise DecryptError("not_authentic", "the file was changed or its key is another one") from None


@dataclass(frozen=True, slots=True)
class SealedFile:
    """`sha256` is of the ciphertext, in hex: what the relay can check."""

    ciphertext: bytes = field(repr=False)
    key: bytes = field(repr=False)
    iv: bytes = field(repr=False)
    sha256: str


def seal_file(data: bytes) -> SealedFile:
    """A small file at once."""
    sealer = FileSealer()
    ciphertext = sealer.update(data) + sealer.finish()
    return SealedFile(ciphertext, sealer.key, sealer.iv, sealer.sha256)


def open_file(ciphertext: bytes, *, key: bytes, iv: bytes, sha256: str | None = None, size: int | None = None) -> bytes:
    """A small file at once. Raises DecryptError as `FileOpener` does."""
    opener = FileOpener(key=key, iv=iv, sha256=sha256, size=size)
    data = opener.update(ciphertext)
    opener.finish()
    return data
