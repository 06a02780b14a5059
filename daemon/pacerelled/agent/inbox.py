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
from pacerelled.errors import LinkError, StoreError, place_of
from pacerelled.store import conversations, events, requests
from pacerelled.store.database import Store, Tx
from pacerelled.store.driver import DatabaseError, IntegrityError

from . import evidence, widgets
from .crypto import AgentCrypto, Rejected
from .model import short

log = logging.getLogger(__name__)

BATCH_FRAMES = 64
BATCH_BYTES = 4 * 1024 * 1024
QUEUE_FRAMES = 256  # more than that wait in the socket
QUEUE_BYTES = 16 * 1024 * 1024  # as well
PARKED_FRAMES = 1000  # of a group whose keys cannot be fetched; the relay keeps the others
RETRY_FIRST, RETRY_MAX = 0.5, 30.0  # seconds between attempts while the store or the relay does not answer
KEY_MISSING = "group_key_missing"
KEY_TRIES = 4  # a sender's new group key may reach the relay a moment after the message

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
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._news, self._room = asyncio.Event(), asyncio.Event()
        # Group conversation -> frames that wait for its keys, in order; by digest, since the relay may send them again.
        self._parked: dict[str, dict[str, bytes]] = {}
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
        while self._queue and (len(self._queue) >= QUEUE_FRAMES or self._queued_bytes + len(raw) > QUEUE_BYTES):
            self._room.clear()
            await self._room.wait()
        self._queue.append(raw)
        self._queued_bytes += len(raw)
        self._news.set()

    async def _pump(self) -> None:
        while True:
            await self._news.wait()
            batch: list[bytes] = []
            size = 0
            while self._queue and len(batch) < BATCH_FRAMES and size < BATCH_BYTES:
                batch.append(self._queue.popleft())
                size += len(batch[-1])
            if not self._queue:
                self._news.clear()
            self._queued_bytes -= size
            self._room.set()
            try:
                await self._process(batch)
            except Exception as error:
                log.error("A batch of frames failed: %s", place_of(error))
                for raw in batch:  # one bad frame never costs a good one
                    await self._process_alone(raw)

    async def _process(self, batch: list[bytes]) -> None:
        waiting = set(self._parked)
        results = await self._durably(lambda tx: self._take_in(tx, batch, set(waiting)))
        for result in results:
            if result.outcome == "parked" and result.message is not None:
                self._park(result.message, result.raw)
        await self._finish(results)

    async def _process_alone(self, raw: bytes) -> None:
        try:
            await self._process([raw])
        except Exception as error:
            # Neither acknowledged nor kept: the relay has it, and sends it again after the next connection.
            log.error("A frame of %d bytes failed: %s", len(raw), place_of(error))

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
        """Runs a transaction, and again while the store fails: meanwhile nothing is acknowledged."""
        delay = RETRY_FIRST
        while True:
            try:
                result = await self._store.run(fn)
            except StoreError as error:
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
        except Exception as error:
            if isinstance(error, DatabaseError) and not isinstance(error, IntegrityError):
                raise
            log.error("A message could not be stored: %s", place_of(error))
            detail = f"the daemon failed on it ({type(error).__name__})"
            return self._quarantine(
                tx, raw, message, Rejected("internal_error", detail, plaintext[0] if plaintext else None)
            )

    def _open_and_store(
        self, tx: Tx, message: IncomingMessage, ack: tuple[str, str, str], plaintext: list[bytes]
    ) -> Result:
        opened = self._crypto.open(tx, message)
        plaintext.append(opened.body.encode())
        widget = widgets.about(tx, self._agent_id, message, opened.content)
        request = _request(message, opened, widget)
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
        confirmed = evidence.confirm(tx, self._agent_id, message, widget)
        return Result("accepted", message, ack, request.kind, confirmed=confirmed)

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

    def _park(self, message: IncomingMessage, raw: bytes) -> None:
        """Keeps a group message until its keys are fetched; what comes after it in that group queues behind it."""
        parked = self._parked.get(message.conversation_id)
        if parked is None:
            self._parked[message.conversation_id] = {message.digest: raw}
            self._spawn(self._fetch_and_retry(message.conversation_id))
        elif len(parked) < PARKED_FRAMES:
            parked[message.digest] = raw

    async def _fetch_and_retry(self, conversation_id: str) -> None:
        """Fetches the group's keys, then takes what was parked; the rest of the work on this group waits for it."""
        parked = self._parked[conversation_id]
        delay, tries = RETRY_FIRST, KEY_TRIES
        try:
            while parked:
                try:
                    await self.refresh_group_keys(conversation_id)
                except LinkError as error:
                    self.problems.group_keys[conversation_id] = error.message
                else:
                    self.problems.group_keys.pop(conversation_id, None)
                    tries -= 1
                    while await self._take_parked(parked, last_try=tries <= 0):
                        pass  # more queued up behind them meanwhile
                if parked:
                    await asyncio.sleep(delay)
                    delay = min(delay * 2, RETRY_MAX)
        finally:
            self.problems.group_keys.pop(conversation_id, None)
            del self._parked[conversation_id]  # what is left comes again from the relay

    async def _take_parked(self, parked: dict[str, bytes], *, last_try: bool) -> bool:
        """Takes parked messages in order, up to one whose key is still missing; on the last try that is quarantined.

        Returns whether there are more to be taken now.
        """
        batch = list(parked.items())[:BATCH_FRAMES]

        def job(tx: Tx) -> list[Result]:
            self._crypto.guard(tx)
            results = []
            for _, raw in batch:
                result = self._take_one(tx, raw, set())
                if result.outcome == "parked" and result.message is not None:
                    if not last_try:
                        break
                    missing = Rejected(KEY_MISSING, "The relay has no key for this group message")
                    result = self._quarantine(tx, raw, result.message, missing)
                results.append(result)
            self._crypto.save(tx)
            return results

        results = await self._durably(job)
        for digest, _ in batch[: len(results)]:
            del parked[digest]
        await self._finish(results)
        return bool(parked) and len(results) == len(batch)

    async def refresh_group_keys(self, conversation_id: str) -> None:
        """Fetches and opens the sealed keys of a group. Raises LinkError.

        What was quarantined for want of a key that is there now becomes a request.
        """
        body = await self._fetch_group_keys(conversation_id)
        try:
            listed: Any = json.loads(body)
        except (ValueError, RecursionError):
            listed = None
        envelopes, problems = parse_group_key_envelopes(listed, conversation_id)

        def job(tx: Tx) -> tuple[list[str], list[Result]]:
            self._crypto.guard(tx)
            learned, reasons = self._crypto.learn_group_keys(tx, envelopes)
            results = []
            for number, frame in (
                requests.quarantined(tx, self._agent_id, conversation_id, KEY_MISSING) if learned else ()
            ):
                result = self._take_one(tx, frame.encode(), set())
                if result.outcome in ("accepted", "duplicate"):
                    requests.leave_quarantine(tx, number)
                results.append(result)
            self._crypto.save(tx)
            return reasons, results

        reasons, results = await self._durably(job)
        await self._finish(results)
        reasons += [p.reason for p in problems]
        if reasons:
            log.warning("%d group keys were not usable: %s", len(reasons), ", ".join(sorted(set(reasons))))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Receiving for agent %s failed: %s", short(self._agent_id), place_of(error))


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
