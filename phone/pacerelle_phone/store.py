"""The phone's one file: SQLite, with the Signal state in pieces beside the messages it belongs to.

Used by one thread (`core.Core` owns it). Everything that changes goes through `transaction`, so a message and the
Signal state that opened or sealed it are committed together or not at all.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pacerelle_protocol.errors import StateError
from pacerelle_protocol.signal import SignalStore

from .errors import HomeUnusable

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE device (
    one INTEGER PRIMARY KEY CHECK (one = 1), relay_url TEXT NOT NULL, user_id TEXT NOT NULL, device_id TEXT NOT NULL,
    device_token TEXT NOT NULL, name TEXT NOT NULL, announced INTEGER NOT NULL DEFAULT 0);
CREATE TABLE signal_pieces (name TEXT PRIMARY KEY, data BLOB NOT NULL, sha256 BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE agents (
    agent_id TEXT PRIMARY KEY, name TEXT NOT NULL, conversation_id TEXT NOT NULL, trusted_key BLOB, offered_key BLOB,
    suspect INTEGER NOT NULL DEFAULT 0, history INTEGER NOT NULL DEFAULT 0) WITHOUT ROWID;
CREATE TABLE conversations (
    conversation_id TEXT PRIMARY KEY, kind TEXT NOT NULL, title TEXT NOT NULL, made_here INTEGER NOT NULL,
    history_key_id TEXT, history_epoch INTEGER, history_key BLOB, history_confirmed INTEGER NOT NULL DEFAULT 0)
    WITHOUT ROWID;
CREATE TABLE members (
    conversation_id TEXT NOT NULL, agent_id TEXT NOT NULL, PRIMARY KEY (conversation_id, agent_id)) WITHOUT ROWID;
CREATE TABLE group_keys (
    conversation_id TEXT NOT NULL, key_id TEXT NOT NULL, epoch INTEGER NOT NULL, key BLOB NOT NULL,
    PRIMARY KEY (conversation_id, key_id, epoch)) WITHOUT ROWID;
CREATE TABLE messages (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, direction TEXT NOT NULL, agent_id TEXT NOT NULL, id TEXT NOT NULL,
    conversation_id TEXT NOT NULL, is_group INTEGER NOT NULL, kind TEXT NOT NULL, state TEXT NOT NULL, at TEXT NOT NULL,
    body TEXT NOT NULL, attachments TEXT NOT NULL, reply_to TEXT, ref TEXT, reason TEXT,
    archived INTEGER NOT NULL DEFAULT 0, shown INTEGER NOT NULL DEFAULT 0, UNIQUE (id, direction, agent_id));
CREATE INDEX messages_by_conversation ON messages (conversation_id, seq);
CREATE INDEX messages_by_reply ON messages (reply_to) WHERE reply_to IS NOT NULL;
CREATE INDEX messages_not_shown ON messages (seq) WHERE direction = 'in' AND NOT shown;
CREATE INDEX messages_by_ref ON messages (ref) WHERE ref IS NOT NULL;
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, conversation_id TEXT NOT NULL, agent_id TEXT NOT NULL,
    message_seq INTEGER, envelope TEXT);
CREATE INDEX outbox_by_conversation ON outbox (conversation_id, id);
CREATE TABLE uploads (
    message_seq INTEGER NOT NULL, position INTEGER NOT NULL, name TEXT NOT NULL, mime TEXT NOT NULL,
    size INTEGER NOT NULL, key BLOB NOT NULL, iv BLOB NOT NULL, sha256 TEXT NOT NULL, file_id TEXT NOT NULL,
    blob_id TEXT, ciphertext BLOB, PRIMARY KEY (message_seq, position)) WITHOUT ROWID;
"""


@dataclass(frozen=True, slots=True)
class DeviceRow:
    relay_url: str
    user_id: str
    device_id: str
    device_token: str = field(repr=False)
    name: str
    announced: bool = False  # the relay has this device's identity key


