"""The database's tables. Times are Unix seconds, tokens and codes SHA-256 digests, frames JSON with ciphertext."""

from __future__ import annotations

import sqlite3

from .errors import DataError

VERSION = 1
APPLICATION_ID = 0x70637279  # marks the file as a relay's

TABLES = """
CREATE TABLE accounts (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE devices (
    id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts, name TEXT, token BLOB NOT NULL UNIQUE,
    identity_key TEXT, created_at REAL NOT NULL, last_seen REAL
) STRICT, WITHOUT ROWID;
CREATE INDEX devices_by_account ON devices (account_id, created_at);

CREATE TABLE link_codes (
    code BLOB PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts, expires_at REAL NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE agents (
    id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts, name TEXT NOT NULL, token BLOB NOT NULL UNIQUE,
    conversation_id TEXT NOT NULL, bundle TEXT, identity_key TEXT, created_at REAL NOT NULL, last_seen REAL
) STRICT, WITHOUT ROWID;
CREATE INDEX agents_by_account ON agents (account_id, created_at);

CREATE TABLE one_time_prekeys (
    number INTEGER PRIMARY KEY, agent_id TEXT NOT NULL REFERENCES agents ON DELETE CASCADE,
    prekey_id INTEGER NOT NULL, public_key TEXT,  -- NULL once handed out: the id must not be handed out again
    UNIQUE (agent_id, prekey_id)
) STRICT;
CREATE INDEX one_time_prekeys_left ON one_time_prekeys (agent_id, number) WHERE public_key IS NOT NULL;

CREATE TABLE conversations (
    id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts, kind TEXT NOT NULL, title TEXT,
    created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX conversations_by_account ON conversations (account_id, created_at);

CREATE TABLE members (
    conversation_id TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE,
    agent_id TEXT NOT NULL REFERENCES agents ON DELETE CASCADE,
    PRIMARY KEY (conversation_id, agent_id)
) STRICT, WITHOUT ROWID;
CREATE INDEX members_by_agent ON members (agent_id);

CREATE TABLE group_keys (
    number INTEGER PRIMARY KEY,
    conversation_id TEXT NOT NULL REFERENCES conversations ON DELETE CASCADE,
    recipient_id TEXT NOT NULL REFERENCES agents ON DELETE CASCADE,
    key_id TEXT NOT NULL, epoch INTEGER NOT NULL, sender_id TEXT NOT NULL, sender_device_id TEXT NOT NULL,
    envelope TEXT NOT NULL,
    UNIQUE (conversation_id, recipient_id, key_id, epoch, sender_device_id)
) STRICT;
CREATE INDEX group_keys_by_recipient ON group_keys (recipient_id);

CREATE TABLE messages (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, conversation_id TEXT NOT NULL,
    account_id TEXT,  -- the person who wrote it; NULL: an agent did
    frame TEXT NOT NULL, created_at REAL NOT NULL
) STRICT;
CREATE INDEX messages_by_age ON messages (created_at);

-- What an agent or a device has not acknowledged: a message, or a notice of the relay's own.
CREATE TABLE queue (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, mailbox TEXT NOT NULL,
    message INTEGER REFERENCES messages, notice TEXT, size INTEGER NOT NULL, created_at REAL NOT NULL
) STRICT;
CREATE INDEX queue_by_mailbox ON queue (mailbox, seq);
CREATE INDEX queue_by_age ON queue (created_at);
CREATE INDEX queue_by_message ON queue (message, mailbox) WHERE message IS NOT NULL;

CREATE TABLE mailboxes (
    id TEXT PRIMARY KEY, pending INTEGER NOT NULL DEFAULT 0, pending_bytes INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;
CREATE TRIGGER queue_grows AFTER INSERT ON queue BEGIN
    UPDATE mailboxes SET pending = pending + 1, pending_bytes = pending_bytes + NEW.size WHERE id = NEW.mailbox;
END;
CREATE TRIGGER queue_shrinks AFTER DELETE ON queue BEGIN
    UPDATE mailboxes SET pending = pending - 1, pending_bytes = pending_bytes - OLD.size WHERE id = OLD.mailbox;
END;

CREATE TABLE blobs (
    id TEXT PRIMARY KEY, account_id TEXT NOT NULL REFERENCES accounts, name TEXT, sha256 TEXT NOT NULL,
    size INTEGER NOT NULL, created_at REAL NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX blobs_by_account ON blobs (account_id, size);
CREATE INDEX blobs_by_age ON blobs (created_at);
"""


def prepare(connection: sqlite3.Connection) -> None:
    """Makes the tables in an empty file. Raises DataError for a file that is not a relay's or is of a newer one."""
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if version == 0 and tables == 0:
        connection.executescript(
            f"BEGIN;{TABLES}PRAGMA application_id={APPLICATION_ID};PRAGMA user_version={VERSION};COMMIT;"
        )
        return
    if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
        raise DataError("the database file is not a relay's: name another directory")
    if version > VERSION:
        raise DataError(f"the database was written by a newer relay (format {version}): upgrade this one")
