"""A person's device: the library behind `pacerelle chat`, and what tests drive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from pacerelle_protocol.errors import ProtocolError
from pacerelle_protocol.payload import (
    WidgetResponse,
    WidgetUpdate,
    encode_text,
    encode_widget_response,
    encode_widget_update,
)
from pacerelle_protocol.signal import safety_code

from . import groups
from .core import Core
from .errors import AlreadyPaired, InvalidArgument, RelayError, WaitTimeout
from .files import File, seal_upload
from .home import Home
from .identity import Identities
from .inbox import Taken
from .link import Link
from .model import Agent, Kind, Message, PairedAgent
from .model import Link as LinkState
from .outbox import Outbox
from .peers import ConversationRow
from .reader import Reader
from .relay import RelayClient, checked_url, text_field
from .roster import Roster
from .store import DeviceRow

log = logging.getLogger(__name__)

DEFAULT_RELAY = "http://127.0.0.1:8787"
MAX_TEXT = 300_000  # bytes of UTF-8: with its base64 and its history record it stays under the 1 MiB a frame may have
MAX_FILE = 64 << 20  # bytes; sealed files wait in the phone's database


@dataclass(frozen=True, slots=True)
class Status:
    link: LinkState
    queued: int  # messages and keys the relay does not have yet
    unreadable: int  # frames so broken that they could not be shown as anybody's, since `open`
    problem: str | None


class Device(Reader):
    """Open it with `async with await Device.open(home) as phone`. One process per home; one event loop per device.

    Unless said otherwise, methods raise NotPaired before `register` or `link`, and RelayError where they ask the relay.
    What is sent needs no relay at that moment: it is durable when `send` returns, and goes out as soon as it can.
    """

    def __init__(self, home: Home, core: Core, relay_url: str | None) -> None:
        """Not for callers: `open`."""
        super().__init__(core)
        self._home = home
        self._relay_url = relay_url
        self._roster = Roster(core)
        self._identities = Identities(core)
        self._outbox = Outbox(core, self._identities)
        self._link = Link(core, connected=self._on_connected, taken=self._on_taken)
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    @classmethod
    async def open(cls, home: Path, relay_url: str | None = None) -> Device:
        """Take the home, and connect if it is paired. `relay_url` is where to register; later it is remembered.

        Raises HomeInUse, HomeUnusable, and InvalidArgument for an URL that is none or not the remembered one.
        """
        url = checked_url(relay_url) if relay_url is not None else None
        locked = await asyncio.to_thread(Home, home)
        try:
            core = await Core.open(locked.database)
        except BaseException:
            locked.close()
            raise
        self = cls(locked, core, url)
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def _start(self) -> None:
        await self.start_reading()
        if not self._core.is_paired:
            return
        if self._relay_url not in (None, self._core.device.relay_url):
            raise InvalidArgument(
                f"This home's device is paired with the relay at {self._core.device.relay_url}.",
                argument="relay",
                hint="Leave the address out, or use another home for another relay.",
            )
        self._spawn(self._link.run())
        await self._outbox.wake()

    async def close(self) -> None:
        """End all work. What is queued stays queued. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._outbox.close()
        await self._core.close()
        self._home.close()

    async def __aenter__(self) -> Device:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # who this is

    @property
    def is_paired(self) -> bool:
        return self._core.is_paired

    @property
    def user_id(self) -> str:
        return self._core.device.user_id

    @property
    def device_id(self) -> str:
        return self._core.device.device_id

    @property
    def relay_url(self) -> str:
        """The paired relay, or the one to register at."""
        if self._core.is_paired:
            return self._core.device.relay_url
        return self._relay_url or DEFAULT_RELAY

    async def register(self, name: str, device_name: str | None = None, invite: str | None = None) -> None:
        """A new account with this device. Raises AlreadyPaired and RelayError."""
        self._refuse_second_pairing()
        async with RelayClient(self.relay_url) as relay:
            answer = await relay.register(name, device_name, invite)
        await self._pair(answer, device_name or name)

    async def link(self, code: str, device_name: str | None = None) -> None:
        """Join the account that made the code. Raises AlreadyPaired and RelayError."""
        self._refuse_second_pairing()
        async with RelayClient(self.relay_url) as relay:
            answer = await relay.link(code, device_name)
        await self._pair(answer, device_name or "")
        with contextlib.suppress(RelayError):  # linked it is; the list is asked for again when it is needed
            await self.agents()

    def _refuse_second_pairing(self) -> None:
        if self._core.is_paired:
            raise AlreadyPaired("This home has a device already.", hint="Use another home for another device.")

    async def _pair(self, answer: dict[str, Any], name: str) -> None:
        user_id, device_id, token = (text_field(answer, field) for field in ("user_id", "device_id", "device_token"))
        device = DeviceRow(self.relay_url, user_id, device_id, token, name)
        await self._core.run(self._core.store.pair, device)
        self._core.paired(device)
        self._spawn(self._link.run())

    async def create_link_code(self) -> tuple[str, int]:
        """A code for `link` on another device, and the seconds it is good for."""
        answer = await self._core.api.link_code()
        expires = answer.get("expires_in")
        return text_field(answer, "link_code"), expires if isinstance(expires, int) else 0

    async def connected(self, timeout: float) -> None:
        """Return once the relay is connected. Raises what keeps it from that after `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                await self._link.up.wait()
        except TimeoutError:
            raise self._link.problem or WaitTimeout("The relay did not answer in time.") from None

    async def status(self) -> Status:
        queued = await self._core.run(self._core.log.queue_length)
        problem = self._link.problem
        return Status(self._link.state, queued, self._link.unreadable, problem.message if problem else None)

    # agents

    async def create_agent(self, name: str) -> PairedAgent:
        return await self._roster.create_agent(name)

    async def new_agent_token(self, agent_id: str) -> str:
        """A token in place of the old one, which stops working."""
        return text_field(await self._core.api.new_token(agent_id), "agent_token")

    async def agents(self) -> list[Agent]:
        """The account's agents, as the relay lists them; the phone remembers them."""
        return await self._roster.agents()

    async def known_agents(self) -> list[Agent]:
        """As `agents`, from memory."""
        return await self._roster.known()

    async def find_agent(self, agent: str) -> Agent:
        """By id or by unique name. Raises UnknownAgent."""
        return await self._roster.find(agent)

    async def safety_code(self, agent_id: str) -> str | None:
        """What to compare with the agent's: the trusted key's code. None before the first session."""
        row = await self._core.run(self._core.peers.agent, agent_id)
        return safety_code(row.trusted_key) if row is not None and row.trusted_key is not None else None

    async def new_safety_code(self, agent_id: str) -> str | None:
        """The code of a changed key that waits for the user's decision, if there is one."""
        row = await self._core.run(self._core.peers.agent, agent_id)
        return safety_code(row.offered_key) if row is not None and row.offered_key is not None else None

    async def own_safety_code(self) -> str:
        """This device's code, as an agent's owner sees it."""
        self._core.device  # noqa: B018 - raises NotPaired
        return safety_code(await self._core.run(lambda: self._core.store.signal.identity_key))

    async def trust_new_key(self, agent_id: str) -> None:
        """The user's decision to go on with the agent's changed key, or to start over with one that lost its sessions.

        What was encrypted for the old sessions and not sent fails (`old_key`). Groups made here get a new key.
        Raises IdentityChanged when the key has changed again meanwhile, AgentNotReady and UnknownAgent.
        """
        group_ids = await self._identities.trust_new_key(agent_id)
        for conversation_id in group_ids:
            await groups.renew_key(self._core, self._identities, conversation_id)
        await self._outbox.wake()

    # writing

    async def send(
        self,
        agent: str,
        text: str,
        *,
        files: Sequence[File | Path] = (),
        reply_to: str | None = None,
        conversation_id: str | None = None,
    ) -> str:
        """Queue a message for an agent (id or name), durably; its id. Raises InvalidArgument and UnknownAgent."""
        found = await self.find_agent(agent)
        where = await self._roster.conversation(conversation_id or found.conversation_id)
        if where.is_group or found.agent_id not in where.members:
            raise InvalidArgument("That conversation is not one with this agent alone.", argument="conversation_id")
        return await self._queue(where, found.agent_id, "text", _body(text), files=files, reply_to=reply_to)

    async def send_group(
        self, conversation_id: str, text: str, *, files: Sequence[File | Path] = (), reply_to: str | None = None
    ) -> str:
        """Queue a message for all agents of a group. Raises InvalidArgument and KeyMissing (made elsewhere)."""
        where = await self._roster.group(conversation_id)
        return await self._queue(where, "", "text", _body(text), files=files, reply_to=reply_to)

    async def create_group(self, agents: Sequence[str], title: str = "") -> str:
        """A conversation with several agents; its id. All must have connected once (else AgentNotReady)."""
        ids = [(await self.find_agent(agent)).agent_id for agent in agents]
        if not ids or len(set(ids)) != len(ids):
            raise InvalidArgument("A group needs one or more different agents.", argument="agents")
        conversation_id = await groups.create(self._core, self._identities, ids, title)
        await self._outbox.wake([conversation_id])
        return conversation_id

    async def respond(self, widget_message: Message, value: Any = None, *, cancelled: bool = False) -> str:
        """Answer a widget where it was shown, or cancel it; the answer's message id. Raises InvalidArgument."""
        widget = _widget_of(widget_message)
        response = WidgetResponse(str(uuid.uuid4()), widget, None if cancelled else value, cancelled)
        return await self._queue_about(widget_message, "widget_response", _encoded(encode_widget_response, response))

    async def update_widget(self, widget_message: Message, patch: dict[str, Any]) -> str:
        """Send a change of a widget (`spec` fields, `expires_at`); the message id. Raises InvalidArgument."""
        update = WidgetUpdate(str(uuid.uuid4()), _widget_of(widget_message), patch)
        return await self._queue_about(widget_message, "widget_update", _encoded(encode_widget_update, update))

    async def _queue_about(self, message: Message, kind: Kind, body: str) -> str:
        where = await (self._roster.group if message.group else self._roster.conversation)(message.conversation_id)
        agent_id = "" if message.group else message.agent_id
        assert message.ref is not None
        return await self._queue(where, agent_id, kind, body, reply_to=message.id, ref=message.ref)

    async def _queue(
        self,
        where: ConversationRow,
        agent_id: str,
        kind: Kind,
        body: str,
        *,
        files: Sequence[File | Path] = (),
        reply_to: str | None = None,
        ref: str | None = None,
    ) -> str:
        uploads = [await asyncio.to_thread(seal_upload, at, file) for at, file in enumerate(files)]
        message_id = str(uuid.uuid4())

        def store() -> None:
            with self._core.store.transaction():
                seq = self._core.log.add(
                    direction="out",
                    agent_id=agent_id,
                    id=message_id,
                    conversation_id=where.conversation_id,
                    group=where.is_group,
                    kind=kind,
                    state="queued",
                    body=body,
                    reply_to=reply_to,
                    ref=ref,
                )
                for upload in uploads:
                    self._core.log.add_upload(seq, upload)
                self._core.log.queue("message", where.conversation_id, agent_id, message_seq=seq)

        self._core.device  # noqa: B018 - raises NotPaired
        await self._core.run(store)
        await self._outbox.wake([where.conversation_id])
        return message_id

    # events

    async def _on_connected(self) -> None:
        await self._outbox.wake()
        self._spawn(self._check_suspects())

    async def _on_taken(self, taken: Taken) -> None:
        self._core.news.arrived(taken.messages)
        self._core.news.moved(taken.read)
        if taken.suspects:
            self._spawn(self._check_suspects())
        if taken.new_prekeys:
            await self._outbox.wake()

    async def _check_suspects(self) -> None:
        await self._identities.check_suspects()
        await self._outbox.wake()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.critical("a part of the phone ended: %s", type(error).__name__)


def _body(text: str) -> str:
    body = encode_text(text)
    if len(body.encode()) > MAX_TEXT:
        raise InvalidArgument(
            f"A message can have at most {MAX_TEXT:,} bytes of text.", argument="text", hint="Send it as a file."
        )
    return body


def _encoded[T](encode: Callable[[T], str], content: T) -> str:
    try:
        return encode(content)
    except ProtocolError as e:
        raise InvalidArgument(f"The value cannot be sent: {e}.", argument="value") from None


def _widget_of(message: Message) -> str:
    if message.kind != "widget" or message.ref is None:
        raise InvalidArgument("That message is not a widget.", argument="widget_message")
    return message.ref
