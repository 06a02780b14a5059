"""Requests, the receipts that recognise a redelivery, and claims."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import claims
from .database import Tx

# Whether the user lets this person and device ask for anything now; `devices` says how they are let and stopped.
AUTHORIZED = (
    "(NOT EXISTS (SELECT 1 FROM devices d WHERE d.agent_id = r.agent_id AND d.user_id = r.sender"
    " AND d.device_id = coalesce(r.device_id, '') AND d.blocked)"
    " AND (NOT EXISTS (SELECT 1 FROM allow_lists l WHERE l.agent_id = r.agent_id)"
    " OR EXISTS (SELECT 1 FROM allowed a WHERE a.agent_id = r.agent_id AND a.user_id = r.sender)))"
)
# Whether it was encrypted with a key that the user compared. What is written to a group proves no device.
VERIFIED = (
    "(r.encrypted AND NOT r.is_group AND EXISTS (SELECT 1 FROM devices d WHERE d.agent_id = r.agent_id"
    " AND d.user_id = r.sender AND d.device_id = coalesce(r.device_id, '') AND d.verified AND r.seq > d.key_since))"
)
COLUMNS = (
    "r.seq, r.message_id, r.conversation_id, r.sender, r.device_id, r.is_group, r.encrypted, r.kind, r.text,"
    " r.detail, r.files,"
    " r.reply_to, r.received_at, r.handed_out, r.processed_at, r.note, c.session_id, c.call_id, c.fresh,"
    f" c.since, s.label, {VERIFIED}, {AUTHORIZED}"
)
HOLDER, CLAIM_CALL = 16, 17  # places of c.session_id and c.call_id among them
FROM = (
    " FROM requests r LEFT JOIN claims c ON c.request_seq = r.seq LEFT JOIN sessions s ON s.session_id = c.session_id"
)


@dataclass(frozen=True, slots=True)
class NewRequest:
    message_id: str
    conversation_id: str
    sender: str
    device_id: str | None
    is_group: bool
    encrypted: bool
    kind: str
    text: str
    detail: dict[str, Any] | None  # the widget response or update
    files: list[dict[str, Any]] | None  # with the keys that open them
    reply_to: str | None


def receipt_digest(tx: Tx, agent_id: str, message_id: str) -> str | None:
    """What an accepted message looked like; None if there was none with this id."""
    row = tx.one(
        "SELECT digest FROM requests WHERE agent_id = ?1 AND message_id = ?2"
        " UNION ALL SELECT digest FROM receipts WHERE agent_id = ?1 AND message_id = ?2",
        (agent_id, message_id),
    )
    return row[0] if row else None


def insert_request(tx: Tx, agent_id: str, request: NewRequest, digest: str) -> int:
    """Stores the request with what recognises a redelivery of it; returns its seq."""
    cursor = tx.execute(
        "INSERT INTO requests (agent_id, message_id, conversation_id, sender, device_id, is_group, encrypted,"
        " digest, kind, text, detail, files, reply_to, received_at, day)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            agent_id, request.message_id, request.conversation_id, request.sender, request.device_id,
            int(request.is_group), int(request.encrypted), digest, request.kind, request.text,
            json.dumps(request.detail) if request.detail is not None else None,
            json.dumps(request.files) if request.files else None,
            request.reply_to, tx.now, tx.day,
        ),
    )  # fmt: skip
    seq: int = cursor.lastrowid
    return seq


@dataclass(frozen=True, slots=True)
class Taken:
    """What `take` found: rows (see `COLUMNS`), and the seqs claimed just now."""

    rows: list[Any]
    fresh: list[int]
    more: bool  # left out for want of room: by the limit or by what fits
    free: bool  # there are others that nobody holds


def take(
    tx: Tx,
    agent_id: str,
    session_id: str,
    *,
    conversation_id: str | None,
    limit: int,
    after: int,
    include_claimed: bool,
    call_id: str | None,
    share: int | None = None,
    fits: Callable[[Any], bool] | None = None,
) -> Taken:
    """Pending requests for a session, oldest first; unclaimed ones become its own. Only those that are authorized.

    At most `share` become its own now. `fits` is asked for each row as it would be returned, until it says no. With
    `include_claimed`, what others hold, and what the session gave back, is shown too and stays as it is.
    """
    where = f"r.agent_id = ? AND r.processed_at IS NULL AND r.seq > ? AND {AUTHORIZED}"
    parameters: list[Any] = [agent_id, after]
    if conversation_id is not None:
        where += " AND r.conversation_id = ?"
        parameters.append(conversation_id)

    def seqs(more: str, count: int) -> list[int]:
        rows = tx.all(
            f"SELECT r.seq {FROM} WHERE {where} AND {more} ORDER BY r.seq LIMIT ?", (*parameters, session_id, count)
        )
        return [row[0] for row in rows]

    given_back = "SELECT request_seq FROM past_claims WHERE session_id = ? AND taken_by IS NULL"
    unclaimed = seqs(f"c.session_id IS NULL AND r.seq NOT IN ({given_back})", limit + 1)
    free = set(unclaimed if share is None else unclaimed[:share])
    if include_claimed:
        others = seqs(f"r.seq IN (SELECT request_seq FROM claims UNION ALL {given_back})", limit + 1)
    else:
        others = seqs("r.seq IN (SELECT request_seq FROM claims WHERE session_id = ?)", limit + 1)
    found = sorted(free.union(others))
    rows: list[Any] = []
    fresh: list[int] = []
    for seq in found[:limit]:
        if seq in free:
            _claim(tx, seq, session_id, call_id)
        row = by_seq(tx, seq)
        if fits is not None and not fits(row):
            if seq in free:
                hand_back(tx, [seq], session_id, call_id)
            break
        if seq in free:
            fresh.append(seq)
            claims.reunite(tx, seq, session_id)
        elif row[HOLDER] == session_id and row[CLAIM_CALL] != call_id:
            # Seen by a later call: what the earlier one does from now on, such as being cancelled, does not end it.
            tx.execute("UPDATE claims SET call_id = ?, fresh = 0 WHERE request_seq = ?", (call_id, seq))
        rows.append(row)
    return Taken(rows, fresh, more=len(rows) < len(found), free=len(fresh) < len(unclaimed))


def _claim(tx: Tx, seq: int, session_id: str, call_id: str | None) -> None:
    tx.execute(
        "INSERT INTO claims (request_seq, agent_id, session_id, call_id, fresh, since)"
        " SELECT seq, agent_id, ?, ?, handed_out = 0, ? FROM requests WHERE seq = ?",
        (session_id, call_id, tx.now, seq),
    )
    tx.execute("UPDATE requests SET handed_out = handed_out + 1 WHERE seq = ?", (seq,))


def hand_back(tx: Tx, seqs: list[int], session_id: str, call_id: str | None) -> list[int]:
    """Undoes the claims of a call whose answer never left the daemon: the requests are as new as before.

    Returns those that it still had.
    """
    ended = []
    for seq in seqs:
        if tx.execute(
            "DELETE FROM claims WHERE request_seq = ? AND session_id = ? AND call_id IS ?", (seq, session_id, call_id)
        ).rowcount:
            tx.execute("UPDATE requests SET handed_out = handed_out - 1 WHERE seq = ?", (seq,))
            ended.append(seq)
    return ended


def release_session(tx: Tx, session_id: str) -> list[tuple[str, int]]:
    """Ends a session's claims; returns (agent id, seq) of the requests that can be handed out again."""
    rows = tx.all("SELECT agent_id, request_seq FROM claims WHERE session_id = ? ORDER BY request_seq", (session_id,))
    tx.execute("DELETE FROM claims WHERE session_id = ?", (session_id,))
    tx.execute("DELETE FROM sessions WHERE session_id = ?", (session_id,))
    return [(row[0], row[1]) for row in rows]


