"""Accounts, devices, agents, and the tokens that prove who calls. Runs on the database's thread.

A token is 256 random bits, shown once; the database has its SHA-256 only.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import sqlite3
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .errors import Conflict, Forbidden, NotFound, OverQuota, Unauthorized
from .limits import Limits

LINK_ALPHABET = "23456789ABCDEFGHJKLMNPQRSTUVWXYZ"  # 32 characters that are not taken for one another
LINK_GROUPS, LINK_GROUP = 4, 4  # 80 bits


@dataclass(frozen=True, slots=True)
class Device:
    """A person's device, as its token proves."""

    id: str
    account_id: str


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent, as its token proves."""

    id: str
    account_id: str


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def new_id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(10)}"


def iso(at: float | None) -> str | None:
    """ISO 8601 UTC, for people."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")


def device_by_token(db: sqlite3.Connection, token: str) -> Device:
    """Raises Unauthorized."""
    row = _by_token(db, "devices", token)
    return Device(*row)


def agent_by_token(db: sqlite3.Connection, token: str) -> Agent:
    """Raises Unauthorized."""
    row = _by_token(db, "agents", token)
    return Agent(*row)


def _by_token(db: sqlite3.Connection, table: str, token: str) -> tuple[str, str]:
    presented = digest(token)
    row = db.execute(f"SELECT id, account_id, token FROM {table} WHERE token = ?", (presented,)).fetchone()
    # The index finds by digest, which a caller cannot steer; the decision itself takes constant time.
    if row is None or not hmac.compare_digest(row[2], presented):
        raise Unauthorized("the token is not valid here: it was mistyped, replaced or revoked")
    return row[0], row[1]


# Accounts and devices


def create_account(db: sqlite3.Connection, name: str, device_name: str | None, now: float) -> dict[str, Any]:
    account_id = new_id("u")
    db.execute("INSERT INTO accounts VALUES (?, ?, ?)", (account_id, name, now))
    return _add_device(db, account_id, device_name, now)


def create_link_code(db: sqlite3.Connection, device: Device, limits: Limits, now: float) -> dict[str, Any]:
    db.execute("DELETE FROM link_codes WHERE expires_at <= ? OR account_id = ?", (now, device.account_id))
    groups = ("".join(secrets.choice(LINK_ALPHABET) for _ in range(LINK_GROUP)) for _ in range(LINK_GROUPS))
    code = "-".join(groups)
    db.execute(
        "INSERT INTO link_codes VALUES (?, ?, ?)",
        (digest(code), device.account_id, now + limits.link_code_s),
    )
    return {"link_code": code, "expires_in": int(limits.link_code_s)}


def link_device(
    db: sqlite3.Connection, code: str, device_name: str | None, limits: Limits, now: float
) -> dict[str, Any]:
    """Uses the code up. Raises NotFound for a code that is unknown, used or too old."""
    row = db.execute(
        "DELETE FROM link_codes WHERE code = ? RETURNING account_id, expires_at",
        (digest(code.strip().upper()),),
    ).fetchone()
    if row is None or row[1] <= now:
        raise NotFound("the link code is unknown, used or too old: make a new one", code="link_code")
    account_id: str = row[0]
    _count(db, "devices", account_id, limits.devices)
    return _add_device(db, account_id, device_name, now)


def _add_device(db: sqlite3.Connection, account_id: str, name: str | None, now: float) -> dict[str, Any]:
    device_id, token = new_id("d"), secrets.token_urlsafe(32)
    db.execute(
        "INSERT INTO devices (id, account_id, name, token, created_at) VALUES (?, ?, ?, ?, ?)",
        (device_id, account_id, name, digest(token), now),
    )
    db.execute("INSERT INTO mailboxes (id) VALUES (?)", (device_id,))
    return {"user_id": account_id, "device_id": device_id, "device_token": token}


def list_devices(db: sqlite3.Connection, device: Device) -> dict[str, Any]:
    rows = db.execute(
        "SELECT id, name, identity_key, created_at, last_seen FROM devices WHERE account_id = ?"
        " ORDER BY created_at, id",
        (device.account_id,),
    )
    return {
        "devices": [
            {
                "device_id": id,
                "name": name,
                "identity_key": identity_key,
                "created_at": iso(created_at),
                "last_seen": iso(last_seen),
                "current": id == device.id,
            }
            for id, name, identity_key, created_at, last_seen in rows
        ]
    }


def remove_device(db: sqlite3.Connection, device: Device, device_id: str) -> None:
    """Raises Conflict for the account's last device: nothing could ever reach the account again."""
    _own(db, "devices", device_id, device.account_id)
    if db.execute("SELECT count(*) FROM devices WHERE account_id = ?", (device.account_id,)).fetchone()[0] == 1:
        raise Conflict("this is the account's last device: link another one first", code="last_device")
    _remove_mailbox(db, device_id)
    db.execute("DELETE FROM devices WHERE id = ?", (device_id,))


def device_seen(db: sqlite3.Connection, device: Device, now: float) -> None:
    db.execute("UPDATE devices SET last_seen = ? WHERE id = ?", (now, device.id))


def device_ids(db: sqlite3.Connection, account_id: str) -> list[str]:
    return [row[0] for row in db.execute("SELECT id FROM devices WHERE account_id = ?", (account_id,))]


# Agents


