"""Messages in both directions, and the outbox that carries the outgoing ones. Called inside the store's thread."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from pacerelle_protocol.envelope import PublicAttachment
from pacerelle_protocol.payload import FileRef, Text, WidgetResponse, WidgetUpdate, open_plaintext
from pacerelle_protocol.widgets import Widget

from .model import Direction, Kind, Message, State
from .store import Store


@dataclass(frozen=True, slots=True)
class Upload:
    """A sealed file on its way to the relay; `ciphertext` is dropped once the relay has it as `blob_id`."""

    position: int
    file_id: str
    name: str
    mime: str
    size: int
    key: bytes = field(repr=False)
    iv: bytes = field(repr=False)
    sha256: str
    ciphertext: bytes | None = field(repr=False)
    blob_id: str | None = None

    def ref(self) -> FileRef:
        assert self.blob_id is not None
        return FileRef(
            id=self.file_id,
            blob_id=self.blob_id,
            name=self.name,
            mime=self.mime,
            size=self.size,
            key=self.key,
            iv=self.iv,
            sha256=self.sha256,
            width=None,
            height=None,
            duration_ms=None,
            thumbnail_blob_id=None,
        )


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """`envelope` is the body of the relay call, byte for byte the same at every attempt; None until it is sealed."""

    id: int
    kind: Literal["message", "group_keys"]
    conversation_id: str
    agent_id: str  # "" for a group
    message_seq: int | None
    envelope: str | None = field(repr=False)


class Log:
    def __init__(self, store: Store) -> None:
        self._store = store

    # what came in

    def has_incoming(self, agent_id: str, message_id: str) -> bool:
        found = self._store.one(
            "SELECT 1 FROM messages WHERE id = ? AND direction = 'in' AND agent_id = ?", (message_id, agent_id)
        )
        return found is not None

    def add(
        self,
        *,
        direction: Direction,
        agent_id: str,
        id: str,
        conversation_id: str,
        group: bool,
        kind: Kind,
        state: State,
        body: str = "",
        attachments: Sequence[PublicAttachment] = (),
        reply_to: str | None = None,
        ref: str | None = None,
        reason: str | None = None,
        archived: bool = False,
    ) -> int:
        """The new row's seq."""
        cursor = self._store.execute(
            "INSERT INTO messages (direction, agent_id, id, conversation_id, is_group, kind, state, at, body,"
            " attachments, reply_to, ref, reason, archived) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                direction,
                agent_id,
                id,
                conversation_id,
                group,
                kind,
                state,
                datetime.now(UTC).isoformat(timespec="milliseconds"),
                body,
                _dump(attachments),
                reply_to,
                ref,
                reason,
                archived,
            ),
        )
        assert cursor.lastrowid is not None
        return cursor.lastrowid

    # what goes out

    def queue(
        self,
        kind: Literal["message", "group_keys"],
        conversation_id: str,
        agent_id: str,
        *,
        message_seq: int | None = None,
        envelope: str | None = None,
    ) -> None:
        self._store.execute(
            "INSERT INTO outbox (kind, conversation_id, agent_id, message_seq, envelope) VALUES (?, ?, ?, ?, ?)",
            (kind, conversation_id, agent_id, message_seq, envelope),
        )

    def queued(self, conversation_id: str, limit: int) -> list[OutboxItem]:
        rows = self._store.all(
            "SELECT id, kind, conversation_id, agent_id, message_seq, envelope FROM outbox WHERE conversation_id = ?"
            " ORDER BY id LIMIT ?",
            (conversation_id, limit),
        )
        return [OutboxItem(*row) for row in rows]

    def queued_conversations(self) -> list[str]:
        return [row[0] for row in self._store.all("SELECT DISTINCT conversation_id FROM outbox")]

    def queue_length(self) -> int:
        row = self._store.one("SELECT count(*) FROM outbox")
        return int(row[0]) if row is not None else 0

    def sealed(self, item: OutboxItem, envelope: str, *, body: str, attachments: Sequence[PublicAttachment]) -> None:
        self._store.execute("UPDATE outbox SET envelope = ? WHERE id = ?", (envelope, item.id))
        self._store.execute(
            "UPDATE messages SET body = ?, attachments = ?, reason = NULL WHERE seq = ?",
            (body, _dump(attachments), item.message_seq),
        )
        self._store.execute("DELETE FROM uploads WHERE message_seq = ?", (item.message_seq,))

    def hold(self, item: OutboxItem, reason: str) -> None:
        """Still queued, and this is why."""
        self._store.execute("UPDATE messages SET reason = ? WHERE seq = ?", (reason, item.message_seq))

    def finish(self, item: OutboxItem, state: State, reason: str | None = None) -> None:
        self._store.execute("DELETE FROM outbox WHERE id = ?", (item.id,))
        if item.message_seq is not None:
            self._store.execute(
                "UPDATE messages SET state = ?, reason = ? WHERE seq = ? AND state = 'queued'",
                (state, reason, item.message_seq),
            )
            self._store.execute("DELETE FROM uploads WHERE message_seq = ?", (item.message_seq,))

    def sealed_for(self, agent_id: str) -> list[OutboxItem]:
        rows = self._store.all(
            "SELECT id, kind, conversation_id, agent_id, message_seq, envelope FROM outbox WHERE agent_id = ?"
            " AND envelope IS NOT NULL ORDER BY id",
            (agent_id,),
        )
        return [OutboxItem(*row) for row in rows]

    def mark_read(self, message_id: str) -> None:
        self._store.execute(
            "UPDATE messages SET state = 'read', reason = NULL"
            " WHERE id = ? AND direction = 'out' AND state IN ('queued', 'sent')",
            (message_id,),
        )

    # files on their way out

    def add_upload(self, message_seq: int, upload: Upload) -> None:
        self._store.execute(
            "INSERT INTO uploads (message_seq, position, file_id, name, mime, size, key, iv, sha256, ciphertext)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                message_seq,
                upload.position,
                upload.file_id,
                upload.name,
                upload.mime,
                upload.size,
                upload.key,
                upload.iv,
                upload.sha256,
                upload.ciphertext,
            ),
        )

    def uploads(self, message_seq: int) -> list[Upload]:
        rows = self._store.all(
            "SELECT position, file_id, name, mime, size, key, iv, sha256, ciphertext, blob_id FROM uploads"
            " WHERE message_seq = ? ORDER BY position",
            (message_seq,),
        )
        return [Upload(*row) for row in rows]

    def uploaded(self, message_seq: int, position: int, blob_id: str) -> None:
        self._store.execute(
            "UPDATE uploads SET blob_id = ?, ciphertext = NULL WHERE message_seq = ? AND position = ?",
            (blob_id, message_seq, position),
        )

    # reading

    def message(self, seq: int) -> Message:
        return self._messages("seq = ?", (seq,))[0]

    def find(self, message_id: str) -> Message | None:
        """By its id, whichever direction; what came in last wins should an id exist twice."""
        found = self._messages("id = ? ORDER BY seq DESC LIMIT 1", (message_id,))
        return found[0] if found else None

    def body(self, seq: int) -> str:
        row = self._store.one("SELECT body FROM messages WHERE seq = ?", (seq,))
        assert row is not None
        return str(row[0])

    def after(self, seq: int, limit: int) -> list[Message]:
        """What came in after `seq`, oldest first."""
        return self._messages("seq > ? AND direction = 'in' ORDER BY seq LIMIT ?", (seq, limit))

    def not_shown(self, agent_id: str | None, up_to: int, limit: int) -> list[Message]:
        """What came in, from one agent or all, and no command has printed yet; oldest first."""
        return self._messages(
            "direction = 'in' AND NOT shown AND agent_id = coalesce(?, agent_id) AND seq <= ? ORDER BY seq LIMIT ?",
            (agent_id, up_to, limit),
        )

    def mark_shown(self, seqs: Sequence[int]) -> None:
        for seq in seqs:
            self._store.execute("UPDATE messages SET shown = 1 WHERE seq = ?", (seq,))

    def newest(self, conversation_id: str, limit: int) -> list[Message]:
        """The end of a conversation, both directions, oldest first."""
        found = self._messages("conversation_id = ? ORDER BY seq DESC LIMIT ?", (conversation_id, limit))
        return found[::-1]

    def replies(self, message_id: str) -> list[Message]:
        return self._messages("reply_to = ? AND direction = 'in' ORDER BY seq", (message_id,))

    def open_widgets(self, conversation_id: str) -> list[Message]:
        """Widgets that this device has not answered, newest first, with the agent's updates applied."""
        found = self._messages(
            "conversation_id = ? AND kind = 'widget' AND NOT EXISTS (SELECT 1 FROM messages AS answer WHERE"
            " answer.ref = messages.ref AND answer.kind = 'widget_response' AND answer.direction = 'out'"
            " AND answer.conversation_id = messages.conversation_id AND answer.state != 'failed')"
            " ORDER BY seq DESC LIMIT 50",
            (conversation_id,),
        )
        return [self.updated(m) for m in found]

    def updated(self, message: Message) -> Message:
        """A widget message as it stands after the updates its own sender made."""
        if message.widget is None:
            return message
        widget = message.widget
        updates = self._messages(
            "ref = ? AND kind = 'widget_update' AND agent_id = ? AND conversation_id = ? AND direction = 'in'"
            " ORDER BY seq",
            (widget.id, message.agent_id, message.conversation_id),
        )
        for update in updates:
            spec = update.value.get("spec")
            expires = update.value.get("expires_at")
            widget = Widget(
                id=widget.id,
                kind=widget.kind,
                spec={**widget.spec, **spec} if isinstance(spec, dict) else widget.spec,
                expires_at=expires if isinstance(expires, str) else widget.expires_at,
                response_mode=widget.response_mode,
            )
        return replace(message, widget=widget)

    def last_seq(self) -> int:
        row = self._store.one("SELECT max(seq) FROM messages")
        return int(row[0]) if row is not None and row[0] is not None else 0

    def _messages(self, where: str, values: Sequence[Any]) -> list[Message]:
        return [_message(row) for row in self._store.all(f"SELECT * FROM messages WHERE {where}", values)]


