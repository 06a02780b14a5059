"""The tables, as migrations. A name that is applied but unknown here means: written by a newer version."""

from __future__ import annotations

from .driver import Database, Migrations

migrations = Migrations("pacerelled")
KNOWN = frozenset({"0001_first"})


@migrations(name="0001_first")
def first(db: Database) -> None:
    for statement in FIRST.split(";"):
        if statement.strip():
            db.execute(statement)


def unknown_migrations(db: Database) -> list[str]:
    """Names that a newer version has applied to this store."""
    return sorted(m.name for m in migrations.applied(db) if m.name not in KNOWN)


# `seq` columns grow and are never used again (AUTOINCREMENT): they are cursors that outlive restarts.
# Times are ISO 8601 UTC text, for people only. `day` is the store's own day (clock.py) of a row's last change.
# A request is the receipt of its message, which spares a second index over random ids; `receipts` are of messages whose
# request is not kept any more.
# `past_claims` are those that a session gave back itself, or lost to another (`taken_by`, its label).
# A device without an id ('') is a person's client from before devices existed. The large columns of `quarantine` come
# last: what is read to list and count its rows stands before them.
FIRST = """
CREATE TABLE agents (
    agent_id   TEXT PRIMARY KEY,
    base_url   TEXT NOT NULL,
    ws_url     TEXT,
    e2ee       INTEGER NOT NULL,
    created_at TEXT NOT NULL
);
CREATE TABLE signal_pieces (
    agent_id TEXT NOT NULL,
    piece    TEXT NOT NULL,
    data     BLOB NOT NULL,
    checksum BLOB NOT NULL,
    PRIMARY KEY (agent_id, piece)
);
CREATE TABLE prekey_sets (
    agent_id   TEXT NOT NULL,
    signed_id  INTEGER NOT NULL,
    bundle     TEXT NOT NULL,
    one_time   TEXT NOT NULL,
    published  INTEGER NOT NULL DEFAULT 0,
    created_at TEXT NOT NULL,
    PRIMARY KEY (agent_id, signed_id)
);
CREATE TABLE conversations (
    agent_id        TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    is_group        INTEGER NOT NULL DEFAULT 0,
    last_sender     TEXT,
    history_key_id  TEXT,
    history_epoch   INTEGER,
    history_key     BLOB,
    PRIMARY KEY (agent_id, conversation_id)
);
CREATE TABLE devices (
    agent_id     TEXT NOT NULL,
    user_id      TEXT NOT NULL,
    device_id    TEXT NOT NULL,
    identity_key BLOB,
    changed_key  BLOB,
    refused_key  BLOB,
    verified     INTEGER NOT NULL DEFAULT 0,
    blocked      INTEGER NOT NULL DEFAULT 0,
    key_since    INTEGER NOT NULL DEFAULT 0,
    first_seen   TEXT NOT NULL,
    last_seen    TEXT NOT NULL,
    noticed_at   TEXT,
    PRIMARY KEY (agent_id, user_id, device_id)
);
CREATE TABLE device_sessions (
    agent_id        TEXT NOT NULL,
    user_id         TEXT NOT NULL,
    device_id       TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    legacy          INTEGER NOT NULL,
    PRIMARY KEY (agent_id, user_id, device_id, conversation_id)
) WITHOUT ROWID;
CREATE TABLE allow_lists (
    agent_id TEXT PRIMARY KEY
) WITHOUT ROWID;
CREATE TABLE allowed (
    agent_id TEXT NOT NULL,
    user_id  TEXT NOT NULL,
    PRIMARY KEY (agent_id, user_id)
) WITHOUT ROWID;
CREATE TABLE group_keys (
    agent_id        TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    key_id          TEXT NOT NULL,
    epoch           INTEGER NOT NULL,
    raw             BLOB NOT NULL,
    PRIMARY KEY (agent_id, conversation_id, key_id, epoch)
);
CREATE TABLE receipts (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id   TEXT NOT NULL,
    message_id TEXT NOT NULL,
    digest     TEXT NOT NULL,
    day        INTEGER NOT NULL,
    UNIQUE (agent_id, message_id)
);
CREATE TABLE requests (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id        TEXT NOT NULL,
    message_id      TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    sender          TEXT NOT NULL,
    device_id       TEXT,
    is_group        INTEGER NOT NULL,
    encrypted       INTEGER NOT NULL,
    digest          TEXT NOT NULL,
    kind            TEXT NOT NULL,
    text            TEXT NOT NULL,
    detail          TEXT,
    files           TEXT,
    reply_to        TEXT,
    received_at     TEXT NOT NULL,
    handed_out      INTEGER NOT NULL DEFAULT 0,
    processed_at    TEXT,
    note            TEXT,
    day             INTEGER NOT NULL,
    UNIQUE (agent_id, message_id)
);
CREATE INDEX requests_pending ON requests (agent_id, seq) WHERE processed_at IS NULL;
CREATE INDEX requests_at_rest ON requests (agent_id, day) WHERE processed_at IS NOT NULL;
CREATE INDEX requests_by_conversation ON requests (agent_id, conversation_id, seq);
CREATE TABLE claims (
    request_seq INTEGER PRIMARY KEY REFERENCES requests (seq) ON DELETE CASCADE,
    agent_id    TEXT NOT NULL,
    session_id  TEXT NOT NULL,
    call_id     TEXT,
    fresh       INTEGER NOT NULL,
    since       TEXT NOT NULL
);
CREATE INDEX claims_by_session ON claims (session_id);
CREATE TABLE past_claims (
    request_seq INTEGER NOT NULL REFERENCES requests (seq) ON DELETE CASCADE,
    session_id  TEXT NOT NULL,
    taken_by    TEXT,
    at          TEXT NOT NULL,
    PRIMARY KEY (session_id, request_seq)
) WITHOUT ROWID;
CREATE INDEX past_claims_by_request ON past_claims (request_seq);
CREATE TABLE sessions (
    session_id TEXT PRIMARY KEY,
    label      TEXT NOT NULL,
    pid        INTEGER,
    started    REAL
);
CREATE TABLE replies (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id        TEXT NOT NULL,
    message_id      TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    recipient       TEXT NOT NULL,
    device_id       TEXT,
    kind            TEXT NOT NULL,
    text            TEXT NOT NULL,
    widget_id       TEXT,
    widget          TEXT,
    source_id       TEXT,
    reply_to        TEXT,
    envelope        TEXT NOT NULL,
    state           TEXT NOT NULL,
    reason          TEXT,
    attempts        INTEGER NOT NULL DEFAULT 0,
    call_key        TEXT,
    digest          TEXT NOT NULL,
    created_at      TEXT NOT NULL,
    updated_at      TEXT NOT NULL,
    day             INTEGER NOT NULL,
    UNIQUE (agent_id, message_id)
);
CREATE INDEX replies_open ON replies (agent_id, seq) WHERE state IN ('queued', 'sending', 'uncertain');
CREATE INDEX replies_at_rest ON replies (agent_id, day) WHERE state IN ('submitted', 'failed', 'dropped');
CREATE INDEX replies_by_conversation ON replies (agent_id, conversation_id, seq);
CREATE INDEX replies_by_widget ON replies (agent_id, conversation_id, widget_id) WHERE widget_id IS NOT NULL;
CREATE UNIQUE INDEX replies_by_call ON replies (agent_id, call_key) WHERE call_key IS NOT NULL;
CREATE TABLE checkpoints (
    seq             INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id        TEXT NOT NULL,
    source_id       TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    summary         TEXT NOT NULL,
    next_action     TEXT NOT NULL,
    label           TEXT,
    status          TEXT NOT NULL,
    updated_at      TEXT NOT NULL,
    UNIQUE (agent_id, source_id)
);
CREATE TABLE calls (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id TEXT NOT NULL,
    call_key TEXT NOT NULL,
    digest   TEXT NOT NULL,
    result   TEXT NOT NULL,
    UNIQUE (agent_id, call_key)
);
CREATE TABLE quarantine (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    agent_id        TEXT NOT NULL,
    key             TEXT NOT NULL,
    digest          TEXT,
    reason          TEXT NOT NULL,
    detail          TEXT NOT NULL,
    message_id      TEXT,
    conversation_id TEXT,
    sender          TEXT,
    device_id       TEXT,
    size            INTEGER NOT NULL,
    times           INTEGER NOT NULL DEFAULT 1,
    at              TEXT NOT NULL,
    frame           TEXT NOT NULL,
    plaintext       BLOB,
    UNIQUE (agent_id, key)
);
CREATE TABLE events (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    at       TEXT NOT NULL,
    agent_id TEXT,
    type     TEXT NOT NULL,
    data     TEXT NOT NULL,
    day      INTEGER NOT NULL
);
CREATE TABLE access_tokens (
    id           TEXT NOT NULL UNIQUE,
    digest       BLOB NOT NULL UNIQUE,
    label        TEXT NOT NULL UNIQUE,
    scope        TEXT NOT NULL,
    agents       TEXT NOT NULL,
    labels       TEXT NOT NULL,
    created_at   TEXT NOT NULL,
    last_used_at TEXT
);
CREATE TABLE event_log (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    epoch TEXT NOT NULL
);
INSERT INTO event_log (one, epoch) VALUES (1, lower(hex(randomblob(6))));
CREATE TABLE paseo_servers (
    server_id TEXT PRIMARY KEY
) WITHOUT ROWID;
CREATE TABLE paseo_agents (
    server_id TEXT NOT NULL,
    agent_id  TEXT NOT NULL,
    state     TEXT NOT NULL,
    PRIMARY KEY (server_id, agent_id)
) WITHOUT ROWID;
CREATE TABLE paseo_calls (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    call_key TEXT NOT NULL UNIQUE,
    digest   TEXT NOT NULL,
    tag      TEXT NOT NULL,
    result   TEXT
);
CREATE TABLE approval_conversations (
    agent_id        TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    every_agent     INTEGER NOT NULL,
    UNIQUE (agent_id, conversation_id)
);
CREATE TABLE coding_origins (
    coding_agent_id TEXT PRIMARY KEY,
    agent_id        TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    source_id       TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE approvals (
    coding_agent_id TEXT NOT NULL,
    request_id      TEXT NOT NULL,
    agent_id        TEXT NOT NULL,
    message_id      TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    person          TEXT NOT NULL,
    device_id       TEXT,
    authorization   TEXT NOT NULL,
    expires_at      TEXT NOT NULL,
    state           TEXT NOT NULL,
    decision        TEXT,
    UNIQUE (coding_agent_id, request_id)
);
CREATE INDEX approvals_by_reply ON approvals (agent_id, message_id);
CREATE TABLE webhooks (
    id         TEXT PRIMARY KEY,
    url        TEXT NOT NULL,
    secret     TEXT NOT NULL,
    wanted     TEXT NOT NULL,
    bundle_s   REAL NOT NULL,
    paused     INTEGER NOT NULL DEFAULT 0,
    reason     TEXT,
    failures   INTEGER NOT NULL DEFAULT 0,
    skipped    INTEGER NOT NULL DEFAULT 0,
    missed     INTEGER NOT NULL DEFAULT 0,
    cursor     TEXT NOT NULL,
    created_at TEXT NOT NULL
);
CREATE TABLE deliveries (
    seq         INTEGER PRIMARY KEY AUTOINCREMENT,
    id          TEXT NOT NULL UNIQUE,
    webhook_id  TEXT NOT NULL REFERENCES webhooks (id) ON DELETE CASCADE,
    events      TEXT NOT NULL,
    event_id    TEXT NOT NULL,
    count       INTEGER NOT NULL,
    missed      INTEGER NOT NULL,
    state       TEXT NOT NULL,
    attempts    INTEGER NOT NULL DEFAULT 0,
    code        INTEGER,
    error       TEXT,
    created_at  TEXT NOT NULL,
    updated_at  TEXT NOT NULL
);
CREATE INDEX deliveries_by_webhook ON deliveries (webhook_id, seq);
CREATE TABLE wakes (
    agent_id   TEXT PRIMARY KEY,
    command    TEXT NOT NULL,
    cwd        TEXT,
    path       TEXT,
    enabled    INTEGER NOT NULL,
    after_s    REAL NOT NULL,
    max_s      REAL NOT NULL,
    cooldown_s REAL NOT NULL,
    per_day    INTEGER NOT NULL
);
CREATE TABLE wake_runs (
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    id           TEXT NOT NULL UNIQUE,
    agent_id     TEXT NOT NULL,
    reason       TEXT NOT NULL,
    message_id   TEXT,
    how          TEXT,
    exit_code    INTEGER,
    signal       INTEGER,
    duration_s   REAL,
    output_bytes INTEGER,
    day          INTEGER NOT NULL,
    started_at   TEXT NOT NULL,
    ended_at     TEXT
);
CREATE INDEX wake_runs_by_agent ON wake_runs (agent_id, seq);
CREATE TABLE overdue_marks (
    request_seq INTEGER PRIMARY KEY,
    lived       REAL NOT NULL
);
CREATE TABLE overdue_seen (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    request_seq INTEGER NOT NULL
);
CREATE TABLE widget_expiries (
    agent_id        TEXT NOT NULL,
    message_id      TEXT NOT NULL,
    conversation_id TEXT NOT NULL,
    expires         REAL NOT NULL,
    PRIMARY KEY (agent_id, message_id)
) WITHOUT ROWID;
CREATE TABLE clock (
    one   INTEGER PRIMARY KEY CHECK (one = 1),
    lived REAL NOT NULL,
    wall  REAL NOT NULL
)
"""
