"""Files that people and agents exchange: ciphertext, streamed to a directory beside the database.

A blob is on the disk, complete and synced, before its row is committed; whatever has no row is removed at the start.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from .accounts import Agent, Device, new_id
from .database import Database
from .errors import Malformed, NotFound, OverQuota, StorageFailed, TooLarge
from .fields import MAX_NAME, Fields
from .limits import Limits

BLOB_ID = re.compile(r"b-[0-9a-f]{20}")
WRITE_BYTES = 256 * 1024  # handed to the disk at once


class BlobStore:
    """The directory and its rows in the database."""

    def __init__(self, directory: Path, database: Database, limits: Limits) -> None:
        self._directory = directory
        self._database = database
        self._limits = limits

    async def open(self) -> None:
        """Makes the directory, and removes what an interrupted upload left behind."""
        known = await self._database.run(_ids)
        await asyncio.to_thread(self._clean, known)

    def _clean(self, known: set[str]) -> None:
        self._directory.mkdir(mode=0o700, exist_ok=True)
        for entry in self._directory.iterdir():
            if BLOB_ID.fullmatch(entry.name) and entry.name not in known:
                entry.unlink()

    async def add(
        self,
        owner: Agent | Device,
        chunks: AsyncIterator[bytes],
        *,
        name: str | None,
        size: int | None,  # as announced, bytes
        now: float,
    ) -> dict[str, Any]:
        """Stores what comes. Raises Malformed (empty), TooLarge, OverQuota, StorageFailed."""
        if size is not None and size > self._limits.blob_bytes:
            raise TooLarge(f"a blob may have {self._limits.blob_bytes} bytes")
        await self._database.run(_require_room, owner.account_id, size or 1, self._limits)
        id = new_id("b")
        path = self._directory / id
        kept = False
        try:
            sha256, size = await self._write(path, chunks)
            await self._database.run(_insert, id, owner.account_id, name, sha256, size, self._limits, now)
            kept = True
        except OSError as error:
            raise StorageFailed(f"the blob could not be written: {error.strerror}", retry_after=5) from error
        finally:
            if not kept:  # the row too: whoever was cancelled cannot know whether it had been committed
                path.unlink(missing_ok=True)
                self._database.submit(_forget, id)
        return {"id": id, "name": name, "sha256": sha256, "size": size}

    async def _write(self, path: Path, chunks: AsyncIterator[bytes]) -> tuple[str, int]:
        digest = hashlib.sha256()
        size = 0
        buffer = bytearray()
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(file, "wb", buffering=0) as out:
            async for chunk in chunks:
                size += len(chunk)
                if size > self._limits.blob_bytes:
                    raise TooLarge(f"a blob may have {self._limits.blob_bytes} bytes")
                buffer += chunk
                if len(buffer) >= WRITE_BYTES:
                    await asyncio.to_thread(_append, out.fileno(), digest, bytes(buffer))
                    buffer.clear()
            if size == 0:
                raise Malformed("the body is empty")
            await asyncio.to_thread(_append, out.fileno(), digest, bytes(buffer))
            await asyncio.to_thread(os.fsync, out.fileno())
        await asyncio.to_thread(_sync_directory, self._directory)
        return digest.hexdigest(), size

    async def path(self, reader: Agent | Device, id: str) -> Path:
        """The file of a blob of the reader's account. Raises NotFound."""
        await self._database.run(_require, id, reader.account_id)
        return self._directory / id

    async def prune(self, now: float) -> int:
        """Removes what is too old; returns how many."""
        ids = await self._database.run(_forget_older, now - self._limits.blob_s)
        for id in ids:
            await asyncio.to_thread((self._directory / id).unlink, missing_ok=True)
        return len(ids)


def read_name(header: str | None) -> str | None:
    """The name in a percent-encoded `X-Blob-Name`. Raises Malformed."""
    if header is None:
        return None
    if len(header) > MAX_NAME:
        raise Malformed(f"X-Blob-Name must have at most {MAX_NAME} characters")
    try:
        return Fields({"X-Blob-Name": unquote(header, errors="strict")}).name("X-Blob-Name")
    except UnicodeDecodeError:
        raise Malformed("X-Blob-Name must be percent-encoded UTF-8") from None


def _append(file: int, digest: Any, data: bytes) -> None:
    digest.update(data)
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _sync_directory(path: Path) -> None:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _ids(db: sqlite3.Connection) -> set[str]:
    return {row[0] for row in db.execute("SELECT id FROM blobs")}


def _require_room(db: sqlite3.Connection, account_id: str, size: int, limits: Limits) -> None:
    row = db.execute("SELECT coalesce(sum(size), 0) FROM blobs WHERE account_id = ?", (account_id,)).fetchone()
    if row[0] + size > limits.account_blob_bytes:
        raise OverQuota(f"an account may have {limits.account_blob_bytes} bytes of files at the relay")


def _insert(
    db: sqlite3.Connection,
    id: str,
    account_id: str,
    name: str | None,
    sha256: str,
    size: int,
    limits: Limits,
    now: float,
) -> None:
    _require_room(db, account_id, size, limits)
    db.execute("INSERT INTO blobs VALUES (?, ?, ?, ?, ?, ?)", (id, account_id, name, sha256, size, now))


def _require(db: sqlite3.Connection, id: str, account_id: str) -> None:
    # Somebody else's and none at all get the same answer: a blob's id comes out of an encrypted message.
    row = db.execute("SELECT 1 FROM blobs WHERE id = ? AND account_id = ?", (id, account_id)).fetchone()
    if row is None:
        raise NotFound("there is no such blob", code="blob")


def _forget(db: sqlite3.Connection, id: str) -> None:
    db.execute("DELETE FROM blobs WHERE id = ?", (id,))


def _forget_older(db: sqlite3.Connection, before: float) -> list[str]:
    rows = db.execute("DELETE FROM blobs WHERE created_at < ? RETURNING id", (before,)).fetchall()
    return [row[0] for row in rows]