class Store:
    """Opens or makes the file. Raises HomeUnusable when it cannot be used or must not be trusted."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._signal: SignalStore | None = None
        try:
            # Made here and not by SQLite, so that it is never readable for others; -wal and -shm take its mode.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=10)
            self._db.row_factory = sqlite3.Row
        except (OSError, sqlite3.Error) as e:
            raise self._unusable(e) from e
        try:
            self._prepare()
            if (device := self.device()) is not None:
                self._signal = self._load_signal(device)
        except sqlite3.Error as e:
            self._db.close()
            raise self._unusable(e) from e
        except BaseException:
            self._db.close()
            raise

    def _prepare(self) -> None:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=OFF"):
            self._db.execute(f"PRAGMA {pragma}")
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {SCHEMA_VERSION}; COMMIT;")
        elif version != SCHEMA_VERSION:
            raise HomeUnusable(
                f"{self._path} was written by another version of the phone (layout {version}).",
                hint="Use that version, or another home with --home.",
            )

    def _load_signal(self, device: DeviceRow) -> SignalStore:
        pieces: dict[str, bytes] = {}
        for row in self._db.execute("SELECT name, data, sha256 FROM signal_pieces"):
            if hashlib.sha256(row["data"]).digest() != row["sha256"]:
                raise self._damaged()
            pieces[row["name"]] = row["data"]
        try:
            return SignalStore.restore(own_name(device.user_id, device.device_id), pieces)
        except StateError as e:
            raise self._damaged() from e

    def _damaged(self) -> HomeUnusable:
        return HomeUnusable(
            f"The encryption state in {self._path} is damaged.",
            hint="Nothing was changed. Do not restore an older copy: link a new device in another home instead.",
        )

    def _unusable(self, error: Exception) -> HomeUnusable:
        return HomeUnusable(
            f"The phone's file {self._path} cannot be used: {error}.",
            hint="Check the disk and the file's owner, or choose another home with --home.",
        )

    @property
    def signal(self) -> SignalStore:
        assert self._signal is not None, "no device yet"
        return self._signal

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of it or nothing, the Signal state included. Raises HomeUnusable when the disk refuses."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                if self._signal is not None:
                    self._save_signal(self._signal)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                if self._signal is not None:
                    self._signal.revert()
                raise
        except sqlite3.Error as e:
            raise self._unusable(e) from e
        if self._signal is not None:
            self._signal.mark_saved()

    def _save_signal(self, signal: SignalStore) -> None:
        changes = signal.changes()
        self._write_pieces(changes.upserts)
        self._db.executemany("DELETE FROM signal_pieces WHERE name = ?", [(name,) for name in changes.deletes])

    def _write_pieces(self, pieces: Mapping[str, bytes]) -> None:
        self._db.executemany(
            "INSERT OR REPLACE INTO signal_pieces VALUES (?, ?, ?)",
            [(name, data, hashlib.sha256(data).digest()) for name, data in pieces.items()],
        )

    def device(self) -> DeviceRow | None:
        row = self.one("SELECT relay_url, user_id, device_id, device_token, name, announced FROM device")
        if row is None:
            return None
        return DeviceRow(row[0], row[1], row[2], row[3], row[4], announced=bool(row[5]))

    def pair(self, device: DeviceRow) -> None:
        """The device and its new Signal identity, in one commit."""
        signal = SignalStore.create(own_name(device.user_id, device.device_id))
        with self.transaction():
            self.execute(
                "INSERT INTO device VALUES (1, ?, ?, ?, ?, ?, 0)",
                (device.relay_url, device.user_id, device.device_id, device.device_token, device.name),
            )
            self._write_pieces(signal.pieces())
        signal.mark_saved()
        self._signal = signal

    def announced(self) -> None:
        with self.transaction():
            self.execute("UPDATE device SET announced = 1")

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        return self._db.execute(sql, values)

    def one(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Row | None:
        row: sqlite3.Row | None = self._db.execute(sql, values).fetchone()
        return row

    def all(self, sql: str, values: Sequence[Any] = ()) -> list[sqlite3.Row]:
        return self._db.execute(sql, values).fetchall()

    def close(self) -> None:
        self._db.close()
        if self._signal is not None:
            self._signal.close()


def own_name(user_id: str, device_id: str) -> str:
    """This device's own name in its Signal store, one for all conversations.

    The agent addresses the device once per conversation (`human:<user>:<conversation>:device:<device>`); libsignal does
    not compare that with the other side's own name, and the agent's view stays apart because its labels do.
    """
    return f"human:{user_id}:device:{device_id}"


def session_label(agent_id: str, conversation_id: str) -> str:
    """Our name for an agent's session: one per conversation, as the agent has one per conversation with us."""
    return f"agent:{agent_id}:{conversation_id}"
