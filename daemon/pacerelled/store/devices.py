"""People's devices with their identity keys, and the allow list.

An identity key belongs to a device, in whatever conversation it writes; `device_sessions` says under which Signal name
it does so. Without a device id ('' in the tables, None outside) it is a client from before devices existed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .database import Tx


@dataclass(frozen=True, slots=True)
class DeviceRow:
    identity_key: bytes | None  # accepted: on first use, or by the user
    changed_key: bytes | None  # another one, about which the user has not decided
    refused_key: bytes | None  # another one, that the user decided against
    verified: bool
    blocked: bool
    last_seen: str
    legacy: bool | None  # in this conversation it has the name of older clients; None: has not written in it

    def seen_lately(self, now: str) -> bool:
        """In the minute of `now`: not worth writing again, which costs a page of the store for each message."""
        return self.last_seen[:16] == now[:16]


def find(tx: Tx, agent_id: str, user_id: str, device_id: str | None, conversation_id: str = "") -> DeviceRow | None:
    row = tx.one(
        "SELECT d.identity_key, d.changed_key, d.refused_key, d.verified, d.blocked, d.last_seen, s.legacy"
        " FROM devices d LEFT JOIN device_sessions s ON (s.agent_id, s.user_id, s.device_id) ="
        " (d.agent_id, d.user_id, d.device_id) AND s.conversation_id = ?4"
        " WHERE d.agent_id = ?1 AND d.user_id = ?2 AND d.device_id = ?3",
        (agent_id, user_id, device_id or "", conversation_id),
    )
    if row is None:
        return None
    key, changed, refused = (None if each is None else bytes(each) for each in row[:3])
    legacy = None if row[6] is None else bool(row[6])
    return DeviceRow(key, changed, refused, bool(row[3]), bool(row[4]), row[5], legacy)


def wrote(
    tx: Tx,
    agent_id: str,
    user_id: str,
    device_id: str | None,
    conversation_id: str,
    *,
    identity_key: bytes | None,
    legacy: bool,
) -> bool:
    """Notes that a device wrote; whether it is a new one. A key that is recorded is not replaced here.

    What the user decided about a key holds for a device that turns up with the same one, such as an older client that
    now has an id.
    """
    known = tx.execute(
        "UPDATE devices SET identity_key = coalesce(identity_key, ?), last_seen = ?"
        " WHERE agent_id = ? AND user_id = ? AND device_id = ?",
        (identity_key, tx.now, agent_id, user_id, device_id or ""),
    ).rowcount
    if not known:
        tx.execute(
            "INSERT INTO devices (agent_id, user_id, device_id, identity_key, verified, blocked, first_seen, last_seen)"
            " SELECT ?1, ?2, ?3, ?4, coalesce(max(verified), 0), coalesce(max(blocked), 0), ?5, ?5 FROM devices"
            " WHERE agent_id = ?1 AND user_id = ?2 AND identity_key = ?4",
            (agent_id, user_id, device_id or "", identity_key, tx.now),
        )
    tx.execute(
        "INSERT INTO device_sessions (agent_id, user_id, device_id, conversation_id, legacy) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (agent_id, user_id, device_id, conversation_id) DO UPDATE SET legacy = excluded.legacy"
        " WHERE legacy <> excluded.legacy",
        (agent_id, user_id, device_id or "", conversation_id, int(legacy)),
    )
    return not known


def set_changed_key(tx: Tx, agent_id: str, user_id: str, device_id: str | None, key: bytes | None) -> None:
    _set(tx, agent_id, user_id, device_id, "changed_key = ?", key)


def accept_key(tx: Tx, agent_id: str, user_id: str, device_id: str | None, key: bytes) -> None:
    """Makes another key the device's; the one before is refused from now on. Its Signal sessions are forgotten here."""
    newest = tx.one("SELECT coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'requests'), 0)")[0]
    _set(
        tx,
        agent_id,
        user_id,
        device_id,
        "refused_key = identity_key, identity_key = ?, changed_key = NULL, verified = 0, key_since = ?",
        key,
        newest,
    )
    tx.execute(
        "DELETE FROM device_sessions WHERE agent_id = ? AND user_id = ? AND device_id = ?",
        (agent_id, user_id, device_id or ""),
    )


def refuse_changed_key(tx: Tx, agent_id: str, user_id: str, device_id: str | None) -> None:
    _set(tx, agent_id, user_id, device_id, "refused_key = changed_key, changed_key = NULL")


