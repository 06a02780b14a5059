"""One agent: what transports ask of it (`api.AgentApi`), put together from inbox, outbox, encryption and the link."""

from __future__ import annotations

import asyncio
import json
import logging
import mimetypes
import time
import uuid
from collections.abc import Callable
from typing import Any, Literal

from pacerelle_protocol.envelope import group_target, message_frame
from pacerelle_protocol.errors import InvalidWidget, LocalProtocolError, RemoteProtocolError, TooLarge
from pacerelle_protocol.files import open_file, seal_file
from pacerelle_protocol.payload import FileRef, encode_text, encode_widget, unpack_b64
from pacerelle_protocol.widgets import parse_widget, widget_json
from pacerelled.config import Settings
from pacerelled.errors import (
    InvalidArgument,
    LinkError,
    NotPossible,
    PacerelledError,
    RelayRejected,
    StoreUnavailable,
    TokenRefused,
    UnknownMessage,
)
from pacerelled.link.connection import RelayConnection, State
from pacerelled.link.rest import MAX_BLOB, RelayRest
from pacerelled.store import agents as agent_rows
from pacerelled.store import checkpoints as checkpoint_rows
from pacerelled.store import conversations, events, replies, requests
from pacerelled.store.agents import AgentRow
from pacerelled.store.database import Store, Tx

from . import shapes
from .crypto import AgentCrypto
from .inbox import Inbox, Result
from .model import Checkpoint, Connection, Login, Reply, Request, Session, WaitResult, short
from .outbox import Outbox
from .sessions import Sessions
from .targets import Target, resolve_target
from .waiting import Waiting

log = logging.getLogger(__name__)


