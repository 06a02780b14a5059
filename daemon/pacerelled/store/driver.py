"""The one place that chooses the SQLite driver: SQLCipher, for us and for sqlite-utils.

sqlite-utils looks for a module called `pysqlite3` before the standard library's; handed another driver without that
name its exception handling would miss every error of ours.
"""

from __future__ import annotations

import sys
from typing import Any

import sqlcipher3
import sqlcipher3.dbapi2 as dbapi2

sys.modules.setdefault("pysqlite3", sqlcipher3)
sys.modules.setdefault("pysqlite3.dbapi2", dbapi2)

from sqlite_utils import Database, Migrations  # noqa: E402 - only after the driver is in place

DatabaseError: type[Exception] = dbapi2.DatabaseError
IntegrityError: type[Exception] = dbapi2.IntegrityError
Connection = Any  # sqlcipher3 has no type information

__all__ = ["Connection", "Database", "DatabaseError", "IntegrityError", "Migrations", "connect"]


def connect(path: str, key: bytes) -> Connection:
    """Opens (or creates) `path` with a raw 32-byte key. Nothing is read before the first statement.

    `isolation_level=None`: transactions are begun and ended by `Store.run`, nowhere else.
    """
    conn = dbapi2.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
    conn.row_factory = dbapi2.Row
    conn.execute(f"PRAGMA key = \"x'{key.hex()}'\"")
    return conn
