"""Rows of the store as the domain's values."""

from __future__ import annotations

import json
from typing import Any

from .model import Attachment, Checkpoint, Claim, Reply, Request


def request(row: Any, session_id: str | None = None, call_id: str | None = None) -> Request:
    """`row` has the columns of `store.requests`. For the session that holds it, `delivery` is new in the call that
    claimed it.
    """
    (
        seq, message_id, conversation_id, sender, device_id, is_group, encrypted, kind, text, detail, files, reply_to,
        received_at, handed_out, processed_at, note, holder, claim_call, fresh, since, label, verified, authorized,
    ) = row  # fmt: skip
    mine = holder is not None and holder == session_id
    new = bool(fresh) and claim_call == call_id if mine else handed_out == 0
    parsed = json.loads(detail) if detail else None
    widget = parsed.pop("widget", None) if parsed else None
    return Request(
        seq=seq,
        message_id=message_id,
        conversation_id=conversation_id,
        sender=sender,
        device_id=device_id,
        group=bool(is_group),
        encrypted=bool(encrypted),
        verified=bool(verified),
        authorized=bool(authorized),
        kind=kind,
        text=text,
        received_at=received_at,
        attachments=tuple(Attachment(f["id"], f["name"], f["mime"], f["size"]) for f in json.loads(files or "[]")),
        reply_to_message_id=reply_to,
        widget_response=parsed if kind == "widget_response" else None,
        widget_update=parsed if kind == "widget_update" else None,
        widget=widget,
        delivery="new" if new else "again",
        claim=Claim(holder, label or holder, mine, since) if holder else None,
        processed_at=processed_at,
        note=note,
    )


def reply(row: Any, *, repeated: bool = False) -> Reply:
    """`row` has the columns of `store.replies`."""
    (
        seq, message_id, conversation_id, recipient, device_id, kind, text, state, created_at, reason, widget_id,
        widget, source_id, reply_to, attempts,
    ) = row  # fmt: skip
    return Reply(
        seq=seq,
        message_id=message_id,
        conversation_id=conversation_id,
        to=recipient,
        device_id=device_id,
        kind=kind,
        text=text,
        state=state,
        created_at=created_at,
        reason=reason,
        widget_id=widget_id,
        widget=json.loads(widget) if widget else None,
        source_message_id=source_id,
        reply_to_message_id=reply_to,
        attempts=attempts,
        repeated=repeated,
    )


def checkpoint(row: Any) -> Checkpoint:
    """`row` has the columns of `store.checkpoints`."""
    return Checkpoint(*row)