class Agent:
    """Implements `api.AgentApi`. `notify(topic)` tells subscribers that something changed."""

    def __init__(
        self,
        row: AgentRow,
        *,
        store: Store,
        sessions: Sessions,
        settings: Settings,
        notify: Callable[[str], None],
    ) -> None:
        self.row = row
        self.agent_id = row.agent_id
        self.token: str | None = None
        self._store = store
        self._sessions = sessions
        self._notify = notify
        self._crypto = AgentCrypto(row.agent_id, e2ee=row.e2ee)
        self._waiting = Waiting()
        self._rest = RelayRest(row.base_url, lambda: self.token)
        self._link = RelayConnection(
            ws_url=row.ws_url or row.base_url.replace("http", "ws", 1),
            token=lambda: self.token,
            prepare=self._publish_prekeys,
            on_frame=lambda raw: self._inbox.accept(raw),
            on_state=self._link_changed,
            ping_interval=settings.ping_interval,
            ping_timeout=settings.ping_timeout,
            reconnect_max=settings.reconnect_max,
        )
        self._inbox = Inbox(
            row.agent_id,
            store,
            self._crypto,
            send=self._link.send,
            fetch_group_keys=self._rest.group_keys,
            on_accepted=self._accepted,
        )
        self._outbox = Outbox(
            row.agent_id,
            store,
            self._link,
            on_change=lambda: notify("outbox"),
            retry_uncertain=settings.retry_uncertain,
        )
        self._bundle_sent = False
        self._top_up: asyncio.Task[None] | None = None

    # -- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads the encryption state and begins to connect. Raises StoreError."""
        await self._store.run(self._crypto.load)
        self._inbox.start()
        await self._outbox.start()
        self._link.start()

    async def stop(self) -> None:
        await self._outbox.stop()
        await self._link.stop()
        await self._inbox.stop()
        if self._top_up is not None:
            self._top_up.cancel()
            await asyncio.gather(self._top_up, return_exceptions=True)
        await self._rest.close()
        self._crypto.close()

    def set_token(self, token: str) -> None:
        if token != self.token:
            self.token = token
            self._link.token_changed()
            self._notify("status")

    def look_again(self) -> None:
        """Claims ended: whoever waits may find something."""
        self._waiting.wake_all()

    def _link_changed(self, state: State) -> None:
        self._notify("status")
        log.info("Agent %s: %s", short(self.agent_id), state)
        if state == "connected":
            self._outbox.link_up()

    def _accepted(self, results: list[Result]) -> None:
        for result in results:
            self._waiting.wake(result.message.conversation_id if result.message else None)
        for topic in ("inbox", "conversation"):
            self._notify(topic)
        if any(r.kind == "widget_response" for r in results):
            self._notify("widget")
        if self.row.e2ee and len(self._crypto.signal.one_time_prekey_ids()) < 20 and self._top_up is None:
            self._top_up = asyncio.create_task(self._publish_quietly(), name="prekeys")

    async def _publish_quietly(self) -> None:
        try:
            await self._publish_prekeys()
        except PacerelledError as error:
            log.warning("Prekeys could not be published now: %s", error.message)
        finally:
            self._top_up = None

    async def _publish_prekeys(self) -> None:
        """Committed before they are published (the relay protocol reference, safety rule 3). Raises LinkError."""
        if not self.row.e2ee:
            return

        def prepare(tx: Tx) -> tuple[Any, Any]:
            self._crypto.guard(tx)
            due = self._crypto.prekeys_to_publish(tx)
            return due, agent_rows.prekey_sets(tx, self.agent_id)[0]

        try:
            due, current = await self._store.run(prepare)
        except StoreUnavailable as error:
            raise LinkError(error.message, hint=error.hint) from error
        if due is not None or not self._bundle_sent:
            await self._rest.publish_bundle(current.bundle)
            self._bundle_sent = True
        if due is not None:
            await self._rest.publish_one_time(due.one_time)
            await self._store.run(lambda tx: agent_rows.prekeys_published(tx, self.agent_id, due.signed_id))

    # -- state -------------------------------------------------------------------------------------------------

    @property
    def connection(self) -> Connection:
        return self._link.state

    @property
    def login(self) -> Login:
        if self._link.refused:
            return "refused"
        return "ok" if self.token else "needed"

    async def status(self) -> dict[str, Any]:
        def job(tx: Tx) -> tuple[dict[str, int], dict[str, int], list[Any]]:
            uncertain = replies.select(tx, self.agent_id, state="uncertain", limit=50)
            return requests.counts(tx, self.agent_id), replies.counts(tx, self.agent_id), uncertain

        inbound, outbound, uncertain = await self._store.run(job)
        last = self._link.last_traffic
        return {
            "agent_id": self.agent_id,
            "connection": self.connection,
            "login": self.login,
            "e2ee": self.row.e2ee,
            "base_url": self.row.base_url,
            "last_traffic_age_s": None if last is None else round(time.monotonic() - last, 1),
            **inbound,
            **outbound,
            "uncertain_sends": [
                {
                    "message_id": r.message_id,
                    "conversation_id": r.conversation_id,
                    "to": r.to,
                    "kind": r.kind,
                    "created_at": r.created_at,
                    "source_message_id": r.source_message_id,
                    "reason": r.reason,
                }
                for r in map(shapes.reply, uncertain)
            ],
            "one_time_prekeys": len(self._crypto.signal.one_time_prekey_ids()) if self.row.e2ee else 0,
            "problems": self._problems(),
        }

    def _problems(self) -> list[dict[str, str]]:
        found: list[PacerelledError] = []
        if self.login == "needed":
            found.append(
                TokenRefused(
                    f"There is no token for agent {self.agent_id}",
                    code="token_missing",
                    hint="Run `pacerelle agent token`, or start a host that has PACERELLE_AGENT_TOKEN set.",
                )
            )
        elif self.login == "refused":
            found.append(
                TokenRefused(
                    f"The relay refused the token of agent {self.agent_id}",
                    hint="Copy a new token from Pacerelle and give it with `pacerelle agent token`.",
                )
            )
        elif self.connection != "connected":
            found.append(
                LinkError(
                    f"Not connected to the relay: {self._link.problem or 'connecting'}",
                    code="relay_offline",
                    hint="It is tried again by itself. Replies are kept and sent later.",
                )
            )
        if self._inbox.problems.store:
            found.append(StoreUnavailable(self._inbox.problems.store, hint="Free some disk space."))
        for conversation, message in self._inbox.problems.group_keys.items():
            found.append(
                LinkError(f"The keys of group {conversation} cannot be fetched: {message}", code="group_keys", hint="")
            )
        return [{**e.as_dict(), "agent_id": self.agent_id} for e in found]

    # -- requests ----------------------------------------------------------------------------------------------

    async def wait_for_messages(
        self,
        session: Session,
        *,
        timeout: float,
        conversation_id: str | None = None,
        limit: int = 10,
        after: int | None = None,
        include_claimed: bool = False,
        call_id: str | None = None,
    ) -> WaitResult:
        async def look() -> WaitResult | None:
            found = await self._take(session, conversation_id, limit, after or 0, include_claimed, call_id)
            return found if found.messages else None

        if (found := await look()) is not None:
            return found
        deadline = time.monotonic() + timeout
        session.waiting += 1
        try:
            with self._waiting.queue(conversation_id) as waiter:
                while True:
                    # Looked again inside the queue: what came in between has woken nobody.
                    if (found := await look()) is not None:
                        waiter.woken.clear()
                        return found
                    try:
                        async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                            await waiter.woken.wait()
                    except TimeoutError:
                        break
                    waiter.woken.clear()
        finally:
            session.waiting -= 1
            session.last_active = time.monotonic()
        return WaitResult((), str(after) if after else None, False, self.connection)

    async def _take(
        self,
        session: Session,
        conversation_id: str | None,
        limit: int,
        after: int,
        include_claimed: bool,
        call_id: str | None,
    ) -> WaitResult:
        """Claims what there is. If the caller is cancelled meanwhile, what it claimed goes back."""

        def job(tx: Tx) -> tuple[list[Any], list[int], bool]:
            self._sessions.remember(tx, session)
            rows, fresh, more = requests.take(
                tx,
                self.agent_id,
                session.id,
                conversation_id=conversation_id,
                limit=limit,
                after=after,
                include_claimed=include_claimed,
                call_id=call_id,
            )
            for seq in fresh:
                events.add(tx, self.agent_id, "request.claimed", seq=seq, session=session.id)
            return rows, fresh, more

        task = asyncio.ensure_future(self._store.run(job))
        try:
            rows, _, more = await asyncio.shield(task)
        except asyncio.CancelledError:
            await self._hand_back(task)
            raise
        found = tuple(shapes.request(row, session.id, call_id) for row in rows)
        return WaitResult(found, found[-1].cursor if found else None, more, self.connection)

    async def _hand_back(self, task: asyncio.Future[tuple[list[Any], list[int], bool]]) -> None:
        """Undoes what a cancelled call claimed; nobody has seen it."""

        async def undo() -> None:
            _, fresh, _ = await task
            if fresh:
                await self._store.run(lambda tx: requests.hand_back(tx, fresh))
                self._waiting.wake_all()

        await asyncio.shield(asyncio.gather(undo(), return_exceptions=True))

    async def mark_processed(self, session: Session, message_id: str, *, note: str | None = None) -> Request:
        def job(tx: Tx) -> Any:
            row = requests.by_message_id(tx, self.agent_id, message_id)
            if row is None:
                raise _unknown(message_id)
            found = shapes.request(row, session.id)
            if found.processed_at is not None:
                return row
            holder = found.claim
            if holder and not holder.mine and session.transport != "control" and self._held(holder.session):
                raise NotPossible(
                    f"Request {message_id} is being worked on by {holder.label}",
                    hint="Leave it to that session, or ask the user. It comes back by itself when that session ends.",
                )
            requests.mark_processed(tx, found.seq, note)
            events.add(tx, self.agent_id, "request.processed", seq=found.seq, message_id=message_id)
            return requests.by_message_id(tx, self.agent_id, message_id)

        row = await self._store.run(job)
        self._notify("inbox")
        self._notify("widget")
        return shapes.request(row, session.id)

    def _held(self, session_id: str) -> bool:
        found = self._sessions.get(session_id)
        return found is not None and found.connected

    async def inbox(
        self, *, state: Literal["pending", "all"] = "pending", limit: int = 50, before: int | None = None
    ) -> tuple[list[Request], bool]:
        rows = await self._store.run(
            lambda tx: requests.select(tx, self.agent_id, pending=state == "pending", before=before, limit=limit + 1)
        )
        return [shapes.request(row) for row in rows[-limit:]], len(rows) > limit

    async def current_conversation(self) -> dict[str, Any] | None:
        row = await self._store.run(lambda tx: conversations.newest(tx, self.agent_id))
        if row is None:
            return None
        return {
            "conversation_id": row.conversation_id,
            "group": row.is_group,
            "from": row.last_sender,
            "from_device_id": row.last_device,
            "last_message_id": row.last_message_id,
            "last_at": row.last_at,
        }

    async def pending_widget(self) -> Request | None:
        rows = await self._store.run(
            lambda tx: requests.select(tx, self.agent_id, pending=True, kind="widget_response", limit=1)
        )
        return shapes.request(rows[0]) if rows else None

    async def quarantine(self) -> list[dict[str, Any]]:
        return await self._store.run(lambda tx: requests.list_quarantine(tx, self.agent_id))

    async def attachment(self, message_id: str, attachment_id: str) -> tuple[str, str, bytes]:
        files = await self._store.run(lambda tx: requests.files_of(tx, self.agent_id, message_id))
        if files is None:
            raise _unknown(message_id)
        file = next((f for f in files if f["id"] == attachment_id), None)
        if file is None:
            raise UnknownMessage(
                f"Request {message_id} has no attachment {attachment_id}",
                hint=f"It has: {', '.join(f['id'] for f in files) or 'none'}.",
            )
        if not file["key"] or not file["iv"]:
            raise NotPossible(
                "This attachment came without a key: it was not sent end-to-end encrypted",
                hint="Ask the sender to send it again with a current app.",
            )
        ciphertext = await self._rest.download_blob(file["blob_id"])
        try:
            data = await asyncio.to_thread(
                open_file,
                ciphertext,
                key=unpack_b64(file["key"]),
                iv=unpack_b64(file["iv"]),
                sha256=file["sha256"],
                size=file["size"],
            )
        except RemoteProtocolError as error:
            raise NotPossible(
                f"The attachment does not open: {error}", hint="Ask the sender to send it again."
            ) from error
        return file["name"], file["mime"], data

    # -- replies -----------------------------------------------------------------------------------------------

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
        if not self.row.e2ee:
            raise NotPossible("Files are only sent end-to-end encrypted", hint="Start the agent without --no-e2ee.")
        if len(data) > MAX_BLOB - 16:
            raise InvalidArgument(
                f"The file has {len(data)} bytes; at most {MAX_BLOB - 16} can be sent",
                argument="data",
                hint="Send a smaller one, or a link.",
            )
        target = (source_message_id, conversation_id, to, None)
        await self._store.run(lambda tx: resolve_target(tx, self.agent_id, *target))  # before anything is uploaded
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
                await self._inbox.refresh_group_keys(wanted.conversation_id)
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
        if call_key is not None and (row := replies.by_call(tx, self.agent_id, call_key)) is not None:
            return row, True
        to = resolve_target(tx, self.agent_id, *target)
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
        seq = replies.insert_reply(tx, self.agent_id, new)
        self._crypto.save(tx)
        events.add(
            tx,
            self.agent_id,
            "reply.queued",
            seq=seq,
            message_id=message_id,
            conversation_id=to.conversation_id,
            source_message_id=to.source_id,
        )
        return replies.by_seq(tx, seq), False

    def _seal(self, tx: Tx, body: str, message_id: str, to: Target) -> Any:
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

    async def wait_for_reply(self, message_id: str, *, timeout: float) -> Reply:
        with self._outbox.watch(message_id) as settled:
            found = await self._find_reply(message_id)
            if found.state not in ("queued", "sending"):
                return found
            await asyncio.wait([settled], timeout=timeout)
        return await self._find_reply(message_id)

    async def retry_reply(self, message_id: str) -> Reply:
        """Sends an uncertain reply's identical envelope once more."""
        found = await self._find_reply(message_id)
        if found.state != "uncertain":
            raise NotPossible(
                f"Reply {message_id} is {found.state}; only uncertain replies are sent again",
                hint="See `pacerelle history`.",
            )
        await self._store.run(lambda tx: replies.requeue_uncertain(tx, self.agent_id, message_id))
        self._outbox.wake()
        return await self._find_reply(message_id)

    async def _find_reply(self, message_id: str) -> Reply:
        row = await self._store.run(lambda tx: replies.by_message_id(tx, self.agent_id, message_id))
        if row is None:
            raise UnknownMessage(f"There is no reply {message_id}", hint="`pacerelle history` lists them.")
        return shapes.reply(row)

    async def replies(self, *, state: str | None = None, limit: int = 50) -> list[Reply]:
        rows = await self._store.run(lambda tx: replies.select(tx, self.agent_id, state=state, limit=limit))
        return [shapes.reply(row) for row in rows]

    async def history(self, *, conversation_id: str | None = None, limit: int = 50) -> dict[str, Any]:
        def job(tx: Tx) -> tuple[list[Any], list[Any]]:
            return (
                requests.select(tx, self.agent_id, conversation_id=conversation_id, limit=limit),
                replies.select(tx, self.agent_id, conversation_id=conversation_id, limit=limit),
            )

        received, sent = await self._store.run(job)
        return {
            "requests": [shapes.request(row).as_dict() for row in received],
            "replies": [shapes.reply(row).as_dict() for row in sent],
        }

    # -- checkpoints -------------------------------------------------------------------------------------------

    async def save_checkpoint(
        self,
        session: Session,
        *,
        source_message_id: str,
        summary: str,
        next_action: str,
        host_session_label: str | None = None,
        status: Literal["active", "completed"] = "active",
    ) -> Checkpoint:
        def job(tx: Tx) -> Any:
            request = requests.by_message_id(tx, self.agent_id, source_message_id)
            if request is None:
                raise _unknown(source_message_id)
            row = checkpoint_rows.save(
                tx,
                self.agent_id,
                source_message_id,
                shapes.request(request).conversation_id,
                summary,
                next_action,
                host_session_label or session.label,
                status,
            )
            events.add(tx, self.agent_id, "checkpoint.saved", source_message_id=source_message_id, status=status)
            return row

        return shapes.checkpoint(await self._store.run(job))

    async def checkpoints(
        self, *, conversation_id: str | None = None, include_completed: bool = False
    ) -> list[Checkpoint]:
        rows = await self._store.run(
            lambda tx: checkpoint_rows.select(
                tx, self.agent_id, conversation_id=conversation_id, include_completed=include_completed
            )
        )
        return [shapes.checkpoint(row) for row in rows]


class _GroupKeyWanted(Exception):
    def __init__(self, conversation_id: str, error: NotPossible) -> None:
        super().__init__(conversation_id)
        self.conversation_id = conversation_id
        self.error = error


def _unknown(message_id: str) -> UnknownMessage:
    return UnknownMessage(
        f"There is no request {message_id} in this agent's inbox",
        hint="Use a message_id as wait_for_messages or get_history gave it.",
    )


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
