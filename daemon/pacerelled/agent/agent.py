"""One agent: what transports ask of it (`api.AgentApi`), put together from its parts."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any, Literal

from pacerelle_protocol.signal import safety_code
from pacerelled.config import Settings
from pacerelled.errors import (
    LinkError,
    PacerelledError,
    StoreUnavailable,
    TokenRefused,
)
from pacerelled.link.connection import RelayConnection, State
from pacerelled.link.rest import RelayRest
from pacerelled.store import checkpoints as checkpoint_rows
from pacerelled.store import events, replies, requests
from pacerelled.store import quarantine as quarantine_rows
from pacerelled.store.agents import AgentRow
from pacerelled.store.custody import TokenSource
from pacerelled.store.database import Store, Tx

from . import shapes
from .allow import AllowList
from .claims import Claims, unknown_request
from .crypto import AgentCrypto
from .devices import Devices
from .export import Export
from .files import Files
from .folders import Folders
from .history import History
from .holding import Holding
from .inbox import Inbox
from .intake import Result
from .model import Checkpoint, Connection, Login, Request, Session, short
from .outbox import Outbox
from .prekeys import Prekeys
from .quarantine import Quarantine
from .repeats import identify, once
from .sending import Sending
from .sent import Sent, uncertain
from .sessions import Sessions
from .tokens import Tokens

log = logging.getLogger(__name__)


class Agent:
    """Implements `api.AgentApi`.

    `notify(topic)` tells subscribers that something changed; `note(type, …)` writes an event of what is not stored.
    """

    def __init__(
        self,
        row: AgentRow,
        *,
        store: Store,
        sessions: Sessions,
        settings: Settings,
        folders: Folders,
        notify: Callable[[str], None],
        note: Callable[..., None],
    ) -> None:
        self.row = row
        self.agent_id = row.agent_id
        self._tokens = Tokens()
        self._store = store
        self._notify = notify
        self._note = note
        self._told_connection: State = "disconnected"
        self._crypto = AgentCrypto(row.agent_id, e2ee=row.e2ee)
        self._rest = RelayRest(row.base_url, lambda: self._tokens.current)
        self._prekeys = Prekeys(row.agent_id, store, self._crypto, self._rest)
        self._link = RelayConnection(
            ws_url=row.ws_url or row.base_url.replace("http", "ws", 1),
            token=lambda: self._tokens.current,
            prepare=self._prekeys.publish,
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
            preview=settings.event_preview,
        )
        self.quarantine = Quarantine(row.agent_id, store, self._crypto, self._inbox)
        self.devices = Devices(row.agent_id, store, self._crypto, self.quarantine, on_decided=self._decided)
        self.export = Export(row.agent_id, store)
        self.allow_list = AllowList(row.agent_id, store, self.quarantine, on_decided=self._decided)
        self._outbox = Outbox(
            row.agent_id,
            store,
            self._link,
            on_change=lambda: notify("outbox"),
            retry_uncertain=settings.retry_uncertain,
        )
        self._loop = asyncio.get_running_loop()
        self._holding = Holding(row.agent_id, sessions, on_change=self._claims_changed)
        self._claims = Claims(
            row.agent_id, store, sessions, self._holding, connection=lambda: self._link.state, notify=notify
        )
        self.wait_for_messages = self._claims.wait_for_messages
        self.mark_processed = self._claims.mark_processed
        self.release = self._claims.release
        history = History(row.agent_id, store)
        self.history = history.history
        self.pending = history.pending
        self.message = history.message
        self.checkpoints = history.checkpoints
        sending = Sending(
            row.agent_id,
            store,
            self._crypto,
            self._outbox,
            self._holding,
            refresh_group_keys=self._inbox.refresh_group_keys,
        )
        self.send_message = sending.send_message
        self.send_widget = sending.send_widget
        self.update_widget = sending.update_widget
        self._files = Files(row.agent_id, store, self._rest, sending, self._holding, folders, e2ee=row.e2ee)
        self.send_file = self._files.send_file
        self.send_path = self._files.send_path
        self.attachment = self._files.attachment
        self.save_attachment = self._files.save_attachment
        sent = Sent(row.agent_id, store, self._outbox)
        self.replies = sent.replies
        self.wait_for_reply = sent.wait_for_reply
        self.retry_reply = sent.retry_reply
        self.drop_reply = sent.drop_reply

    # -- life --------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads the encryption state and begins to connect. Raises StoreError."""
        await self._store.run(self._crypto.load)
        await self._outbox.start()
        self._inbox.start()
        self._link.start()

    async def stop(self) -> None:
        await self._outbox.stop()
        await self._link.stop()
        await self._inbox.stop()
        await self._prekeys.stop()
        await self._rest.close()
        await self._store.settled()  # a transaction under way still encrypts or decrypts
        self._crypto.close()

    @property
    def token(self) -> str | None:
        """The one in use."""
        return self._tokens.current

    @property
    def token_source(self) -> TokenSource | None:
        """Where the one in use came from."""
        return self._tokens.source

    def set_token(self, token: str, source: TokenSource = "given") -> None:
        """Takes a token that somebody calls good, unless it is known as an old one."""
        if self._tokens.give(token, current_refused=self._link.refused, source=source):
            self._link.token_changed()
            self._notify("status")

    def note_token(self, token: str, source: TokenSource) -> None:
        """The token is kept there by now."""
        self._tokens.note(token, source)

    def forget_token(self) -> None:
        """Logs out: the connection ends, and there is none until a token comes."""
        self._tokens.forget()
        self._link.token_changed()
        self._notify("status")

    def look_again(self) -> None:
        """Claims ended: whoever waits may find something."""
        self._claims.released()

    def _claims_changed(self) -> None:
        """On the store's thread: a request was taken over."""
        self._loop.call_soon_threadsafe(self._notify, "inbox")

    def _link_changed(self, state: State) -> None:
        self._notify("status")
        log.info("Agent %s: %s", short(self.agent_id), state)
        # An outage is two events, however many attempts it took.
        if state != "connecting" and state != self._told_connection:
            self._told_connection = state
            self._note("connection.changed", connection=state, login=self.login)
        if state == "connected":
            self._outbox.link_up()
        elif self._link.refused and self._tokens.refuse_current():
            self._link.token_changed()

    def _accepted(self, results: list[Result]) -> None:
        for result in results:
            if result.message is not None:
                self._claims.waiting.wake(result.message.conversation_id)
            for message_id in result.confirmed:
                self._outbox.changed(message_id)
        for topic in ("inbox", "conversation"):
            self._notify(topic)
        if any(r.kind == "widget_response" for r in results):
            self._notify("widget")
        self._prekeys.top_up()

    def _decided(self) -> None:
        """The user decided about a device or a person: what they wrote may be handed out now."""
        self.look_again()
        self._notify("status")

    # -- state -------------------------------------------------------------------------------------------------

    async def round_trip(self) -> None:
        """Publishes the prekeys again, and has the relay answer a ping on the connection. Raises LinkError."""
        await self._prekeys.publish(again=True)
        await self._link.flushed()

    @property
    def connection(self) -> Connection:
        return self._link.state

    @property
    def login(self) -> Login:
        if self._link.refused:
            return "refused"
        return "ok" if self._tokens.current else "needed"

    async def status(self) -> dict[str, Any]:
        def job(tx: Tx) -> tuple[dict[str, int], dict[str, int], dict[str, int], list[Any], list[PacerelledError]]:
            return (
                requests.counts(tx, self.agent_id),
                quarantine_rows.counts(tx, self.agent_id),
                replies.counts(tx, self.agent_id),
                replies.select(tx, self.agent_id, state="uncertain", limit=50),
                self.devices.problems(tx),
            )

        inbound, quarantined, outbound, unsure, undecided = await self._store.run(job)
        last = self._link.last_traffic
        return {
            "agent_id": self.agent_id,
            "connection": self.connection,
            "login": self.login,
            "e2ee": self.row.e2ee,
            "base_url": self.row.base_url,
            "last_traffic_age_s": None if last is None else round(time.monotonic() - last, 1),
            **inbound,
            "quarantined": sum(quarantined.values()),
            "quarantine_reasons": quarantined,
            **outbound,
            "uncertain_sends": [uncertain(row) for row in unsure],
            "one_time_prekeys": self._prekeys.unused,
            "safety_code": safety_code(self._crypto.signal.identity_key) if self.row.e2ee else None,
            "files": self._files.describe(),
            "problems": [{**e.as_dict(), "agent_id": self.agent_id} for e in (*self._problems(), *undecided)],
        }

    def _problems(self) -> list[PacerelledError]:
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
                    hint=f"{self._link.hint or 'It is tried again by itself.'} Replies are kept and sent later.",
                )
            )
        if self._inbox.problems.store:
            found.append(StoreUnavailable(self._inbox.problems.store, hint="Free some disk space."))
        elif self._store.problem:
            found.append(self._store.problem)
        for conversation, message in self._inbox.problems.group_keys.items():
            found.append(
                LinkError(f"The keys of group {conversation} cannot be fetched: {message}", code="group_keys", hint="")
            )
        return found

    # -- requests ----------------------------------------------------------------------------------------------

    async def inbox(
        self, *, state: Literal["pending", "all"] = "pending", limit: int = 50, before: int | None = None
    ) -> tuple[list[Request], bool]:
        rows = await self._store.run(
            lambda tx: requests.select(tx, self.agent_id, pending=state == "pending", before=before, limit=limit + 1)
        )
        return [shapes.request(row) for row in rows[-limit:]], len(rows) > limit

    async def current_conversation(self) -> dict[str, Any] | None:
        rows = await self._store.run(lambda tx: requests.select(tx, self.agent_id, limit=1))
        if not rows:
            return None
        newest = shapes.request(rows[0])
        return {
            "conversation_id": newest.conversation_id,
            "group": newest.group,
            "from": newest.sender,
            "from_device_id": newest.device_id,
            "last_message_id": newest.message_id,
            "last_at": newest.received_at,
        }

    async def pending_widget(self) -> Request | None:
        rows = await self._store.run(
            lambda tx: requests.select(
                tx, self.agent_id, pending=True, authorized=True, kind="widget_response", limit=1
            )
        )
        return shapes.request(rows[0]) if rows else None

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
        take_over: bool = False,
        call_id: str | None = None,
    ) -> Checkpoint:
        said = ("checkpoint", source_message_id, summary, next_action, host_session_label, status)
        call = identify(session.id, call_id, None, *said)

        def save(tx: Tx) -> list[Any]:
            request = requests.by_message_id(tx, self.agent_id, source_message_id)
            if request is None:
                raise unknown_request(source_message_id)
            self._holding.admit(tx, session, source_message_id, take_over=take_over)
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
            events.add(
                tx,
                self.agent_id,
                "checkpoint.saved",
                source_message_id=source_message_id,
                conversation_id=shapes.request(request).conversation_id,
                status=status,
            )
            return list(row)

        return shapes.checkpoint(await self._store.run(lambda tx: once(tx, self.agent_id, call, lambda: save(tx))))
