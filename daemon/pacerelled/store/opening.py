"""Opening the file: it is examined without a change, opened, and its schema brought up to date.

A store is copied before a migration changes it. The copy is kept until a later start has found nothing to change.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from pacerelled.errors import StoreCorrupt, StoreError, StoreKeyError, StoreTooNew, StoreUnavailable
from pacerelled.files import make_private, sync_directory

from .driver import Connection, Database, DatabaseError, connect
from .schema import migrations, unknown_migrations
from .wal import log_is_damaged

RESTORE_HINT = (
    "Nothing was changed. Restore the folder from a backup (store.db, store.json and store.key belong together), "
    "or start with an empty store: `pacerelle store move-aside` says what is lost then, and asks."
)


def open_connection(path: Path, key: bytes, *, new: bool) -> Connection:
    """Checks every page, and brings the schema up to date. Raises StoreError; what is refused is not touched."""
    if examine(path, key, new=new):
        make_private(path)
    else:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600))
    conn = connect(path, key)
    try:
        conn.execute("PRAGMA locking_mode = EXCLUSIVE")  # before the first reading: the log's index stays in memory
        conn.execute("PRAGMA auto_vacuum = INCREMENTAL")  # of a new store: what is pruned can be given back
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("PRAGMA synchronous = FULL")
        conn.execute("PRAGMA foreign_keys = ON")
        conn.execute("PRAGMA temp_store = MEMORY")
        conn.execute("PRAGMA journal_size_limit = 8388608")
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # what a crash left of the log must not meet the next crash
        _migrate(path, Database(conn))
    except BaseException as error:
        conn.close()
        if isinstance(error, DatabaseError):
            raise mapped(error) from error
        raise
    return conn


def _migrate(path: Path, db: Database) -> None:
    copies = list(path.parent.glob(f"{path.name}.before-*"))
    pending = migrations.pending(db)
    if pending and migrations.applied(db):
        _copy(path, path.with_name(f"{path.name}.before-{pending[0].name}"))
    elif not pending:
        for copy in copies:
            copy.unlink()
    migrations.apply(db)


def _copy(path: Path, target: Path) -> None:
    """The log is folded in, and nobody else has the store open."""
    temporary = target.with_name(f".{target.name}.new")
    try:
        temporary.unlink(missing_ok=True)
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        shutil.copyfile(path, temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
        sync_directory(target.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StoreUnavailable(
            f"The store has to be brought up to date, and cannot be copied before: {error.strerror}",
            hint=f"Free as much disk space as {path} takes.",
        ) from error


def examine(path: Path, key: bytes, *, new: bool, also: Callable[[Connection], object] = lambda conn: None) -> bool:
    """Raises StoreError for a store that cannot be used, and changes nothing. False if there is none yet.

    `new` says whether that may be; `also` may look further.
    """
    size = path.stat().st_size if path.exists() else None
    if size:
        _check(path, key, also)
        return True
    if not new:
        state = "is missing" if size is None else "is empty"
        raise StoreCorrupt(f"The store {path} {state}, though it existed before", hint=RESTORE_HINT)
    return False


def _check(path: Path, key: bytes, also: Callable[[Connection], object]) -> None:
    """Reads every page: one whose authentication code is wrong must stop us now, not in a month.

    On a connection that cannot write: opening a store as usual, even in vain, would fold its log into it.
    """
    log_file, index = beside(path, "-wal"), beside(path, "-shm")
    if log_is_damaged(log_file):
        raise StoreCorrupt(f"The log of the store {path} is damaged", hint=RESTORE_HINT)
    index_wanted = log_file.exists() and not index.exists()
    if index_wanted:
        try:
            index.touch(0o600)  # a reader that may not make it wants it to be there
        except OSError as error:
            raise StoreUnavailable(
                f"{index} cannot be made: {error.strerror}",
                hint="Free some disk space, or make the folder writable.",
            ) from error
    conn = connect(path, key, read_only=True)
    try:
        if newer := unknown_migrations(Database(conn)):
            raise StoreTooNew(
                f"The store was written by a newer version (it has {', '.join(newer)})",
                hint="Upgrade pacerelled, or restore the backup made before the upgrade. Nothing was changed.",
            )
        if any(row[0] != "ok" for row in conn.execute("PRAGMA quick_check(1)").fetchall()):
            raise StoreCorrupt(f"The store {path} is damaged", hint=RESTORE_HINT)
        also(conn)
    except DatabaseError as error:
        if "not a database" in str(error):
            raise StoreKeyError(
                f"The store {path} does not open with this key (wrong key, or its first page is damaged)",
                hint=RESTORE_HINT,
            ) from error
        raise mapped(error) from error
    finally:
        conn.close()
        if index_wanted:
            index.unlink()


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def mapped(error: Exception) -> StoreError:
    """The one seam at which the driver's errors become ours."""
    text = str(error)
    if "disk is full" in text or "disk I/O" in text or "readonly" in text or "unable to open" in text:
        return StoreUnavailable(
            f"The store cannot be written now: {text}",
            hint="Free some disk space (or make the folder writable). Unread messages wait at the relay.",
        )
    if "locked" in text or "busy" in text:
        return StoreUnavailable(f"The store is in use by another program: {text}", hint="Close what has store.db open.")
    if "malformed" in text or "not a database" in text:
        return StoreCorrupt(f"The store is damaged: {text}", hint=RESTORE_HINT)
    return StoreError(f"The store failed: {text}", hint="Restart the daemon; report this if it comes back.")
