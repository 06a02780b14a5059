"""Inbound: frames become requests, or go to quarantine with the reason; then, and only then, they are acknowledged.

Frames that queued up are taken together: one transaction decodes, decrypts, stores, and writes the changed Signal
pieces and the events. One bad frame never costs a good one, nor the connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from pacerelle_protocol.envelope import IdentityChanged, IncomingMessage, UnknownFrame, ack_read_frame, parse_frame
from pacerelle_protocol.errors import FrameError, GroupKeyMissing
from pacerelle_protocol.groups import parse_group_key_envelopes
from pacerelle_protocol.payload import FileRef, Opened, Text, WidgetResponse, WidgetUpdate, pack_b64
from pacerelled.errors import LinkError, StoreUnavailable
from pacerelled.store import conversations, events, requests
from pacerelled.store.database import Store, Tx

from .crypto import AgentCrypto, Rejected
from .model import short

log = logging.getLogger(__name__)

BATCH_FRAMES = 64
BATCH_BYTES = 4 * 1024 * 1024
QUEUE_FRAMES = 256  # more than that wait in the socket
RETRY_FIRST, RETRY_MAX = 0.5, 30.0  # seconds between attempts while the store cannot be written

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


@dataclass(slots=True)
class Problems:
    """What keeps messages from being accepted right now; shown in status."""

    store: str | None = None
    group_keys: dict[str, str] = field(default_factory=dict)


class Inbox:
    """`accept` takes raw frames; `on_accepted` is told of each batch's new requests, `send` writes acknowledgements."""

    def __init__(
        self,
        agent_id: str,
        store: Store,
        crypto: AgentCrypto,
        *,
        send: Callable[[str], Awaitable[None]],
        fetch_group_keys: Callable[[str], Awaitable[bytes]],
        on_accepted: Callable[[list[Result]], None],
    ) -> None:
        self._agent_id = agent_id
        self._store = store
        self._crypto = crypto
        self._send = send
        self._fetch_group_keys = fetch_group_keys
        self._on_accepted = on_accepted
        self._queue: asyncio.Queue[bytes] = asyncio.Queue(QUEUE_FRAMES)
        self._parked: dict[str, deque[bytes]] = {}  # group conversation -> frames that wait for its keys, in order
        self._tasks: set[asyncio.Task[None]] = set()
        self.problems = Problems()

    def start(self) -> None:
        self._spawn(self._pump())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def accept(self, raw: bytes) -> None:
        """Queues one frame as it came; waits while the queue is full."""
        await self._queue.put(raw)

    async def _pump(self) -> None:
        while True:
            batch = [await self._queue.get()]
            size = len(batch[0])
            while len(batch) < BATCH_FRAMES and size < BATCH_BYTES and not self._queue.empty():
                batch.append(self._queue.get_nowait())
                size += len(batch[-1])
            try:
                await self._process(batch)
            except asyncio.CancelledError:
                raise
            except Exception:
                # Not acknowledged: the relay sends these again.
                log.exception("A batch of %d frames failed", len(batch))

    async def _process(self, batch: list[bytes]) -> None:
        waiting = set(self._parked)
        results = await self._durably(lambda tx: self._take_in(tx, batch, set(waiting)))
        for result in results:
            if result.outcome == "parked" and result.message is not None:
                self._park(result.message.conversation_id, result.raw)
        await self._finish(results)

    async def _finish(self, results: list[Result]) -> None:
        """After the commit: wakes who waits, then tells the relay what need not be sent again."""
        if accepted := [r for r in results if r.outcome == "accepted"]:
            self._on_accepted(accepted)
        for result in results:
            if result.ack is not None:
                to, message_id, conversation_id = result.ack
                try:
                    await self._send(ack_read_frame(to=to, message_id=message_id, conversation_id=conversation_id))
                except LinkError:
                    return  # they come again after reconnecting and are recognised

    async def _durably[T](self, fn: Callable[[Tx], T]) -> T:
        """Runs a transaction, and again while the store cannot be written: meanwhile nothing is acknowledged."""
        delay = RETRY_FIRST
        while True:
            try:
                result = await self._store.run(fn)
            except StoreUnavailable as error:
                if self.problems.store is None:
                    log.error("Messages wait: %s", error.message)
                self.problems.store = error.message
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX)
            else:
                self.problems.store = None
                return result

    # -- on the store's thread ---------------------------------------------------------------------------------

    def _take_in(self, tx: Tx, batch: list[bytes], waiting: set[str]) -> list[Result]:
        """`waiting`: group conversations whose messages wait for keys."""
        self._crypto.guard(tx)
        results = []
        for raw in batch:
            result = self._take_one(tx, raw, waiting)
            if result.outcome == "parked" and result.message is not None:
                waiting.add(result.message.conversation_id)
            results.append(result)
        self._crypto.save(tx)
        return results

    def _take_one(self, tx: Tx, raw: bytes, waiting: set[str]) -> Result:
        try:
            frame = parse_frame(raw)
        except FrameError as error:
            return self._quarantine_frame(tx, raw, error)
        if isinstance(frame, UnknownFrame):
            # Kept once a type, without its content: it may be meant for newer versions and come often.
            digest = hashlib.sha256(f"type:{frame.type}".encode()).hexdigest()
            requests.add_quarantine(
                tx,
                self._agent_id,
                digest=digest,
                reason="unknown_type",
                detail=f"frames of the unknown type {frame.type!r}",
                frame="",
            )
            return Result("quarantined", reason="unknown_type")
        if isinstance(frame, IdentityChanged):
            events.add(tx, self._agent_id, "identity.changed", peer_id=frame.peer_id, peer_kind=frame.peer_kind)
            return Result("notice")
        return self._take_message(tx, raw, frame, waiting)

    def _take_message(self, tx: Tx, raw: bytes, message: IncomingMessage, waiting: set[str]) -> Result:
        ack = (message.sender, message.id, message.conversation_id)
        known = requests.receipt_digest(tx, self._agent_id, message.id)
        if known == message.digest:
            return Result("duplicate", message, ack)
        if known is not None:
            return self._quarantine(tx, raw, message, Rejected("id_conflict", "Another message came under this id"))
        if message.is_group and message.conversation_id in waiting:
            return Result("parked", message, raw=raw)  # behind the one that waits for the group's keys
        plaintext: list[bytes] = []
        try:
            return tx.savepoint(lambda: self._open_and_store(tx, message, ack, plaintext))
        except GroupKeyMissing:
            return Result("parked", message, raw=raw)
        except Rejected as error:
            return self._quarantine(tx, raw, message, error)
        except StoreUnavailable:
            raise
        except Exception as error:
            if _is_database_error(error):
                raise
            log.exception("A message could not be stored")
            detail = f"the daemon failed on it ({type(error).__name__})"
            return self._quarantine(
                tx, raw, message, Rejected("internal_error", detail, plaintext[0] if plaintext else None)
            )

    def _open_and_store(
        self, tx: Tx, message: IncomingMessage, ack: tuple[str, str, str], plaintext: list[bytes]
    ) -> Result:
        opened = self._crypto.open(tx, message)
        plaintext.append(opened.body.encode())
        request = _request(message, opened)
        seq = requests.insert_request(tx, self._agent_id, request, message.digest)
        conversations.touch(tx, self._agent_id, message.conversation_id, group=message.is_group, sender=message.sender)
        events.add(
            tx,
            self._agent_id,
            "request.received",
            seq=seq,
            message_id=message.id,
            conversation_id=message.conversation_id,
            kind=request.kind,
        )
        return Result("accepted", message, ack, request.kind)

    def _quarantine(self, tx: Tx, raw: bytes, message: IncomingMessage, error: Rejected) -> Result:
        new = requests.add_quarantine(
            tx,
            self._agent_id,
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
                tx, self._agent_id, "quarantine.added", reason=error.reason, conversation_id=message.conversation_id
            )
            log.warning("A message was put into quarantine: %s", error.reason)
        # It is durably ours, so the relay need not send it again.
        return Result(
            "quarantined", message, (message.sender, message.id, message.conversation_id), reason=error.reason
        )

    def _quarantine_frame(self, tx: Tx, raw: bytes, error: FrameError) -> Result:
        digest = hashlib.sha256(raw).hexdigest()
        new = requests.add_quarantine(
            tx,
            self._agent_id,
            digest=digest,
            reason=error.reason,
            detail=str(error),
            frame=raw.decode("utf-8", "replace"),
            message_id=error.message_id,
            conversation_id=error.conversation_id,
            sender=error.sender,
        )
        if new:
            events.add(tx, self._agent_id, "quarantine.added", reason=error.reason)
            log.warning("A frame was put into quarantine: %s", error.reason)
        ack = None
        if error.message_id and error.sender and error.conversation_id:
            ack = (error.sender, error.message_id, error.conversation_id)
        return Result("quarantined", None, ack, reason=error.reason)

    # -- group keys --------------------------------------------------------------------------------------------

    def _park(self, conversation_id: str, raw: bytes) -> None:
        """Keeps a group message until its keys are fetched; what comes after it in that group queues behind it."""
        queue = self._parked.get(conversation_id)
        if queue is not None:
            queue.append(raw)
            return
        self._parked[conversation_id] = deque([raw])
        self._spawn(self._fetch_and_retry(conversation_id))

    async def _fetch_and_retry(self, conversation_id: str) -> None:
        delay = RETRY_FIRST
        while True:
            try:
                await self.refresh_group_keys(conversation_id)
                break
            except LinkError as error:
                self.problems.group_keys[conversation_id] = error.message
                await asyncio.sleep(delay)
                delay = min(delay * 2, RETRY_MAX)
        self.problems.group_keys.pop(conversation_id, None)
        parked = self._parked[conversation_id]
        while parked:  # more may queue up behind them meanwhile
            frames = list(parked)
            results = await self._durably(lambda tx, frames=frames: self._take_parked(tx, frames))  # type: ignore[misc]
            for _ in frames:
                parked.popleft()
            await self._finish(results)
        del self._parked[conversation_id]

    def _take_parked(self, tx: Tx, frames: list[bytes]) -> list[Result]:
        """With the keys there are: a message whose key is still missing goes to quarantine."""
        self._crypto.guard(tx)
        results = []
        for raw in frames:
            result = self._take_one(tx, raw, set())
            if result.outcome == "parked" and result.message is not None:
                missing = Rejected("group_key_missing", "The relay has no key for this group message")
                result = self._quarantine(tx, raw, result.message, missing)
            results.append(result)
        self._crypto.save(tx)
        return results

    async def refresh_group_keys(self, conversation_id: str) -> None:
        """Fetches and opens the sealed keys of a group. Raises LinkError."""
        body = await self._fetch_group_keys(conversation_id)
        try:
            listed: Any = json.loads(body)
        except (ValueError, RecursionError):
            listed = None
        envelopes, problems = parse_group_key_envelopes(listed, conversation_id)

        def job(tx: Tx) -> list[str]:
            self._crypto.guard(tx)
            reasons = self._crypto.learn_group_keys(tx, envelopes)
            self._crypto.save(tx)
            return reasons

        reasons = [p.reason for p in problems] + await self._durably(job)
        if reasons:
            log.warning("%d group keys were not usable: %s", len(reasons), ", ".join(sorted(set(reasons))))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Receiving for agent %s failed", short(self._agent_id), exc_info=error)


def _request(message: IncomingMessage, opened: Opened) -> requests.NewRequest:
    content = opened.content
    kind, text, detail, files = "text", opened.body, None, None
    if isinstance(content, Text):
        text, files = content.text, [_file(f) for f in content.files] or None
    elif isinstance(content, WidgetResponse):
        kind, text = "widget_response", "Widget cancelled" if content.cancelled else "Widget response"
        detail = {"id": content.id, "ref": content.ref, "value": content.value, "cancelled": content.cancelled}
    elif isinstance(content, WidgetUpdate):
        kind, text = "widget_update", "Widget update"
        detail = {"id": content.id, "ref": content.ref, "patch": content.patch}
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


def _is_database_error(error: Exception) -> bool:
    from pacerelled.store.driver import DatabaseError, IntegrityError

    return isinstance(error, DatabaseError) and not isinstance(error, IntegrityError)
