"""Making a backup while everything goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pacerelled.errors import InvalidArgument
from pacerelled.store.database import Store, now

from .content import describe
from .seal import Sealer, sealed_size

SHORTEST = 8  # characters of a passphrase
_READ = 1024 * 1024  # bytes


@dataclass(frozen=True, slots=True)
class Backup:
    """`size` in bytes, of the whole sealed file that the pieces are."""

    size: int
    pieces: AsyncIterator[bytes] = field(repr=False)


@asynccontextmanager
async def make_backup(store: Store, config: Path, passphrase: str) -> AsyncIterator[Backup]:
    """The store as it is now, with its key and the settings, sealed. Read the pieces inside the context.

    Raises InvalidArgument (the passphrase is too short), StoreError.
    """
    if len(passphrase) < SHORTEST:
        raise InvalidArgument(
            f"The passphrase has fewer than {SHORTEST} characters",
            argument="passphrase",
            hint="It is all that protects the backup: several words are good.",
        )
    sealer = await asyncio.to_thread(Sealer, passphrase)
    settings = config.read_text() if config.exists() else None
    async with store.snapshot() as snapshot:
        start = describe(now(), snapshot.size, snapshot.key, settings).encode()

        async def pieces() -> AsyncIterator[bytes]:
            yield sealer.header + sealer.update(start)
            for at in range(0, snapshot.size, _READ):
                data = await snapshot.read(at, min(_READ, snapshot.size - at))
                yield await asyncio.to_thread(sealer.update, data)
            yield sealer.finish()

        yield Backup(sealed_size(len(start) + snapshot.size), pieces())
