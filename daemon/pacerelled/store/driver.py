"""The one place that chooses the SQLite driver: SQLCipher, for us and for sqlite-utils.

sqlite-utils looks for a module called `pysqlite3` before the standard library's; handed another driver without that
name its exception handling would miss every error of ours.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import sqlcipher3
import sqlcipher3.dbapi2 as dbapi2

sys.modules.setdefault("pysqlite3", sqlcipher3)
sys.modules.setdefault("pysqlite3.dbapi2", dbapi2)

from sqlite_utils import Database, Migrations  # noqa: E402 - only after the driver is in place

DatabaseError: type[Exception] = dbapi2.DatabaseError
IntegrityError: type[Exception] = dbapi2.IntegrityError
Connection = Any  # sqlcipher3 has no type information

LOG_HEADER = 32  # bytes of a write-ahead log before its first frame
STATEMENTS = 1024  # prepared ones that are kept, more than we have: a full cache prepares each newer one every time

__all__ = ["Connection", "Database", "DatabaseError", "IntegrityError", "Migrations", "connect"]


def connect(path: Path, key: bytes, *, read_only: bool = False) -> Connection:
    """Opens (or creates) `path` with a raw 32-byte key. Nothing is read before the first statement.

    `isolation_level=None`: transactions are begun and ended by `Store.run`, nowhere else. With `read_only` no file is
    written, not even those beside the database: its log is read where it is, as it is.
    """
    uri = path.absolute().as_uri()
    if read_only:
        log = path.with_name(f"{path.name}-wal")
        # A log that a crash left with its header alone is empty, but SQLite never comes to an end of reading it so.
        has_frames = log.exists() and log.stat().st_size > LOG_HEADER
        uri += "?mode=ro&readonly_shm=1" if has_frames else "?immutable=1"
    conn = dbapi2.connect(
        uri, uri=True, isolation_level=None, check_same_thread=False, timeout=5.0, cached_statements=STATEMENTS
    )
    conn.row_factory = dbapi2.Row
    conn.execute("PRAGMA cipher_log_level = NONE")  # it writes to stderr; errors reach us as exceptions
    conn.execute(f"PRAGMA key = \"x'{key.hex()}'\"")
    return conn