def create_agent(db: sqlite3.Connection, device: Device, name: str, limits: Limits, now: float) -> dict[str, Any]:
    """The agent and its direct conversation."""
    _count(db, "agents", device.account_id, limits.agents)
    agent_id, conversation_id, token = new_id("a"), new_id("c"), secrets.token_urlsafe(32)
    db.execute(
        "INSERT INTO agents (id, account_id, name, token, conversation_id, created_at) VALUES (?, ?, ?, ?, ?, ?)",
        (agent_id, device.account_id, name, digest(token), conversation_id, now),
    )
    db.execute("INSERT INTO mailboxes (id) VALUES (?)", (agent_id,))
    _add_conversation(db, conversation_id, device.account_id, "direct", None, [agent_id], now)
    return {"agent_id": agent_id, "agent_token": token, "conversation_id": conversation_id}


def list_agents(db: sqlite3.Connection, device: Device) -> list[dict[str, Any]]:
    rows = db.execute(
        "SELECT id, name, conversation_id, last_seen, bundle IS NOT NULL FROM agents WHERE account_id = ?"
        " ORDER BY created_at, id",
        (device.account_id,),
    )
    return [
        {
            "agent_id": id,
            "name": name,
            "conversation_id": conversation_id,
            "last_seen": iso(last_seen),
            "has_prekeys": bool(has_prekeys),
        }
        for id, name, conversation_id, last_seen, has_prekeys in rows
    ]


def replace_agent_token(db: sqlite3.Connection, device: Device, agent_id: str) -> dict[str, Any]:
    own_agent(db, device, agent_id)
    token = secrets.token_urlsafe(32)
    db.execute("UPDATE agents SET token = ? WHERE id = ?", (digest(token), agent_id))
    return {"agent_token": token}


def remove_agent(db: sqlite3.Connection, device: Device, agent_id: str) -> None:
    """With its conversations, unless others are in them, and what waits for it."""
    own_agent(db, device, agent_id)
    _remove_mailbox(db, agent_id)
    db.execute("DELETE FROM agents WHERE id = ?", (agent_id,))
    db.execute(
        "DELETE FROM conversations WHERE account_id = ?"
        " AND NOT EXISTS (SELECT 1 FROM members WHERE conversation_id = conversations.id)",
        (device.account_id,),
    )


def agent_seen(db: sqlite3.Connection, agent: Agent, now: float) -> None:
    db.execute("UPDATE agents SET last_seen = ? WHERE id = ?", (now, agent.id))


def own_agent(db: sqlite3.Connection, device: Device, agent_id: str) -> None:
    """Raises NotFound or Forbidden."""
    _own(db, "agents", agent_id, device.account_id)


# Conversations


def create_conversation(
    db: sqlite3.Connection,
    device: Device,
    kind: str,
    agent_ids: list[str],
    title: str | None,
    limits: Limits,
    now: float,
) -> dict[str, Any]:
    for agent_id in agent_ids:
        own_agent(db, device, agent_id)
    _count(db, "conversations", device.account_id, limits.conversations)
    conversation_id = new_id("c")
    _add_conversation(db, conversation_id, device.account_id, kind, title, agent_ids, now)
    return {"conversation_id": conversation_id}


def list_conversations(db: sqlite3.Connection, device: Device) -> dict[str, Any]:
    rows = db.execute(
        "SELECT id, kind, title, agent_id FROM conversations LEFT JOIN members ON conversation_id = id"
        " WHERE account_id = ? ORDER BY created_at, id, agent_id",
        (device.account_id,),
    )
    found: dict[str, dict[str, Any]] = {}
    for id, kind, title, agent_id in rows:
        conversation = found.setdefault(
            id,
            {
                "conversation_id": id,
                "kind": kind,
                "title": title,
                "agent_ids": [],
                "user_ids": [device.account_id],
            },
        )
        conversation["agent_ids"].append(agent_id)
    return {"conversations": list(found.values())}


def _add_conversation(
    db: sqlite3.Connection,
    conversation_id: str,
    account_id: str,
    kind: str,
    title: str | None,
    agent_ids: list[str],
    now: float,
) -> None:
    db.execute("INSERT INTO conversations VALUES (?, ?, ?, ?, ?)", (conversation_id, account_id, kind, title, now))
    db.executemany("INSERT INTO members VALUES (?, ?)", [(conversation_id, agent_id) for agent_id in agent_ids])


def _own(db: sqlite3.Connection, table: str, id: str, account_id: str) -> None:
    row = db.execute(f"SELECT account_id FROM {table} WHERE id = ?", (id,)).fetchone()
    what = table.removesuffix("s")
    if row is None:
        raise NotFound(f"there is no such {what}")
    if row[0] != account_id:
        raise Forbidden(f"the {what} is not yours")


def _count(db: sqlite3.Connection, table: str, account_id: str, limit: int) -> None:
    row = db.execute(f"SELECT count(*) FROM {table} WHERE account_id = ?", (account_id,)).fetchone()
    if row[0] >= limit:
        raise OverQuota(f"an account may have {limit} {table}: remove one first")


def _remove_mailbox(db: sqlite3.Connection, id: str) -> None:
    db.execute("DELETE FROM queue WHERE mailbox = ?", (id,))
    db.execute("DELETE FROM mailboxes WHERE id = ?", (id,))
