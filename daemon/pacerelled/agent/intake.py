"""What becomes of inbound frames, inside the caller's transaction: requests, or quarantine with the reason.

Runs on the store's thread. One bad frame never costs a good one: what its own part writes is undone with it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from pacerelle_protocol.envelope import IdentityChanged, IncomingMessage, UnknownFrame, parse_frame
from pacerelle_protocol.errors import FrameError, GroupKeyMissing
from pacerelle_protocol.payload import FileRef, Opened, Text, WidgetResponse, WidgetUpdate, pack_b64
from pacerelled.errors import place_of
from pacerelled.store import approvals, conversations, devices, events, quarantine, reminders, requests
from pacerelled.store.database import Tx
from pacerelled.store.driver import DatabaseError, IntegrityError

from . import evidence, widgets
from .crypto import AgentCrypto
from .rejected import KEY_MISSING, NOT_ALLOWED, Rejected

log = logging.getLogger(__name__)

Outcome = Literal["accepted", "duplicate", "quarantined", "notice", "parked"]


@dataclass(slots=True)
class Result:
    """What became of one frame."""

    outcome: Outcome
    message: IncomingMessage | None = None
    ack: tuple[str, str, str] | None = None  # to, message id, conversation id
    kind: str | None = None  # of an accepted request
    reason: str | None = None
    raw: bytes = b""
    confirmed: list[str] = field(default_factory=list)  # ids of replies that it shows to have arrived


class Intake:
    """Callers `guard` the crypto before and `save` it after."""

    def __init__(self, agent_id: str, crypto: AgentCrypto, *, preview: int = 0) -> None:
        self._agent_id = agent_id
        self._crypto = crypto
        self._preview_length = preview  # characters of a text that its event may show

    def take(self, tx: Tx, raw: bytes, waiting: Iterable[str] = ()) -> Result:
        """Takes a frame as it came. `waiting`: group conversations whose messages wait for keys."""
        try:
            frame = parse_frame(raw)
        except FrameError as error:
            return self._quarantine_frame(tx, raw, error)
        if isinstance(frame, UnknownFrame):
            # Kept once a type, without its content: it may be meant for newer versions and come often.
            quarantine.add(
                tx,
                self._agent_id,
                key=_key("type", frame.type),
                reason="unknown_type",
                detail=f"frames of the unknown type {frame.type!r}",
                frame="",
            )
            return Result("quarantined", reason="unknown_type")
        if isinstance(frame, IdentityChanged):
            return self._notice(tx, frame)
        try:
            return self._accept(tx, raw, frame, waiting)
        except GroupKeyMissing:
            return Result("parked", frame, raw=raw)
        except Rejected as error:
            return self.quarantine(tx, raw, frame, error)

    def retry(self, tx: Tx, numbers: Iterable[int]) -> list[Result]:
        """Takes what is in quarantine once more, in this order; what was decrypted then is not decrypted again.

        What becomes a request now, or has become one since, leaves quarantine; the others stay, with the reason of now.
        """
        return [self._take_again(tx, quarantine.content(tx, number)) for number in numbers]

    def _take_again(self, tx: Tx, kept: quarantine.Kept) -> Result:
        plaintext = kept.plaintext
        try:
            frame = parse_frame(kept.frame)
            if isinstance(frame, IncomingMessage):
                result = self._accept(tx, kept.frame, frame, plaintext=plaintext)
            elif isinstance(frame, IdentityChanged):
                result = self._notice(tx, frame)
            else:
                return Result("quarantined", reason="unknown_type")
        except FrameError as error:
            reason, detail = error.reason, str(error)
        except GroupKeyMissing:
            reason, detail = KEY_MISSING, "The key of this group message is not known yet"
        except Rejected as error:
            reason, detail, plaintext = error.reason, error.detail, error.plaintext
        else:
            quarantine.remove(tx, kept.id)
            return result
        if kept.frame:  # else it is a note about a type, which is not tried
            quarantine.again(tx, kept.id, reason=reason, detail=detail, plaintext=plaintext)
        return Result("quarantined", reason=reason)

    def _notice(self, tx: Tx, notice: IdentityChanged) -> Result:
        events.add(tx, self._agent_id, "identity.changed", peer_id=notice.peer_id, peer_kind=notice.peer_kind)
        if notice.peer_kind == "user":
            devices.notice(tx, self._agent_id, notice.peer_id)
        return Result("notice")

    def _accept(
        self,
        tx: Tx,
        raw: bytes,
        message: IncomingMessage,
        waiting: Iterable[str] = (),
        *,
        plaintext: bytes | None = None,
    ) -> Result:
        """Makes a request of a message. `plaintext`: it has been decrypted. Raises Rejected, GroupKeyMissing."""
        ack = (message.sender, message.id, message.conversation_id)
        known = requests.receipt_digest(tx, self._agent_id, message.id)
        if known == message.digest:
            return Result("duplicate", message, ack)
        if known is not None:
            raise Rejected("id_conflict", "Another message came under this id", plaintext)
        if message.is_group and message.conversation_id in waiting:
            return Result("parked", message, raw=raw)  # behind the one that waits for the group's keys
        try:
            opened = self._crypto.decrypt(tx, message) if plaintext is None else plaintext
            plaintext = opened
            return tx.savepoint(lambda: self._store(tx, message, ack, opened))
        except (GroupKeyMissing, Rejected):
            raise
        except Exception as error:
            if isinstance(error, DatabaseError) and not isinstance(error, IntegrityError):
                raise
            log.error("A message could not be stored: %s", place_of(error))
            detail = f"the daemon failed on it ({type(error).__name__})"
            raise Rejected("internal_error", detail, plaintext) from error

    def _store(self, tx: Tx, message: IncomingMessage, ack: tuple[str, str, str], plaintext: bytes) -> Result:
        if not devices.is_allowed(tx, self._agent_id, message.sender):
            raise Rejected(NOT_ALLOWED, "The sender is not on the allow list", plaintext)
        opened = self._crypto.read(tx, message, plaintext)
        widget = widgets.about(tx, self._agent_id, message, opened.content)
        request = _request(message, opened, widget)
        seq = requests.insert_request(tx, self._agent_id, request, message.digest)
        if widget is not None and approvals.is_ask(tx, self._agent_id, widget["message_id"]):
            requests.mark_processed(tx, seq, "An answer to a coding agent's request")  # for the daemon, no host's work
        conversations.touch(tx, self._agent_id, message.conversation_id, group=message.is_group, sender=message.sender)
        events.add(
            tx,
            self._agent_id,
            "widget.answered" if request.kind == "widget_response" else "message.received",
            message_id=message.id,
            conversation_id=message.conversation_id,
            sender=message.sender,
            kind=request.kind,
            **self._preview(request.text),
        )
        if request.kind == "widget_response" and widget is not None:
            reminders.answered(tx, self._agent_id, widget["message_id"])
        confirmed = evidence.confirm(tx, self._agent_id, message, widget)
        return Result("accepted", message, ack, request.kind, confirmed=confirmed)

    def _preview(self, text: str) -> dict[str, Any]:
        if not self._preview_length:
            return {}
        return {"preview": {"text": text[: self._preview_length], "untrusted": True}}

    # -- quarantine --------------------------------------------------------------------------------------------

    def quarantine(self, tx: Tx, raw: bytes, message: IncomingMessage, error: Rejected) -> Result:
        new = quarantine.add(
            tx,
            self._agent_id,
            key=_key(message.id, message.digest),
            digest=message.digest,
            reason=error.reason,
            detail=error.detail,
            frame=raw.decode("utf-8", "replace"),
            message_id=message.id,
            conversation_id=message.conversation_id,
            sender=message.sender,
            device_id=message.sender_device_id,
            plaintext=error.plaintext,
        )
        if new:
            events.add(
                tx,
                self._agent_id,
                "message.quarantined",
                message_id=message.id,
                conversation_id=message.conversation_id,
                sender=message.sender,
                reason=error.reason,
            )
            log.warning("A message was put into quarantine: %s", error.reason)
        # It is durably ours, so the relay need not send it again.
        return Result(
            "quarantined", message, (message.sender, message.id, message.conversation_id), reason=error.reason
        )

    def _quarantine_frame(self, tx: Tx, raw: bytes, error: FrameError) -> Result:
        new = quarantine.add(
            tx,
            self._agent_id,
            key=hashlib.sha256(raw).hexdigest(),
            reason=error.reason,
            detail=str(error),
            frame=raw.decode("utf-8", "replace"),
            message_id=error.message_id,
            conversation_id=error.conversation_id,
            sender=error.sender,
        )
        if new:
            events.add(tx, self._agent_id, "message.quarantined", message_id=error.message_id, reason=error.reason)
            log.warning("A frame was put into quarantine: %s", error.reason)
        ack = None
        if error.message_id and error.sender and error.conversation_id:
            ack = (error.sender, error.message_id, error.conversation_id)
        return Result("quarantined", None, ack, reason=error.reason)


def _key(*parts: str) -> str:
    """What is the same for the same thing coming again."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _request(message: IncomingMessage, opened: Opened, widget: dict[str, Any] | None) -> requests.NewRequest:
    content = opened.content
    kind, text, detail, files = "text", opened.body, None, None
    if isinstance(content, Text):
        text, files = content.text, [_file(f) for f in content.files] or None
    elif isinstance(content, WidgetResponse):
        kind, text = "widget_response", "Widget cancelled" if content.cancelled else "Widget response"
        detail = {"id": content.id, "ref": content.ref, "value": content.value, "cancelled": content.cancelled}
        detail["widget"] = widget
    elif isinstance(content, WidgetUpdate):
        kind, text = "widget_update", "Widget update"
        detail = {"id": content.id, "ref": content.ref, "patch": content.patch, "widget": widget}
    return requests.NewRequest(
        message_id=message.id,
        conversation_id=message.conversation_id,
        sender=message.sender,
        device_id=message.sender_device_id,
        is_group=message.is_group,
        encrypted=message.encrypted,
        kind=kind,
        text=text,
        detail=detail,
        files=files,
        reply_to=message.reply_to_message_id,
    )


def _file(file: FileRef) -> dict[str, Any]:
    return {
        "id": file.id,
        "blob_id": file.blob_id,
        "name": file.name,
        "mime": file.mime,
        "size": file.size,
        "sha256": file.sha256,
        "key": pack_b64(file.key) if file.key else None,
        "iv": pack_b64(file.iv) if file.iv else None,
    }