def _dump(attachments: Sequence[PublicAttachment]) -> str:
    return json.dumps([asdict(a) for a in attachments])


def _message(row: sqlite3.Row) -> Message:
    text, value, cancelled = "", None, False
    files: tuple[FileRef, ...] = ()
    widget: Widget | None = None
    if row["kind"] not in ("undecryptable", "identity_changed"):
        attachments = [PublicAttachment(**a) for a in json.loads(row["attachments"])]
        content = open_plaintext(row["body"].encode(), attachments).content
        if isinstance(content, Text):
            text, files = content.text, content.files
        elif isinstance(content, Widget):
            widget = content
        elif isinstance(content, WidgetResponse):
            value, cancelled = content.value, content.cancelled
        elif isinstance(content, WidgetUpdate):
            value = content.patch
    return Message(
        seq=row["seq"],
        id=row["id"],
        direction=row["direction"],
        agent_id=row["agent_id"],
        conversation_id=row["conversation_id"],
        group=bool(row["is_group"]),
        kind=row["kind"],
        state=row["state"],
        at=row["at"],
        text=text,
        files=files,
        reply_to=row["reply_to"],
        widget=widget,
        ref=row["ref"],
        value=value,
        cancelled=cancelled,
        reason=row["reason"],
        archived=bool(row["archived"]),
    )