def set_verified(tx: Tx, agent_id: str, user_id: str, device_id: str | None) -> None:
    _set(tx, agent_id, user_id, device_id, "verified = 1")


def set_blocked(tx: Tx, agent_id: str, user_id: str, device_id: str | None, *, blocked: bool) -> None:
    _set(tx, agent_id, user_id, device_id, "blocked = ?", int(blocked))


def _set(tx: Tx, agent_id: str, user_id: str, device_id: str | None, what: str, *values: object) -> None:
    tx.execute(
        f"UPDATE devices SET {what} WHERE agent_id = ? AND user_id = ? AND device_id = ?",
        (*values, agent_id, user_id, device_id or ""),
    )


def notice(tx: Tx, agent_id: str, user_id: str) -> None:
    """The relay said that a key of this person changed; it does not say of which device."""
    tx.execute("UPDATE devices SET noticed_at = ? WHERE agent_id = ? AND user_id = ?", (tx.now, agent_id, user_id))


def clear_notice(tx: Tx, agent_id: str, user_id: str) -> None:
    tx.execute("UPDATE devices SET noticed_at = NULL WHERE agent_id = ? AND user_id = ?", (agent_id, user_id))


def select(tx: Tx, agent_id: str) -> list[Any]:
    """(user, device, identity key, changed key, refused key, verified, blocked, first seen, last seen, noticed at,
    messages held back because of its key or because it is blocked), by person and when first seen.
    """
    return tx.all(
        "SELECT user_id, device_id, identity_key, changed_key, refused_key, verified, blocked, first_seen, last_seen,"
        " noticed_at, (SELECT count(*) FROM quarantine q WHERE q.agent_id = d.agent_id AND q.sender = d.user_id"
        " AND coalesce(q.device_id, '') = d.device_id"
        " AND q.reason IN ('identity_changed', 'identity_refused', 'device_blocked'))"
        " FROM devices d WHERE agent_id = ? ORDER BY user_id, first_seen, rowid",
        (agent_id,),
    )


def conversations_of(tx: Tx, agent_id: str, user_id: str, device_id: str | None) -> list[str]:
    """Where the device has written."""
    rows = tx.all(
        "SELECT conversation_id FROM device_sessions WHERE agent_id = ? AND user_id = ? AND device_id = ?",
        (agent_id, user_id, device_id or ""),
    )
    return [row[0] for row in rows]


# -- the allow list --------------------------------------------------------------------------------------------------


def is_allowed(tx: Tx, agent_id: str, user_id: str) -> bool:
    """Without a list, everybody is."""
    row = tx.one(
        "SELECT NOT EXISTS (SELECT 1 FROM allow_lists WHERE agent_id = ?1)"
        " OR EXISTS (SELECT 1 FROM allowed WHERE agent_id = ?1 AND user_id = ?2)",
        (agent_id, user_id),
    )
    return bool(row[0])


def allow_list(tx: Tx, agent_id: str) -> list[str] | None:
    """The people on it; None: there is no list."""
    if tx.one("SELECT 1 FROM allow_lists WHERE agent_id = ?", (agent_id,)) is None:
        return None
    return [r[0] for r in tx.all("SELECT user_id FROM allowed WHERE agent_id = ? ORDER BY user_id", (agent_id,))]


def allow(tx: Tx, agent_id: str, user_id: str) -> bool:
    """Puts a person on the list, and makes the list; False if they are on it."""
    tx.execute("INSERT OR IGNORE INTO allow_lists (agent_id) VALUES (?)", (agent_id,))
    added = tx.execute("INSERT OR IGNORE INTO allowed (agent_id, user_id) VALUES (?, ?)", (agent_id, user_id))
    return bool(added.rowcount)


def disallow(tx: Tx, agent_id: str, user_id: str) -> bool:
    """Takes a person off the list, which stays, also empty; False if they were not on it."""
    gone = tx.execute("DELETE FROM allowed WHERE agent_id = ? AND user_id = ?", (agent_id, user_id))
    return bool(gone.rowcount)


def no_allow_list(tx: Tx, agent_id: str) -> bool:
    """Removes the list; False if there was none."""
    tx.execute("DELETE FROM allowed WHERE agent_id = ?", (agent_id,))
    return bool(tx.execute("DELETE FROM allow_lists WHERE agent_id = ?", (agent_id,)).rowcount)
