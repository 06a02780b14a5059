"""Making replies: what is to be said is resolved, checked, encrypted and committed; the outbox sends it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from pacerelle_protocol.envelope import group_target, message_frame
from pacerelle_protocol.errors import LocalProtocolError, TooLarge
from pacerelle_protocol.payload import FileRef, WidgetUpdate, encode_text, encode_widget, encode_widget_update
from pacerelle_protocol.widgets import Widget, widget_json
from pacerelled.errors import InvalidArgument, NotPossible
from pacerelled.store import events, reminders, replies
from pacerelled.store.database import Store, Tx

from . import shapes, widgets
from .crypto import AgentCrypto, Sealed
from .holding import Holding
from .model import Reply, Session
from .outbox import Outbox
from .repeats import Call, first_result, identify
from .targets import Target, resolve_target


@dataclass(frozen=True, slots=True)
class Draft:
    """What is to be sent: `body` is encrypted, the rest is for our own records."""

    to: Target
    kind: str
    body: str = field(repr=False)
    text: str = field(repr=False)
    argument: str  # the caller's, that decides how long the body is
    widget_id: str | None = None
    widget: dict[str, Any] | None = field(default=None, repr=False)  # or the patch
    standing: Widget | None = field(default=None, repr=False)  # as it is with the patch
    files: tuple[FileRef, ...] = ()


class Sending:
    """The sending half of `api.AgentApi`, whose words its methods keep."""

    def __init__(
        self,
        agent_id: str,
        store: Store,
        crypto: AgentCrypto,
        outbox: Outbox,
        holding: Holding,
        *,
        refresh_group_keys: Callable[[str], Awaitable[None]],
    ) -> None:
        self._agent_id = agent_id
        self._store = store
        self._crypto = crypto
        self._outbox = outbox
        self._holding = holding
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
        take_over: bool = False,
        call_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Reply:
        if not text.strip():
            raise InvalidArgument("`text` is empty", argument="text", hint="Say something to the person who asked.")
        body = encode_text(sendable(text, "text"))
        route = (source_message_id, conversation_id, to, reply_to_message_id)

        def write(tx: Tx) -> Draft:
            self._holding.admit(tx, session, source_message_id, take_over=take_over)
            return Draft(resolve_target(tx, self._agent_id, *route), "text", body, text, "text")

        return await self.reply(identify(session.id, call_id, idempotency_key, "text", body, route), write)

    async def send_widget(
        self,
        session: Session,
        *,
        widget: str | dict[str, Any],
        source_message_id: str | None = None,
        conversation_id: str | None = None,
        to: str | None = None,
        take_over: bool = False,
        call_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Reply:
        parsed = widgets.parsed(widget)
        body, whole = encode_widget(parsed), widget_json(parsed)
        route = (source_message_id, conversation_id, to, None)

        def write(tx: Tx) -> Draft:
            self._holding.admit(tx, session, source_message_id, take_over=take_over)
            target = resolve_target(tx, self._agent_id, *route)
            widgets.check_sendable(parsed, target)
            title = widgets.title_of(parsed)
            return Draft(target, "widget", body, title, "widgetJson", parsed.id, whole, parsed)

        return await self.reply(identify(session.id, call_id, idempotency_key, "widget", whole, route), write)

    async def update_widget(
        self,
        session: Session,
        *,
        message_id: str,
        spec: dict[str, Any] | None = None,
        expires_at: str | None = None,
        call_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Reply:
        if not spec and expires_at is None:
            raise InvalidArgument(
                "Nothing is to be changed: give `spec` or `expiresAt`",
                argument="spec",
                hint="`spec` has the fields of the widget's spec that change, and only those.",
            )
        patch: dict[str, Any] = {"spec": spec} if spec else {}
        if expires_at is not None:
            patch["expires_at"] = expires_at

        def write(tx: Tx) -> Draft:
            shown = widgets.find(tx, self._agent_id, message_id)
            now = widgets.changed(tx, self._agent_id, shown, patch)
            body = encode_widget_update(WidgetUpdate(str(uuid.uuid4()), now.id, patch))
            # To where the widget is, and naming its message: an id may have been used for several widgets.
            target = Target(shown.conversation_id, shown.to, shown.device_id, message_id, shown.source_message_id)
            return Draft(target, "widget_update", body, widgets.title_of(now), "spec", now.id, patch, now)

        return await self.reply(identify(session.id, call_id, idempotency_key, "update", message_id, patch), write)

    async def reply(self, call: Call, write: Callable[[Tx], Draft]) -> Reply:
        """Encrypts and commits in one transaction; sending is the outbox's business.

        A repeated call finds the first result and changes nothing.
        """
        attempt = 0
        while True:
            try:
                row, repeated = await self._store.run(lambda tx: self._seal_and_queue(tx, call, write))
                break
            except _GroupKeyWanted as wanted:
                # Sending uses the newest key, and only the relay knows whether there is one yet.
                if attempt:
                    raise wanted.error from None
                attempt += 1
                await self._refresh_group_keys(wanted.conversation_id)
        self._outbox.wake()
        return shapes.reply(row, repeated=repeated)

    def _seal_and_queue(self, tx: Tx, call: Call, write: Callable[[Tx], Draft]) -> tuple[Any, bool]:
        if (row := first_result(tx, self._agent_id, call)) is not None:
            return row, True
        draft = write(tx)
        to = draft.to
        message_id = str(uuid.uuid4())
        self._crypto.guard(tx)
        sealed = self._seal(tx, draft.body, message_id, to)
        try:
            envelope = message_frame(
                id=message_id,
                conversation_id=to.conversation_id,
                to=to.recipient,
                to_device_id=to.device_id,
                payload_b64=sealed.payload_b64,
                encrypted=sealed.encrypted,
                reply_to_message_id=to.reply_to,
                attachments=[f.public() for f in draft.files],
                history_record=sealed.history_record,
            )
        except TooLarge as error:
            raise InvalidArgument(
                f"The reply is too long: {error.size} bytes encrypted, at most {error.limit} can be sent",
                argument=draft.argument,
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
            kind=draft.kind,
            text=draft.text,
            widget_id=draft.widget_id,
            widget=json.dumps(draft.widget) if draft.widget is not None else None,
            source_id=to.source_id,
            reply_to=to.reply_to,
            envelope=envelope,
            call_key=call.key,
            digest=call.digest,
        )
        seq = replies.insert_reply(tx, self._agent_id, new)
        self._crypto.save(tx)
        if draft.standing is not None:
            self._expect_answer(tx, draft, message_id)
        events.add(tx, self._agent_id, "reply.queued", **replies.ids(tx, seq))
        return replies.by_seq(tx, seq), False

    def _expect_answer(self, tx: Tx, draft: Draft, message_id: str) -> None:
        """Notes when the widget expires; with another time it asks anew. An update quotes the message that shows it."""
        assert draft.standing is not None
        expires = widgets.expiry(draft.standing)
        shown = message_id if draft.kind == "widget" else draft.to.reply_to
        assert shown is not None
        changes = draft.kind == "widget" or "expires_at" in (draft.widget or {})
        if changes:
            conversation = draft.to.conversation_id
            reminders.expect_answer(tx, self._agent_id, shown, conversation, expires.timestamp() if expires else None)

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


def sendable(text: str, argument: str) -> str:
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
