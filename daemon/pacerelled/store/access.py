"""Access tokens of hosts that speak HTTP: only a digest of each, never the token."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .database import Tx


@dataclass(frozen=True, slots=True)
class AccessRow:
    id: str
    digest: bytes
    label: str
    scope: str
    agents: tuple[str, ...]
    created_at: str
    last_used_at: str | None
    labels: dict[str, str]


def select(tx: Tx) -> list[AccessRow]:
    """Oldest first."""
    rows = tx.all(
        "SELECT id, digest, label, scope, agents, created_at, last_used_at, labels FROM access_tokens ORDER BY rowid"
    )
    return [
        AccessRow(r[0], bytes(r[1]), r[2], r[3], tuple(json.loads(r[4])), r[5], r[6], json.loads(r[7])) for r in rows
    ]


def insert(tx: Tx, row: AccessRow) -> None:
    tx.execute(
        "INSERT INTO access_tokens (id, digest, label, scope, agents, created_at, labels) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (row.id, row.digest, row.label, row.scope, json.dumps(row.agents), row.created_at, json.dumps(row.labels)),
    )


def used(tx: Tx, token_id: str, at: str) -> None:
    tx.execute("UPDATE access_tokens SET last_used_at = ? WHERE id = ?", (at, token_id))


def delete(tx: Tx, token_id: str) -> None:
    tx.execute("DELETE FROM access_tokens WHERE id = ?", (token_id,))