def save_session(tx: Tx, session_id: str, label: str, pid: int | None, started: float | None) -> None:
    tx.execute(
        "INSERT INTO sessions (session_id, label, pid, started) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (session_id) DO UPDATE SET label = excluded.label, pid = excluded.pid, started ="
        " excluded.started",
        (session_id, label, pid, started),
    )


def claiming_sessions(tx: Tx) -> list[tuple[str, str | None, int | None, float | None]]:
    """(session id, label, shim's pid, its start time) of every session that holds a claim; the others are forgotten."""
    tx.execute("DELETE FROM sessions WHERE session_id NOT IN (SELECT session_id FROM claims)")
    rows = tx.all(
        "SELECT DISTINCT c.session_id, s.label, s.pid, s.started FROM claims c LEFT JOIN sessions s ON"
        " s.session_id = c.session_id"
    )
    return [(r[0], r[1], r[2], r[3]) for r in rows]


def claim_counts(tx: Tx) -> dict[str, int]:
    return {row[0]: row[1] for row in tx.all("SELECT session_id, count(*) FROM claims GROUP BY session_id")}


def ids(tx: Tx, seq: int) -> dict[str, Any]:
    """What names a request in an event."""
    row = tx.one("SELECT message_id, conversation_id FROM requests WHERE seq = ?", (seq,))
    return {"message_id": row[0], "conversation_id": row[1]}


