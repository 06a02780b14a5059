"""Accounts, their devices, and the tokens that prove who calls. Runs on the database's thread.

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


def new_token() -> str:
    return secrets.token_urlsafe(32)


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
    require_room(db, "devices", account_id, limits.devices)
    return _add_device(db, account_id, device_name, now)


def _add_device(db: sqlite3.Connection, account_id: str, name: str | None, now: float) -> dict[str, Any]:
    device_id, token = new_id("d"), new_token()
    db.execute(
        "INSERT INTO devices (id, account_id, name, token, created_at) VALUES (?, ?, ?, ?, ?)",
        (device_id, account_id, name, digest(token), now),
    )
    add_mailbox(db, device_id)
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
    require_own(db, "devices", device_id, device.account_id)
    if db.execute("SELECT count(*) FROM devices WHERE account_id = ?", (device.account_id,)).fetchone()[0] == 1:
        raise Conflict("this is the account's last device: link another one first", code="last_device")
    remove_mailbox(db, device_id)
    db.execute("DELETE FROM devices WHERE id = ?", (device_id,))


def device_seen(db: sqlite3.Connection, device: Device, now: float) -> None:
    db.execute("UPDATE devices SET last_seen = ? WHERE id = ?", (now, device.id))


def device_ids(db: sqlite3.Connection, account_id: str) -> list[str]:
    return [row[0] for row in db.execute("SELECT id FROM devices WHERE account_id = ?", (account_id,))]


def require_own(db: sqlite3.Connection, table: str, id: str, account_id: str) -> None:
    """Raises NotFound or Forbidden."""
    row = db.execute(f"SELECT account_id FROM {table} WHERE id = ?", (id,)).fetchone()
    what = table.removesuffix("s")
    if row is None:
        raise NotFound(f"there is no such {what}")
    if row[0] != account_id:
        raise Forbidden(f"the {what} is not yours")


def require_room(db: sqlite3.Connection, table: str, account_id: str, limit: int) -> None:
    """Raises OverQuota."""
    row = db.execute(f"SELECT count(*) FROM {table} WHERE account_id = ?", (account_id,)).fetchone()
    if row[0] >= limit:
        raise OverQuota(f"an account may have {limit} {table}: remove one first")


def add_mailbox(db: sqlite3.Connection, id: str) -> None:
    db.execute("INSERT INTO mailboxes (id) VALUES (?)", (id,))


def remove_mailbox(db: sqlite3.Connection, id: str) -> None:
    """With everything in it."""
    db.execute("DELETE FROM queue WHERE mailbox = ?", (id,))
    db.execute("DELETE FROM mailboxes WHERE id = ?", (id,))
