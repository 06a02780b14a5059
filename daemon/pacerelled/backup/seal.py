"""The sealed file (docs/backup.md): scrypt, then AES-256-GCM in chunks. Bytes in, bytes out; no store, no paths.

The chunks are those of the STREAM construction (Hoang, Reyhanitabar, Rogaway, Vizár: "Online Authenticated-Encryption
and its Nonce-Reuse Misuse-Resistance", 2015): a chunk's nonce has its number and whether it is the last. So a file that
is cut off, or whose chunks are exchanged, left out or repeated, does not open. Each chunk is bound to the header too.
The key is used for one file, since the salt is random.
"""

from __future__ import annotations

import hmac
import secrets
import struct
import unicodedata
from collections.abc import Callable, Iterator
from typing import IO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from pacerelled.errors import BackupDamaged, WrongPassphrase

VERSION = 1
CHUNK = 64 * 1024  # bytes of plaintext; the last may have fewer
TAG = 16
COST = 17  # scrypt's N is 2 to the power of it: 128 MiB, and about half a second
MIN_COST, MAX_COST = 14, 20  # others are refused: a hostile file must not cost gigabytes

_MAGIC = b"PACERBAK"
_FIELDS = struct.Struct(">8sBBHI16s")  # magic, version, cost, zero, chunk, salt
_CHECK = 32
HEADER = _FIELDS.size + _CHECK


class Sealer:
    """Seals what is given in pieces of any size. Made in a thread: scrypt takes its time."""

    def __init__(self, passphrase: str, *, cost: int = COST) -> None:
        fields = _FIELDS.pack(_MAGIC, VERSION, cost, 0, CHUNK, secrets.token_bytes(16))
        key, check = _derive(passphrase, fields, cost)
        self.header = fields + check
        self._aead = AESGCM(key)
        self._number = 0
        self._waiting = bytearray()

    def update(self, data: bytes) -> bytes:
        """What can be written by now. The last chunk is kept back, since nobody knows yet that it is the last."""
        self._waiting += data
        out = bytearray()
        while len(self._waiting) > CHUNK:
            out += self._seal(bytes(self._waiting[:CHUNK]), last=False)
            del self._waiting[:CHUNK]
        return bytes(out)

    def finish(self) -> bytes:
        return self._seal(bytes(self._waiting), last=True)

    def _seal(self, chunk: bytes, *, last: bool) -> bytes:
        sealed = self._aead.encrypt(_nonce(self._number, last), chunk, self.header)
        self._number += 1
        return sealed


def sealed_size(size: int) -> int:
    """Bytes of the file that `size` bytes become."""
    chunks = max(1, -(-size // CHUNK))
    return HEADER + size + chunks * TAG


def opened(file: IO[bytes], passphrase: str, *, on_bytes: Callable[[int], None] = lambda _: None) -> Iterator[bytes]:
    """The content in pieces, each one authentic; only at the end is it known to be whole.

    `on_bytes` is told how many bytes of the file have been read. Raises BackupDamaged, WrongPassphrase, OSError.
    """
    header = file.read(HEADER)
    fields, check = header[: _FIELDS.size], header[_FIELDS.size :]
    if len(header) < HEADER or not header.startswith(_MAGIC):
        raise BackupDamaged("This is no backup, or its beginning is damaged", hint="Choose another file.")
    _, version, cost, _, chunk_size, _ = _FIELDS.unpack(fields)
    if version != VERSION:
        raise BackupDamaged(f"The backup has format {version}, which is not known here", hint="Upgrade pacerelled.")
    if not MIN_COST <= cost <= MAX_COST or chunk_size != CHUNK:
        raise BackupDamaged("The beginning of the backup is damaged", hint="Choose another file.")
    key, expected = _derive(passphrase, fields, cost)
    if not hmac.compare_digest(check, expected):
        raise WrongPassphrase(
            "The passphrase is not the one of this backup (or its beginning is damaged)", hint="Try again."
        )
    aead, done, number = AESGCM(key), HEADER, 0
    sealed = file.read(CHUNK + TAG)
    while True:
        following = file.read(CHUNK + TAG)
        try:
            piece = aead.decrypt(_nonce(number, not following), sealed, header)
        except (InvalidTag, ValueError):
            raise BackupDamaged(
                f"The backup is damaged or cut off, at byte {done} at the latest", hint="Choose another file."
            ) from None
        done += len(sealed)
        on_bytes(done)
        yield piece
        if not following:
            return
        sealed, number = following, number + 1


def _derive(passphrase: str, fields: bytes, cost: int) -> tuple[bytes, bytes]:
    """The key, and the check value that binds passphrase and header together before anything is opened.

    A passphrase is taken in its composed Unicode form: the same keys typed on another system give the same bytes.
    """
    salt = _FIELDS.unpack(fields)[-1]
    text = unicodedata.normalize("NFC", passphrase).encode("utf-8", "surrogatepass")
    both = Scrypt(salt=salt, length=64, n=1 << cost, r=8, p=1).derive(text)
    return both[:32], hmac.digest(both[32:], fields, "sha256")


def _nonce(number: int, last: bool) -> bytes:
    return number.to_bytes(11) + bytes([last])
