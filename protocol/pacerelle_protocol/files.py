"""Attachments: AES-256-GCM, a fresh key per file, 12-byte IV, no additional data, ciphertext followed by the tag."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from .errors import DecryptError

KEY_BYTES = 32
IV_BYTES = 12
TAG_BYTES = 16


@dataclass(frozen=True, slots=True)
class SealedFile:
    """`sha256` is of the ciphertext, in hex: what the relay can check."""

    ciphertext: bytes = field(repr=False)
    key: bytes = field(repr=False)
    iv: bytes = field(repr=False)
    sha256: str


def seal_file(data: bytes) -> SealedFile:
    key, iv = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(IV_BYTES)
    ciphertext = AESGCM(key).encrypt(iv, data, None)
    return SealedFile(ciphertext, key, iv, hashlib.sha256(ciphertext).hexdigest())


def open_file(ciphertext: bytes, *, key: bytes, iv: bytes, sha256: str | None = None, size: int | None = None) -> bytes:
    """The file, checked against what its message says. `sha256` (hex) is of the ciphertext, `size` of the plaintext.

    Raises DecryptError: bad_key, digest_mismatch, not_authentic, size_mismatch.
    """
    if len(key) != KEY_BYTES or len(iv) != IV_BYTES:
        raise DecryptError("bad_key", "the file's key or IV has the wrong length")
    if sha256 is not None and hashlib.sha256(ciphertext).hexdigest() != sha256.lower():
        raise DecryptError("digest_mismatch", "the file is not the one that was sent")
    try:
        data = AESGCM(key).decrypt(iv, ciphertext, None)
    except (InvalidTag, ValueError):
        raise DecryptError("not_authentic", "the file was changed or its key is another one") from None
    if size is not None and len(data) != size:
        raise DecryptError("size_mismatch", "the file has another size than its message says")
    return data
