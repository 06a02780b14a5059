"""Opening a backup again: to see that it is good, or to put its store into place.

Encryption starts afresh after that (`store.afresh`). The caller holds the owner's lock.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pacerelle_protocol.local import LocalPaths
from pacerelled.errors import BackupDamaged, StoreCorrupt, StoreExists, StoreKeyError, StoreUnavailable
from pacerelled.files import sync_directory, write_private
from pacerelled.store.afresh import start_afresh
from pacerelled.store.aside import move_aside, store_files
from pacerelled.store.custody import store_created
from pacerelled.store.database import Store
from pacerelled.store.keyring import Keyring
from pacerelled.store.opening import examine
from pacerelled.store.rekey import change_key, store_key

from .content import Description, parse
from .seal import opened

OnProgress = Callable[[int, int], None]  # bytes done, bytes in all

WORK = ".backup-"  # folders in which a backup is opened; what a kill left is removed by the next

AFRESH = (
    "each agent has a new identity key: phones show that its safety code changed, and send nothing until somebody"
    " compares it (`pacerelle agent list`) and accepts it",
    "people have to write first: before that, there is no encryption session to answer with",
    "what was written to the old sessions since the backup goes to quarantine and has to be written again",
    "requests that were processed since the backup are pending again",
    "replies that were not sent when the backup was made are uncertain: they may have been sent since",
    "tokens are not in a backup: hosts bring theirs, for others there is `pacerelle login`",
)
"""What is different after a restore, for people."""


@dataclass(frozen=True, slots=True)
class Restored:
    made_at: str
    agents: int
    moved_to: Path | None  # where the store that was here lies now
    key_source: str


def verify(file: Path, passphrase: str, state: Path, *, on_progress: OnProgress) -> Description:
    """Opens all of it, and checks every page of the store in it. Needs room for that store, for a while.

    Raises BackupDamaged, WrongPassphrase, StoreError.
    """
    with _extracted(file, passphrase, state, on_progress) as (description, _):
        return description


async def restore(
    file: Path,
    passphrase: str,
    paths: LocalPaths,
    *,
    aside: bool,
    keyring: Keyring,
    env: Mapping[str, str],
    on_progress: OnProgress,
) -> Restored:
    """Puts the store of a backup into place, under a new key and with new identities.

    A store that is here is moved `aside`, or refused. Raises StoreExists, BackupDamaged, WrongPassphrase, StoreError;
    nothing has changed then, except that a store that was here may have been moved (the message says where).
    """
    if not aside and any(path.exists() for path in store_files(paths)):
        raise StoreExists(
            f"There is a store in {paths.state} already, and a backup is older than what it was made of",
            hint="To keep the store that is here beside the restored one: --move-aside.",
        )
    with _extracted(file, passphrase, paths.state, on_progress) as (description, database):
        store = await Store.open(database, description.key, new=False)
        try:
            agents = await store.run(lambda tx: start_afresh(tx, description.made_at))
        finally:
            await store.close()
        moved_to = await move_aside(paths, "replaced", keyring=keyring) if aside else None
        key = await store_key(paths, keyring=keyring, env=env)
        change_key(database, description.key, key.raw)
        examine(database, key.raw, new=False)
        os.replace(database, paths.store)
        sync_directory(paths.state)
        store_created(paths.state, key)
        if description.settings is not None and not paths.config.exists():
            write_private(paths.config, description.settings.encode())
    return Restored(description.made_at, agents, moved_to, key.source)


@contextmanager
def _extracted(file: Path, passphrase: str, state: Path, on_progress: OnProgress) -> Iterator[tuple[Description, Path]]:
    """The description and the store's file in a folder of its own, checked."""
    for left in state.glob(f"{WORK}*"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        with tempfile.TemporaryDirectory(prefix=WORK, dir=state) as folder:
            path = Path(folder) / "store.db"
            description = _extract(file, passphrase, path, on_progress)
            try:
                examine(path, description.key, new=False)
            except (StoreCorrupt, StoreKeyError) as error:
                raise BackupDamaged(
                    f"The store in the backup is damaged: {error.message}", hint="Choose another file."
                ) from error
            yield description, path
    except OSError as error:
        raise StoreUnavailable(
            f"The backup cannot be opened: {error.strerror}",
            hint=f"{state} needs as much free space as the store in it takes.",
        ) from error


def _extract(file: Path, passphrase: str, target: Path, on_progress: OnProgress) -> Description:
    with file.open("rb") as source:
        size = os.fstat(source.fileno()).st_size
        description, pieces = parse(opened(source, passphrase, on_bytes=lambda done: on_progress(done, size)))
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "wb") as out:
            for piece in pieces:
                out.write(piece)
            out.flush()
            os.fsync(out.fileno())
    return description
