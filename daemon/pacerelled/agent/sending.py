"""Making replies: what is to be said is resolved, checked, encrypted and committed; the outbox sends it."""

from __future__ import annotations

import asyncio
import json
import mimetypes
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from pacerelle_protocol.envelope import group_target, message_frame
from pacerelle_protocol.errors import InvalidWidget, LocalProtocolError, TooLarge
from pacerelle_protocol.files import seal_file
from pacerelle_protocol.payload import FileRef, encode_text, encode_widget
from pacerelle_protocol.widgets import parse_widget, widget_json
from pacerelled.errors import InvalidArgument, NotPossible, RelayRejected
from pacerelled.link.rest import MAX_BLOB, RelayRest
from pacerelled.store import events, replies
from pacerelled.store.database import Store, Tx

from . import shapes
from .crypto import AgentCrypto, Sealed
from .model import Reply, Session
from .outbox import Outbox
from .targets import Target, resolve_target


class Sending:
    """The sending half of `api.AgentApi`, whose words its methods keep."""

    def __init__(
        self,
        agent_id: str,
        store: Store,
        crypto: AgentCrypto,
        outbox: Outbox,
        rest: RelayRest,
        *,
        refresh_group_keys: Callable[[str], Awaitable[None]],
    ) -> None:
        self._agent_id = agent_id
        self._store = store
        self._crypto = crypto
        self._outbox = outbox
        self._rest = rest
        self._refresh_group_keys = refresh_group_keys

    async def send_message(
        self,
        session: Session,
        *,
        text: str,
        source_message_id: str | None = None,
        conversation_id: str | None = None,
        to: str | None = None,
        reply_to_message_id: str | None = None,
        call_id: str | None = None,
    ) -> Reply:
        if not text.strip():
            raise InvalidArgument("`text` is empty", argument="text", hint="Say something to the person who asked.")
        return await self._reply(
            session,
            "text",
            encode_text(_sendable(text, "text")),
            text,
            target=(source_message_id, conversation_id, to, reply_to_message_id),
            call_id=call_id,
        )

    async def send_widget(
        self,
        session: Session,
        *,
        widget: str | dict[str, Any],
        source_message_id: str | None = None,
        conversation_id: str | None = None,
        to: str | None = None,
        call_id: str | None = None,
    ) -> Reply:
        try:
            parsed = parse_widget(widget)
            body = encode_widget(parsed)
        except InvalidWidget as error:
            raise InvalidArgument(
                f"`widgetJson` is not a usable widget: {error}",
                argument="widgetJson",
                hint=f"A right one: {json.dumps(error.example)}",
            ) from error
        title = parsed.spec.get("title")
        return await self._reply(
            session,
            "widget",
            body,
            title if isinstance(title, str) else parsed.kind,
            target=(source_message_id, conversation_id, to, None),
            call_id=call_id,
            widget=widget_json(parsed),
        )

    async def send_file(
        self,
        session: Session,
        *,
        name: str,
        data: bytes,
        mime: str | None = None,
        text: str = "",
        source_message_id: str | None = None,
        conversation_id: str | None = None,
        to: str | None = None,
    ) -> Reply:
        if not self._crypto.e2ee:
            raise NotPossible("Files are only sent end-to-end encrypted", hint="Start the agent without --no-e2ee.")
        if len(data) > MAX_BLOB - 16:
            raise InvalidArgument(
                f"The file has {len(data)} bytes; at most {MAX_BLOB - 16} can be sent",
                argument="data",
                hint="Send a smaller one, or a link.",
            )
        target = (source_message_id, conversation_id, to, None)
        await self._store.run(lambda tx: resolve_target(tx, self._agent_id, *target))  # before anything is uploaded
        sealed = await asyncio.to_thread(seal_file, data)
        answer = await self._rest.upload_blob(sealed.ciphertext)
        try:
            uploaded = json.loads(answer)
            blob_id = uploaded["id"]
        except (ValueError, TypeError, KeyError, RecursionError):
            blob_id = None
        if not isinstance(blob_id, str) or not blob_id:
            raise RelayRejected("The relay's answer to the upload is not understood", status=201, hint="Try again.")
        name = _sendable(name.replace("\\", "/").rpartition("/")[2], "name")[:512] or "file"
        file = FileRef(
            id=str(uuid.uuid4()),
            blob_id=blob_id,
            name=name,
            mime=mime or mimetypes.guess_type(name)[0] or "application/octet-stream",
            size=len(data),
            key=sealed.key,
            iv=sealed.iv,
            sha256=sealed.sha256,
        )
        body = encode_text(_sendable(text, "text"), [file])
        return await self._reply(session, "file", body, text or name, target=target, files=[file])

    async def _reply(
        self,
        session: Session,
        kind: str,
        body: str,
        text: str,
        *,
        target: tuple[str | None, str | None, str | None, str | None],
        call_id: str | None = None,
        widget: dict[str, Any] | None = None,
        files: list[FileRef] | None = None,
    ) -> Reply:
        """Encrypts and commits in one transaction; sending is the outbox's business.

        A repeated (session, call id) finds the first result and changes nothing.
        """
        call_key = f"{session.id}/{call_id}" if call_id is not None else None
        attempt = 0
        while True:
            try:
                row, repeated = await self._store.run(
                    lambda tx: self._seal_and_queue(tx, kind, body, text, target, call_key, widget, files or [])
                )
                break
            except _GroupKeyWanted as wanted:
                # Sending uses the newest key, and only the relay knows whether there is one yet.
                if attempt:
                    raise wanted.error from None
                attempt += 1
                await self._refresh_group_keys(wanted.conversation_id)
        self._outbox.wake()
        return shapes.reply(row, repeated=repeated)

    def _seal_and_queue(
        self,
        tx: Tx,
        kind: str,
        body: str,
        text: str,
        target: tuple[str | None, str | None, str | None, str | None],
        call_key: str | None,
        widget: dict[str, Any] | None,
        files: list[FileRef],
    ) -> tuple[Any, bool]:
        if call_key is not None and (row := replies.by_call(tx, self._agent_id, call_key)) is not None:
            return row, True
        to = resolve_target(tx, self._agent_id, *target)
        message_id = str(uuid.uuid4())
        self._crypto.guard(tx)
        sealed = self._seal(tx, body, message_id, to)
        try:
            envelope = message_frame(
                id=message_id,
                conversation_id=to.conversation_id,
                to=to.recipient,
                to_device_id=to.device_id,
                payload_b64=sealed.payload_b64,
                encrypted=sealed.encrypted,
                reply_to_message_id=to.reply_to,
                attachments=[f.public() for f in files],
                history_record=sealed.history_record,
            )
        except TooLarge as error:
            raise InvalidArgument(
                f"The reply is too long: {error.size} bytes encrypted, at most {error.limit} can be sent",
                argument="text",
                hint="Send a shorter text, several messages, or a file (`pacerelle send --file`).",
            ) from error
        except LocalProtocolError as error:
            raise InvalidArgument(
                f"This cannot be sent: {error}", argument="to", hint="Use sourceMessageId."
            ) from error
        new = replies.NewReply(
            message_id=message_id,
            conversation_id=to.conversation_id,
            recipient=to.recipient,
            device_id=to.device_id,
            kind=kind,
            text=text,
            widget_id=widget["id"] if widget else None,
            widget=json.dumps(widget) if widget else None,
            source_id=to.source_id,
            reply_to=to.reply_to,
            envelope=envelope,
            call_key=call_key,
        )
        seq = replies.insert_reply(tx, self._agent_id, new)
        self._crypto.save(tx)
        events.add(
            tx,
            self._agent_id,
            "reply.queued",
            seq=seq,
            message_id=message_id,
            conversation_id=to.conversation_id,
            source_message_id=to.source_id,
        )
        return replies.by_seq(tx, seq), False

    def _seal(self, tx: Tx, body: str, message_id: str, to: Target) -> Sealed:
        try:
            return self._crypto.seal(
                tx,
                body,
                message_id=message_id,
                conversation=to.conversation_id,
                to=to.recipient,
                device=to.device_id,
            )
        except NotPossible as error:
            if to.recipient == group_target(to.conversation_id):
                raise _GroupKeyWanted(to.conversation_id, error) from error
            raise


class _GroupKeyWanted(Exception):
    def __init__(self, conversation_id: str, error: NotPossible) -> None:
        super().__init__(conversation_id)
        self.conversation_id = conversation_id
        self.error = error


def _sendable(text: str, argument: str) -> str:
    """Refuses what cannot be written as UTF-8 (lone surrogates) instead of changing it silently."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"`{argument}` has half of a surrogate pair at character {error.start}, which no receiver can read",
            argument=argument,
            hint="Send the character whole, or leave it out.",
        ) from error
    return text
