"""Everything that an agent received and sent, page by page, oldest first."""

from __future__ import annotations

from typing import Any

from . import replies, requests
from .database import Tx


def requests_after(
    tx: Tx, agent_id: str, after: int, *, conversation_id: str | None, since: str | None, limit: int
) -> list[Any]:
    """As `requests.select`. `after` is a seq, `since` a time as the store writes it."""
    return tx.all(
        f"SELECT {requests.COLUMNS}{requests.FROM} WHERE r.agent_id = ?1 AND r.seq > ?2"
        " AND (?3 IS NULL OR r.conversation_id = ?3) AND (?4 IS NULL OR r.received_at >= ?4) ORDER BY r.seq LIMIT ?5",
        (agent_id, after, conversation_id, since, limit),
    )


def replies_after(
    tx: Tx, agent_id: str, after: int, *, conversation_id: str | None, since: str | None, limit: int
) -> list[Any]:
    """As `replies.select`, otherwise as `requests_after`."""
    return tx.all(
        f"SELECT {replies.COLUMNS} FROM replies WHERE agent_id = ?1 AND seq > ?2"
        " AND (?3 IS NULL OR conversation_id = ?3) AND (?4 IS NULL OR created_at >= ?4) ORDER BY seq LIMIT ?5",
        (agent_id, after, conversation_id, since, limit),
    )
