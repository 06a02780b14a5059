"""The command that wakes each agent's assistant, and the runs of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .database import Tx
from .requests import AUTHORIZED

KEPT = 50  # runs of an agent

_SETTING = "agent_id, command, cwd, path, enabled, after_s, max_s, cooldown_s, per_day"
_RUN = "id, agent_id, reason, message_id, how, exit_code, signal, duration_s, output_bytes, started_at, ended_at"


@dataclass(frozen=True, slots=True)
class WakeRow:
    """`command`: JSON list; `path`: for finding programs. Durations are seconds, flags 0 or 1."""

    agent_id: str
    command: str
    cwd: str | None
    path: str | None
    enabled: int
    after_s: float
    max_s: float
    cooldown_s: float
    per_day: int


@dataclass(frozen=True, slots=True)
class RunRow:
    """`how` it ended: exited, timeout, stopped (with the daemon), lost (the daemon was killed), could_not_start."""

    id: str
    agent_id: str
    reason: str  # request, test
    message_id: str | None
    how: str | None
    exit_code: int | None
    signal: int | None
    duration_s: float | None
    output_bytes: int | None
    started_at: str
    ended_at: str | None


def select(tx: Tx) -> list[WakeRow]:
    return [WakeRow(*row) for row in tx.all(f"SELECT {_SETTING} FROM wakes ORDER BY agent_id")]


def find(tx: Tx, agent_id: str) -> WakeRow | None:
    row = tx.one(f"SELECT {_SETTING} FROM wakes WHERE agent_id = ?", (agent_id,))
    return WakeRow(*row) if row else None


def save(tx: Tx, row: WakeRow) -> None:
    tx.execute(
        f"REPLACE INTO wakes ({_SETTING}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            row.agent_id, row.command, row.cwd, row.path, row.enabled, row.after_s, row.max_s, row.cooldown_s,
            row.per_day,
        ),
    )  # fmt: skip


def set_enabled(tx: Tx, agent_id: str, enabled: bool) -> None:
    tx.execute("UPDATE wakes SET enabled = ? WHERE agent_id = ?", (int(enabled), agent_id))


def delete(tx: Tx, agent_id: str) -> None:
    tx.execute("DELETE FROM wakes WHERE agent_id = ?", (agent_id,))


def waiting(tx: Tx, agent_id: str) -> tuple[str, str] | None:
    """(message id, conversation id) of the oldest request that could be handed out and that nobody holds."""
    row = tx.one(
        "SELECT r.message_id, r.conversation_id FROM requests r WHERE r.agent_id = ? AND r.processed_at IS NULL"
        f" AND NOT EXISTS (SELECT 1 FROM claims c WHERE c.request_seq = r.seq) AND {AUTHORIZED} ORDER BY r.seq LIMIT 1",
        (agent_id,),
    )
    return (row[0], row[1]) if row else None


def runs_today(tx: Tx, agent_id: str) -> int:
    """Of the store's own day, which no clock setting ends."""
    count: int = tx.one(
        "SELECT count(*) FROM wake_runs WHERE agent_id = ? AND day = ? AND reason = 'request'", (agent_id, tx.day)
    )[0]
    return count


def begin(tx: Tx, run_id: str, agent_id: str, reason: str, message_id: str | None) -> None:
    tx.execute(
        "INSERT INTO wake_runs (id, agent_id, reason, message_id, day, started_at) VALUES (?, ?, ?, ?, ?, ?)",
        (run_id, agent_id, reason, message_id, tx.day, tx.now),
    )


def end(
    tx: Tx,
    run_id: str,
    *,
    how: str,
    exit_code: int | None = None,
    signal: int | None = None,
    duration_s: float | None = None,
    output_bytes: int | None = None,
) -> None:
    tx.execute(
        "UPDATE wake_runs SET how = ?, exit_code = ?, signal = ?, duration_s = ?, output_bytes = ?, ended_at = ?"
        " WHERE id = ?",
        (how, exit_code, signal, duration_s, output_bytes, tx.now, run_id),
    )


def unended(tx: Tx) -> list[RunRow]:
    return [RunRow(*row) for row in tx.all(f"SELECT {_RUN} FROM wake_runs WHERE how IS NULL ORDER BY seq")]


def run(tx: Tx, run_id: str) -> RunRow | None:
    row = tx.one(f"SELECT {_RUN} FROM wake_runs WHERE id = ?", (run_id,))
    return RunRow(*row) if row else None


def runs(tx: Tx, agent_id: str, limit: int) -> list[RunRow]:
    """The newest, oldest first."""
    rows = tx.all(f"SELECT {_RUN} FROM wake_runs WHERE agent_id = ? ORDER BY seq DESC LIMIT ?", (agent_id, limit))
    return [RunRow(*row) for row in reversed(rows)]


def forget_old(tx: Tx, agent_id: str) -> list[str]:
    """Removes all but the newest runs; returns their ids. Those of today stay: they are counted."""
    rows: list[Any] = tx.all(
        "SELECT id FROM wake_runs WHERE agent_id = ?1 AND day < ?2 AND seq <= coalesce((SELECT seq FROM wake_runs"
        " WHERE agent_id = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?3), 0)",
        (agent_id, tx.day, KEPT),
    )
    for row in rows:
        tx.execute("DELETE FROM wake_runs WHERE id = ?", (row[0],))
    return [row[0] for row in rows]