def by_seq(tx: Tx, seq: int) -> Any:
    return tx.one(f"SELECT {COLUMNS}{FROM} WHERE r.seq = ?", (seq,))


def by_message_id(tx: Tx, agent_id: str, message_id: str) -> Any:
    return tx.one(f"SELECT {COLUMNS}{FROM} WHERE r.agent_id = ? AND r.message_id = ?", (agent_id, message_id))


def select(
    tx: Tx,
    agent_id: str,
    *,
    pending: bool = False,
    authorized: bool = False,
    kind: str | None = None,
    conversation_id: str | None = None,
    before: int | None = None,
    limit: int,
) -> list[Any]:
    """The newest matching requests, oldest first."""
    where, parameters = "r.agent_id = ?", [agent_id]
    clauses: list[tuple[str, Any]] = []
    if pending:
        where += " AND r.processed_at IS NULL"
    if authorized:
        where += f" AND {AUTHORIZED}"
    for clause, value in (
        ("r.kind = ?", kind),
        ("r.conversation_id = ?", conversation_id),
        ("r.seq < ?", before),
    ):
        if value is not None:
            clauses.append((clause, value))
    for clause, value in clauses:
        where += f" AND {clause}"
        parameters.append(value)
    rows = tx.all(f"SELECT {COLUMNS}{FROM} WHERE {where} ORDER BY r.seq DESC LIMIT ?", (*parameters, limit))
    return rows[::-1]


def pending_seqs(tx: Tx, agent_id: str, limit: int) -> list[int]:
    """Those that can be handed out or are, oldest first."""
    rows = tx.all(
        f"SELECT r.seq FROM requests r WHERE r.agent_id = ? AND r.processed_at IS NULL AND {AUTHORIZED}"
        " ORDER BY r.seq LIMIT ?",
        (agent_id, limit),
    )
    return [row[0] for row in rows]


def files_of(tx: Tx, agent_id: str, message_id: str) -> list[dict[str, Any]] | None:
    """The files of a request with their keys; None if there is no such request."""
    row = tx.one("SELECT files FROM requests WHERE agent_id = ? AND message_id = ?", (agent_id, message_id))
    return None if row is None else json.loads(row[0] or "[]")


def mark_processed(tx: Tx, seq: int, note: str | None) -> None:
    tx.execute("UPDATE requests SET processed_at = ?, note = ?, day = ? WHERE seq = ?", (tx.now, note, tx.day, seq))
    tx.execute("DELETE FROM claims WHERE request_seq = ?", (seq,))


def counts(tx: Tx, agent_id: str) -> dict[str, int]:
    """pending (what can be handed out or is), claimed."""
    stopped = tx.one(
        "SELECT EXISTS (SELECT 1 FROM allow_lists WHERE agent_id = ?1)"
        " OR EXISTS (SELECT 1 FROM devices WHERE agent_id = ?1 AND blocked)",
        (agent_id,),
    )[0]
    row = tx.one(
        "SELECT (SELECT count(*) FROM requests r WHERE agent_id = ?1 AND processed_at IS NULL"
        f"{f' AND {AUTHORIZED}' if stopped else ''}),"
        " (SELECT count(*) FROM claims WHERE agent_id = ?1)",
        (agent_id,),
    )
    return {"pending": row[0], "claimed": row[1]}
