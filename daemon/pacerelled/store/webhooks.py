"""Webhooks and their deliveries. A delivery keeps its events until it has ended: each attempt sends the same."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .database import Tx

KEPT = 100  # deliveries of a webhook that are listed after they ended

_COLUMNS = "id, url, secret, wanted, bundle_s, paused, reason, failures, skipped, missed, cursor, created_at"


@dataclass(frozen=True, slots=True)
class WebhookRow:
    """`failures`: deliveries in a row; `missed`: events were lost before the next. Flags are 0 or 1."""

    id: str
    url: str
    secret: str = field(repr=False)
    wanted: str
    bundle_s: float
    paused: int
    reason: str | None
    failures: int
    skipped: int
    missed: int
    cursor: str
    created_at: str


@dataclass(frozen=True, slots=True)
class DeliveryRow:
    id: str
    webhook_id: str
    events: str = field(repr=False)  # JSON; empty once it ended
    event_id: str
    count: int
    missed: int
    state: str  # pending, delivered, failed
    attempts: int
    code: int | None
    error: str | None
    created_at: str
    updated_at: str


def select(tx: Tx) -> list[WebhookRow]:
    return [_webhook(row) for row in tx.all(f"SELECT {_COLUMNS} FROM webhooks ORDER BY rowid")]


def find(tx: Tx, webhook_id: str) -> WebhookRow | None:
    row = tx.one(f"SELECT {_COLUMNS} FROM webhooks WHERE id = ?", (webhook_id,))
    return row and _webhook(row)


def insert(tx: Tx, webhook_id: str, url: str, secret: str, wanted: str, bundle_s: float, cursor: str) -> None:
    tx.execute(
        "INSERT INTO webhooks (id, url, secret, wanted, bundle_s, cursor, created_at) VALUES (?, ?, ?, ?, ?, ?, ?)",
        (webhook_id, url, secret, wanted, bundle_s, cursor, tx.now),
    )


def delete(tx: Tx, webhook_id: str) -> None:
    tx.execute("DELETE FROM webhooks WHERE id = ?", (webhook_id,))


def set_secret(tx: Tx, webhook_id: str, secret: str) -> None:
    tx.execute("UPDATE webhooks SET secret = ? WHERE id = ?", (secret, webhook_id))


def set_paused(tx: Tx, webhook_id: str, reason: str | None) -> None:
    """`reason` None: it goes on, with its failures forgotten."""
    tx.execute(
        "UPDATE webhooks SET paused = ?1 IS NOT NULL, reason = ?1, failures = failures * (?1 IS NOT NULL)"
        " WHERE id = ?2",
        (reason, webhook_id),
    )


def move_on(tx: Tx, webhook_id: str, cursor: str, *, skipped: int = 0, missed: bool = False) -> None:
    tx.execute(
        "UPDATE webhooks SET cursor = ?, skipped = skipped + ?, missed = missed OR ? WHERE id = ?",
        (cursor, skipped, int(missed), webhook_id),
    )


def insert_delivery(tx: Tx, delivery_id: str, webhook: WebhookRow, events: str, event_id: str, count: int) -> None:
    tx.execute(
        "INSERT INTO deliveries (id, webhook_id, events, event_id, count, missed, state, created_at, updated_at)"
        " VALUES (?, ?, ?, ?, ?, ?, 'pending', ?, ?)",
        (delivery_id, webhook.id, events, event_id, count, int(webhook.missed), tx.now, tx.now),
    )
    tx.execute("UPDATE webhooks SET missed = 0 WHERE id = ?", (webhook.id,))


def pending(tx: Tx, webhook_id: str) -> DeliveryRow | None:
    """The delivery that is under way; there is one at most."""
    found = _deliveries(tx, "webhook_id = ? AND state = 'pending' ORDER BY seq LIMIT 1", webhook_id)
    return found[0] if found else None


def tried(tx: Tx, delivery: DeliveryRow, state: str, code: int | None, error: str | None) -> int:
    """Notes an attempt; returns how many deliveries of the webhook have failed in a row."""
    tx.execute(
        "UPDATE deliveries SET state = ?1, attempts = attempts + 1, code = ?2, error = ?3, updated_at = ?4,"
        " events = CASE ?1 WHEN 'pending' THEN events ELSE '' END WHERE id = ?5",
        (state, code, error, tx.now, delivery.id),
    )
    if state != "pending":
        tx.execute(
            "UPDATE webhooks SET failures = CASE ? WHEN 'failed' THEN failures + 1 ELSE 0 END WHERE id = ?",
            (state, delivery.webhook_id),
        )
        tx.execute(
            "DELETE FROM deliveries WHERE webhook_id = ?1 AND seq <= (SELECT seq FROM deliveries WHERE webhook_id = ?1"
            " ORDER BY seq DESC LIMIT 1 OFFSET ?2)",
            (delivery.webhook_id, KEPT),
        )
    row = tx.one("SELECT failures FROM webhooks WHERE id = ?", (delivery.webhook_id,))
    return row[0] if row else 0


def deliveries(tx: Tx, webhook_id: str, limit: int) -> list[DeliveryRow]:
    """The newest, oldest first."""
    return _deliveries(tx, f"webhook_id = ? ORDER BY seq DESC LIMIT {int(limit)}", webhook_id)[::-1]


def _deliveries(tx: Tx, where: str, webhook_id: str) -> list[DeliveryRow]:
    rows = tx.all(
        "SELECT id, webhook_id, events, event_id, count, missed, state, attempts, code, error, created_at,"
        f" updated_at FROM deliveries WHERE {where}",
        (webhook_id,),
    )
    return [DeliveryRow(*row) for row in rows]


def _webhook(row: Any) -> WebhookRow:
    return WebhookRow(*row)
