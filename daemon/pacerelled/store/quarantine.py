"""Inbound messages that could not be accepted, or that wait for the user's decision, with the reason.

They are kept as they came; what had been decrypted is kept too, since it cannot be decrypted again. Bounded by rows and
by bytes: the oldest give way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from . import events
from .database import Tx

LIMIT_ROWS = 1000  # of an agent
LIMIT_BYTES = 64 * 1024 * 1024  # of an agent's frames and plaintexts; the newest is kept, however large

_LISTED = ("id", "reason", "detail", "message_id", "conversation_id", "sender", "device_id", "size", "times", "at")


@dataclass(frozen=True, slots=True)
class Kept:
    """A row with its content."""

    id: int
    frame: bytes = field(repr=False)
    plaintext: bytes | None = field(repr=False)


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which rows are meant: of those with any of the values that are given. With none, all."""

    number: int | None = None
    reasons: tuple[str, ...] = ()
    sender: str | None = None
    device_id: str | None = None  # only with `sender`; '': without a device
    conversation_id: str | None = None


def add(
    tx: Tx,
    agent_id: str,
    *,
    key: str,
    reason: str,
    detail: str,
    frame: str,
    digest: str | None = None,
    message_id: str | None = None,
    conversation_id: str | None = None,
    sender: str | None = None,
    device_id: str | None = None,
    plaintext: bytes | None = None,
) -> bool:
    """Keeps a frame. False if this very thing (`key`) is there already: then only its count grows.

    `digest` is what a receipt of the message would have.
    """
    known = tx.execute("UPDATE quarantine SET times = times + 1 WHERE agent_id = ? AND key = ?", (agent_id, key))
    if known.rowcount:
        return False
    tx.execute(
        "INSERT INTO quarantine (agent_id, key, digest, reason, detail, message_id, conversation_id, sender, device_id,"
        " size, at, frame, plaintext) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            agent_id, key, digest, reason, detail, message_id, conversation_id, sender, device_id,
            len(frame.encode()) + len(plaintext or b""), tx.now, frame, plaintext,
        ),
    )  # fmt: skip
    _make_room(tx, agent_id)
    return True


def _make_room(tx: Tx, agent_id: str) -> None:
    rows = tx.all("SELECT id, size FROM quarantine WHERE agent_id = ? ORDER BY id", (agent_id,))
    excess_rows, excess_bytes = len(rows) - LIMIT_ROWS, sum(row[1] for row in rows) - LIMIT_BYTES
    gone = []
    for number, size in rows[:-1]:
        if excess_rows <= 0 and excess_bytes <= 0:
            break
        gone.append(number)
        excess_rows -= 1
        excess_bytes -= size
    if gone:
        for number in gone:
            remove(tx, number)
        events.add(tx, agent_id, "quarantine.overflowed", dropped=len(gone))


def again(tx: Tx, number: int, *, reason: str, detail: str, plaintext: bytes | None) -> None:
    """It was tried again and not accepted. What had been decrypted stays."""
    tx.execute(
        "UPDATE quarantine SET reason = ?1, detail = ?2, plaintext = coalesce(plaintext, ?3),"
        " size = size + CASE WHEN plaintext IS NULL THEN coalesce(length(?3), 0) ELSE 0 END WHERE id = ?4",
        (reason, detail, plaintext, number),
    )


def remove(tx: Tx, number: int) -> None:
    tx.execute("DELETE FROM quarantine WHERE id = ?", (number,))


def drop(tx: Tx, number: int) -> None:
    """Removes it for good: the relay's repeating it will be taken for one of a message that was accepted."""
    tx.execute(
        "INSERT INTO receipts (agent_id, message_id, digest, day) SELECT q.agent_id, q.message_id, q.digest, ?1"
        " FROM quarantine q WHERE q.id = ?2 AND q.message_id IS NOT NULL AND q.digest IS NOT NULL"
        " AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.agent_id = q.agent_id AND r.message_id = q.message_id)"
        " ON CONFLICT DO NOTHING",
        (tx.day, number),
    )
    remove(tx, number)


def content(tx: Tx, number: int) -> Kept:
    row = tx.one("SELECT id, frame, plaintext FROM quarantine WHERE id = ?", (number,))
    return Kept(row[0], row[1].encode(), None if row[2] is None else bytes(row[2]))


def numbers(tx: Tx, agent_id: str, chosen: Chosen) -> list[int]:
    """The ids of the rows that are meant, oldest first."""
    where, parameters = _where(agent_id, chosen)
    return [row[0] for row in tx.all(f"SELECT id FROM quarantine WHERE {where} ORDER BY id", parameters)]


def select(tx: Tx, agent_id: str, chosen: Chosen) -> list[dict[str, Any]]:
    """Oldest first, without the contents; `decrypted` says whether there is text to show."""
    where, parameters = _where(agent_id, chosen)
    rows = tx.all(
        f"SELECT {', '.join(_LISTED)}, plaintext IS NOT NULL FROM quarantine WHERE {where} ORDER BY id", parameters
    )
    return [dict(zip((*_LISTED, "decrypted"), (*row[:-1], bool(row[-1])), strict=True)) for row in rows]


def conversations(tx: Tx, agent_id: str, reason: str) -> list[str]:
    rows = tx.all(
        "SELECT DISTINCT conversation_id FROM quarantine WHERE agent_id = ? AND reason = ?"
        " AND conversation_id IS NOT NULL ORDER BY 1",
        (agent_id, reason),
    )
    return [row[0] for row in rows]


def counts(tx: Tx, agent_id: str) -> dict[str, int]:
    """How many by reason."""
    rows: Iterable[Any] = tx.all(
        "SELECT reason, count(*) FROM quarantine WHERE agent_id = ? GROUP BY reason ORDER BY reason", (agent_id,)
    )
    return {row[0]: row[1] for row in rows}


def _where(agent_id: str, chosen: Chosen) -> tuple[str, tuple[Any, ...]]:
    clauses: list[str] = ["agent_id = ?"]
    parameters: list[Any] = [agent_id]
    for clause, value in (
        ("id = ?", chosen.number),
        ("sender = ?", chosen.sender),
        ("coalesce(device_id, '') = ?", chosen.device_id),
        ("conversation_id = ?", chosen.conversation_id),
    ):
        if value is not None:
            clauses.append(clause)
            parameters.append(value)
    if chosen.reasons:
        clauses.append(f"reason IN ({', '.join('?' * len(chosen.reasons))})")
        parameters.extend(chosen.reasons)
    return " AND ".join(clauses), tuple(parameters)
