"""What goes out: one lane per conversation, in order, each message sealed and committed once before it is sent.

A lane ends its round when its queue is empty or when only somebody else can help (the agent must connect, the user must
decide on a key); `wake` starts the next round. While the relay is away it tries again by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from pacerelle_protocol.errors import ProtocolError
from pacerelle_protocol.payload import FileRef, Text, encode_text, open_plaintext

from . import backoff, sealing
from .core import Core
from .errors import (
    AgentNotReady,
    HomeUnusable,
    IdentityChanged,
    RelayError,
    RelayRejected,
    TokenRefused,
    UnknownAgent,
)
from .identity import Identities
from .log import OutboxItem
from .model import State
from .sealing import Draft

log = logging.getLogger(__name__)

BATCH = 32  # messages sealed in one commit
_PATHS = {"message": "/messages", "group_keys": "/group-keys"}


class Outbox:
    def __init__(self, core: Core, identities: Identities) -> None:
        self._core = core
        self._identities = identities
        self._lanes: dict[str, Lane] = {}

    async def wake(self, conversations: Iterable[str] | None = None) -> None:
        """Send what is queued: in these conversations, or in all."""
        if conversations is None:
            conversations = await self._core.run(self._core.log.queued_conversations)
        for conversation_id in conversations:
            if (lane := self._lanes.get(conversation_id)) is None:
                lane = self._lanes[conversation_id] = Lane(self._core, self._identities, conversation_id)
            lane.work.set()

    async def close(self) -> None:
        tasks = [lane.task for lane in self._lanes.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Lane:
    """One conversation's outgoing messages."""

    def __init__(self, core: Core, identities: Identities, conversation_id: str) -> None:
        self._core = core
        self._identities = identities
        self._conversation_id = conversation_id
        self.work = asyncio.Event()
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        attempt = 0
        while True:
            await self.work.wait()
            self.work.clear()
            try:
                while items := await self._core.run(self._core.log.queued, self._conversation_id, BATCH):
                    await self._send(items)
                    attempt = 0
            except (AgentNotReady, IdentityChanged, UnknownAgent, TokenRefused) as e:
                await self._hold(e.code)
            except RelayError as e:
                await self._hold(e.code)
                wait = e.retry_after if isinstance(e, RelayRejected) else None
                try:
                    async with asyncio.timeout(wait or backoff.delay(attempt)):
                        await self.work.wait()
                except TimeoutError:
                    self.work.set()
                attempt += 1
            except HomeUnusable as e:
                log.error("the outbox cannot be written: %s", e.message)
                await asyncio.sleep(backoff.LONGEST)
                self.work.set()

    async def _send(self, items: list[OutboxItem]) -> None:
        """Raises what ends the round; what was sent until then is recorded as sent."""
        for agent_id in {item.agent_id for item in items if item.agent_id}:
            await self._identities.ensure_session(agent_id, self._conversation_id)
        for item in items:
            if item.envelope is None and item.message_seq is not None:
                await self._upload(item, item.message_seq)
        items = await self._core.run(self._seal, items)
        done: list[tuple[OutboxItem, State, str | None]] = []
        try:
            for item in items:
                assert item.envelope is not None
                try:
                    await self._core.api.post(_PATHS[item.kind], item.envelope)
                    done.append((item, "sent", None))
                except RelayRejected as e:
                    if not e.is_final:
                        raise
                    done.append((item, "failed", e.code))
        finally:
            # Shielded: a message the relay has must not stay queued only because the phone is being closed.
            moved = await asyncio.shield(asyncio.ensure_future(self._core.run(self._finish, done)))
            self._core.news.moved(moved)

    async def _upload(self, item: OutboxItem, message_seq: int) -> None:
        for upload in await self._core.run(self._core.log.uploads, message_seq):
            if upload.ciphertext is None:
                continue
            try:
                blob_id = await self._core.api.put_blob(upload.ciphertext)
            except RelayRejected as e:
                if not e.is_final:
                    raise
                self._core.news.moved(await self._core.run(self._finish, [(item, "failed", e.code)]))
                return
            await self._core.run(self._uploaded, message_seq, upload.position, blob_id)

    def _uploaded(self, message_seq: int, position: int, blob_id: str) -> None:
        with self._core.store.transaction():
            self._core.log.uploaded(message_seq, position, blob_id)

    def _seal(self, items: list[OutboxItem]) -> list[OutboxItem]:
        """What can be sent, after a commit that holds its envelopes.

        One that cannot be sealed fails; one whose session has just been dropped waits for the next turn.
        """
        if all(item.envelope is not None for item in items):
            return items
        last = items[-1].id
        with self._core.store.transaction():
            queued = [item for item in self._core.log.queued(self._conversation_id, BATCH) if item.id <= last]
            for item in queued:
                if item.envelope is None:
                    self._seal_one(item)
        queued = self._core.log.queued(self._conversation_id, BATCH)
        return [item for item in queued if item.id <= last and item.envelope is not None]

    def _seal_one(self, item: OutboxItem) -> None:
        core = self._core
        assert item.message_seq is not None
        if item.agent_id and not sealing.has_session(core, item.agent_id, item.conversation_id):
            return
        message = core.log.message(item.message_seq)
        body = core.log.body(item.message_seq)
        files: list[FileRef] = [upload.ref() for upload in core.log.uploads(item.message_seq)]
        try:
            if files:
                content = open_plaintext(body.encode()).content
                body = encode_text(content.text if isinstance(content, Text) else body, files)
            attachments = [file.public() for file in files]
            draft = Draft(message.id, item.conversation_id, item.agent_id, body, attachments, message.reply_to)
            core.log.sealed(item, sealing.seal(core, draft), body=body, attachments=attachments)
        except ProtocolError as e:
            core.log.finish(item, "failed", e.reason)

    def _finish(self, done: list[tuple[OutboxItem, State, str | None]]) -> list[str]:
        if not done:
            return []
        with self._core.store.transaction():
            for item, state, reason in done:
                self._core.log.finish(item, state, reason)
        return [self._core.log.message(item.message_seq).id for item, _, _ in done if item.message_seq is not None]

    async def _hold(self, reason: str) -> None:
        moved = await self._core.run(self._record_hold, reason)
        self._core.news.moved(moved)

    def _record_hold(self, reason: str) -> list[str]:
        items = self._core.log.queued(self._conversation_id, BATCH)
        with self._core.store.transaction():
            for item in items:
                self._core.log.hold(item, reason)
        return [self._core.log.message(item.message_seq).id for item in items if item.message_seq is not None]
