"""Agents, their Signal state in pieces, and the prekeys made for publishing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pacerelled.errors import StoreCorrupt

from .database import RESTORE_HINT, Tx


@dataclass(frozen=True, slots=True)
class AgentRow:
    agent_id: str
    base_url: str
    ws_url: str | None
    e2ee: bool


@dataclass(frozen=True, slots=True)
class PrekeySet:
    """A published (or about to be published) signed + Kyber pair with its one-time prekeys, in the HTTP form."""

    signed_id: int
    bundle: dict[str, Any]
    one_time: dict[str, Any]
    published: bool


def list_agents(tx: Tx) -> list[AgentRow]:
    rows = tx.all("SELECT agent_id, base_url, ws_url, e2ee FROM agents ORDER BY rowid")
    return [AgentRow(r[0], r[1], r[2], bool(r[3])) for r in rows]


def save_agent(tx: Tx, row: AgentRow) -> None:
    tx.execute(
        "INSERT INTO agents (agent_id, base_url, ws_url, e2ee, created_at) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (agent_id) DO UPDATE SET base_url = excluded.base_url, ws_url = excluded.ws_url, e2ee ="
        " excluded.e2ee",
        (row.agent_id, row.base_url, row.ws_url, int(row.e2ee), tx.now),
    )


def remove_agent(tx: Tx, agent_id: str, *, purge: bool) -> None:
    """Forgets the agent; with `purge` also its keys and everything it ever received or sent."""
    tx.execute("DELETE FROM agents WHERE agent_id = ?", (agent_id,))
    tx.execute("DELETE FROM wakes WHERE agent_id = ?", (agent_id,))
    if not purge:
        return
    tx.execute("DELETE FROM claims WHERE agent_id = ?", (agent_id,))
    for table in (
        "signal_pieces", "prekey_sets", "conversations", "devices", "device_sessions", "allow_lists", "allowed",
        "group_keys", "receipts", "requests", "replies", "checkpoints", "calls", "quarantine",
        "approval_conversations", "coding_origins", "approvals",
        "wake_runs", "widget_expiries",
    ):  # fmt: skip
        tx.execute(f"DELETE FROM {table} WHERE agent_id = ?", (agent_id,))
    # Their numbers stay, so that nobody who follows the log takes them for missing.
    tx.execute("UPDATE events SET agent_id = NULL, data = '{}' WHERE agent_id = ?", (agent_id,))


def load_pieces(tx: Tx, agent_id: str) -> dict[str, bytes]:
    """The agent's Signal state. Raises StoreCorrupt if a piece is not what was written for this agent."""
    pieces: dict[str, bytes] = {}
    for row in tx.all("SELECT piece, data, checksum FROM signal_pieces WHERE agent_id = ?", (agent_id,)):
        piece, data, checksum = row[0], bytes(row[1]), bytes(row[2])
        if checksum != _checksum(agent_id, piece, data):
            raise StoreCorrupt(f"The encryption state of agent {agent_id} is damaged", hint=RESTORE_HINT)
        pieces[piece] = data
    return pieces


def save_pieces(tx: Tx, agent_id: str, upserts: Mapping[str, bytes], deletes: Iterable[str]) -> None:
    for piece, data in upserts.items():
        tx.execute(
            "INSERT INTO signal_pieces (agent_id, piece, data, checksum) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (agent_id, piece) DO UPDATE SET data = excluded.data, checksum = excluded.checksum",
            (agent_id, piece, data, _checksum(agent_id, piece, data)),
        )
    for piece in deletes:
        tx.execute("DELETE FROM signal_pieces WHERE agent_id = ? AND piece = ?", (agent_id, piece))


def prekey_sets(tx: Tx, agent_id: str) -> list[PrekeySet]:
    """Newest first."""
    rows = tx.all(
        "SELECT signed_id, bundle, one_time, published FROM prekey_sets WHERE agent_id = ? ORDER BY rowid DESC",
        (agent_id,),
    )
    return [PrekeySet(r[0], json.loads(r[1]), json.loads(r[2]), bool(r[3])) for r in rows]


def add_prekey_set(tx: Tx, agent_id: str, signed_id: int, bundle: dict[str, Any], one_time: dict[str, Any]) -> None:
    tx.execute(
        "INSERT INTO prekey_sets (agent_id, signed_id, bundle, one_time, created_at) VALUES (?, ?, ?, ?, ?)",
        (agent_id, signed_id, json.dumps(bundle), json.dumps(one_time), tx.now),
    )


def prekeys_published(tx: Tx, agent_id: str, signed_id: int) -> None:
    tx.execute("UPDATE prekey_sets SET published = 1 WHERE agent_id = ? AND signed_id = ?", (agent_id, signed_id))


def drop_prekey_set(tx: Tx, agent_id: str, signed_id: int) -> None:
    tx.execute("DELETE FROM prekey_sets WHERE agent_id = ? AND signed_id = ?", (agent_id, signed_id))


def _checksum(agent_id: str, piece: str, data: bytes) -> bytes:
    """Binds the bytes to their agent: the Signal runtime would load another agent's state without a word."""
    head = f"{agent_id}\0{piece}\0".encode()
    return hashlib.sha256(head + data).digest()
