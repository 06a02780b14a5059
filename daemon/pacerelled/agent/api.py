"""What the domain offers to transports (MCP tools, control.sock). `hub.Hub` and `agent.Agent` implement it.

Every method raises `pacerelled.errors.AgentError` (wrong or impossible request) or `StoreError`/`LinkError`;
nothing else escapes. All are cancellable; a cancelled `wait_for_messages` has claimed nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pacerelled.backup.making import Backup

from .access import AccessTokens
from .allow import AllowList
from .devices import Devices
from .event_log import EventLog
from .export import Export
from .keys import Keys
from .model import (
    Checkpoint,
    CheckpointPage,
    FetchedFile,
    Fits,
    HistoryPage,
    HttpState,
    OnProgress,
    Reply,
    Request,
    SavedFile,
    Session,
    WaitResult,
)
from .quarantine import Quarantine

if TYPE_CHECKING:
    from pacerelled.paseo.bridge import Bridge

    from .asking import Asking


class AgentApi(Protocol):
    """One agent: an identity at the relay with its inbox and outbox."""

    @property
    def agent_id(self) -> str: ...

    async def status(self) -> dict[str, Any]:
        """connection, login, pending, claimed, queued, uncertain, quarantined, last_traffic_age_s, problems, …"""

    async def wait_for_messages(
        self,
        session: Session,
        *,
        timeout: float,  # seconds
        conversation_id: str | None = None,
        limit: int = 10,
        after: int | None = None,  # cursor
        include_claimed: bool = False,
        release: Sequence[str] = (),  # message ids of requests that the session gives back first
        fits: Fits | None = None,
        call_id: str | None = None,
    ) -> WaitResult:
        """What is free becomes the session's: where others wait too at most its share, and only what `fits`."""

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
        """A call that was made before returns the first result (`repeats.identify`), as with the calls below.

        Here and below: for a request that another session holds, NotPossible, code `claimed`, without `take_over`.
        """

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
    ) -> Reply: ...

    async def update_widget(
        self,
        session: Session,
        *,
        message_id: str,  # of the reply that shows the widget
        spec: dict[str, Any] | None = None,  # the fields that change
        expires_at: str | None = None,
        call_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Reply: ...

    async def send_path(
        self,
        session: Session,
        *,
        path: str,  # in one of the folders that `files_out` allows
        name: str | None = None,  # what the person sees
        mime: str | None = None,
        text: str = "",
        source_message_id: str | None = None,
        conversation_id: str | None = None,
        to: str | None = None,
        take_over: bool = False,
        call_id: str | None = None,
        idempotency_key: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Reply: ...

    async def send_file(
        self,
        session: Session,
        *,
        name: str,
        data: AsyncIterable[bytes],  # read once, and not at all if the call fails before; what it raises comes through
        size: int | None,  # bytes; None if it is not known
        mime: str | None = None,
        text: str = "",
        source_message_id: str | None = None,
        conversation_id: str | None = None,
        to: str | None = None,
        idempotency_key: str | None = None,
    ) -> Reply: ...

    async def wait_for_reply(self, message_id: str, *, timeout: float) -> Reply:
        """The reply once it left `queued` and `sending`, or as it stands after `timeout` seconds."""

    async def retry_reply(
        self, message_id: str, *, session: Session | None = None, call_id: str | None = None
    ) -> Reply:
        """Sends the identical envelope of an uncertain or failed reply once more; others stay (`repeated`)."""

    async def drop_reply(self, message_id: str) -> Reply:
        """Gives up a queued, uncertain or failed reply: it is not sent, or not again."""

    async def mark_processed(
        self, session: Session, message_id: str, *, note: str | None = None, take_over: bool = False
    ) -> Request: ...

    async def release(self, message_id: str) -> Request:
        """Ends a request's claim, whoever has it: it can be handed out again. One that is processed: NotPossible."""

    async def inbox(
        self, *, state: Literal["pending", "all"] = "pending", limit: int = 50, before: int | None = None
    ) -> tuple[list[Request], bool]:
        """Newest last; the flag says whether there are older ones."""

    async def replies(self, *, state: str | None = None, limit: int = 50) -> list[Reply]: ...

    async def history(
        self,
        *,
        session: Session | None = None,  # who looks: its own claims are `mine`
        conversation_id: str | None = None,
        limit: int = 50,
        before: str | None = None,  # cursor of an earlier page
        fits: Fits | None = None,
    ) -> HistoryPage:
        """The newest requests and replies, each oldest first, at most `limit` of each and as many as fit."""

    async def pending(
        self, *, session: Session | None = None, limit: int = 50, fits: Fits | None = None
    ) -> tuple[list[Request], bool]:
        """What can be handed out or is, oldest first; the flag says whether there are more. Claims nothing."""

    async def message(self, message_id: str, *, session: Session | None = None) -> Request | Reply: ...

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
    ) -> Checkpoint: ...

    async def checkpoints(
        self,
        *,
        conversation_id: str | None = None,
        include_completed: bool = False,
        limit: int = 50,
        after: int | None = None,  # cursor
        fits: Fits | None = None,
    ) -> CheckpointPage: ...

    async def current_conversation(self) -> dict[str, Any] | None:
        """The conversation of the newest request: id, person, device, group, last message's id and time."""

    async def pending_widget(self) -> Request | None:
        """The newest widget response that is not processed."""

    @property
    def quarantine(self) -> Quarantine: ...

    @property
    def devices(self) -> Devices: ...

    @property
    def allow_list(self) -> AllowList: ...

    @property
    def export(self) -> Export: ...

    def attachment(self, message_id: str, attachment_id: str) -> AbstractAsyncContextManager[FetchedFile]:
        """The decrypted and checked file, whose pieces can be read inside the context."""

    async def save_attachment(
        self,
        *,
        message_id: str,
        attachment_id: str,
        directory: str | None = None,  # in one of the folders that `files_in` allows; None: the first of them
        session: Session | None = None,
        call_id: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> SavedFile:
        """A new file on this machine, decrypted and checked. A cancelled or failed call leaves nothing."""


class HubApi(Protocol):
    """Every agent of this daemon, the sessions, the events."""

    access: AccessTokens
    keys: Keys
    http: HttpState | None
    """How MCP over HTTP is, told by whoever serves it; None: it is off."""
    paseo: Bridge | None
    """The bridge to the coding agents of this machine; None: it is off."""

    def open_session(self, session: Session) -> Session:
        """Registers a session; one with a known id is taken up again with its claims."""

    def close_session(self, session: Session) -> None:
        """The connection ended. Its claims end after the grace time unless it comes back."""

    def sessions(self) -> list[dict[str, Any]]: ...

    def agent_for(self, session: Session) -> AgentApi:
        """The session's agent, or the only one. Raises NoAgent or UnknownAgent with what to do."""

    def agent(self, agent_id: str | None) -> AgentApi:
        """None or "-": the only one."""

    def agents(self) -> Sequence[AgentApi]: ...

    async def add_agent(
        self,
        agent_id: str,
        *,
        token: str | None = None,
        base_url: str | None = None,
        ws_url: str | None = None,
        e2ee: bool = True,
    ) -> AgentApi:
        """Known with the same settings: takes the token (if given) and returns it. Other settings: AgentExists."""

    async def remove_agent(self, agent_id: str, *, purge: bool = False) -> None: ...

    async def set_token(self, agent_id: str, token: str) -> None: ...

    def backup(self, passphrase: str) -> AbstractAsyncContextManager[Backup]:
        """The store as it is now, sealed; its pieces are read inside the context, while everything goes on."""

    async def status(self) -> dict[str, Any]:
        """The body of GET /v1/status (docs/local-protocol.md)."""

    @property
    def asking(self) -> Asking:
        """What the daemon itself asks people."""

    @property
    def event_log(self) -> EventLog:
        """What happened, and hearing of it."""

    def subscribe(self, callback: Callable[[str, str], None]) -> Callable[[], None]:
        """callback(agent_id, topic) on the loop for topics "inbox", "conversation", "widget", "outbox", "status".

        And for "coding", where the id is a coding agent's, or empty: the connection to them.

        Returns the function that ends the subscription.
        """
