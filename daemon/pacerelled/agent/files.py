"""Files: fetched, decrypted and checked on the way to the disk; sealed on the way to the relay. In pieces both ways.

Nobody sees a file before its tag is checked: until then it is under a hidden name, or has none.
"""

from __future__ import annotations

import hashlib
import json
import mimetypes
import re
import tempfile
import uuid
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any

from pacerelle_protocol.errors import RemoteProtocolError
from pacerelle_protocol.files import TAG_BYTES, FileOpener, FileSealer
from pacerelle_protocol.payload import FileRef, encode_text, unpack_b64
from pacerelled.errors import InvalidArgument, LinkError, NotPossible, RelayRejected, UnknownMessage
from pacerelled.link.rest import MAX_BLOB, RelayRest
from pacerelled.store import replies, requests
from pacerelled.store.database import Store, Tx

from . import shapes
from .claims import unknown_request
from .folders import Folders, Source
from .holding import Holding
from .model import FetchedFile, OnProgress, Reply, SavedFile, Session
from .names import shown_name
from .pictures import HEAD_BYTES, picture
from .repeats import earlier, first_result, identify, remember
from .sending import Draft, Sending, sendable
from .targets import resolve_target
from .work import in_thread

MAX_FILE = MAX_BLOB - TAG_BYTES  # bytes
PIECE = 256 * 1024  # bytes
IN_MEMORY = 1024 * 1024  # bytes of a fetched file that are handed over without touching the disk

_MIME = re.compile(r"[a-z0-9!#$&^_.+-]{1,64}/[a-z0-9!#$&^_.+-]{1,64}", re.IGNORECASE | re.ASCII)
_TYPES = mimetypes.MimeTypes()  # the same on every machine
for _suffix, _type in (
    (".avif", "image/avif"),
    (".flac", "audio/flac"),
    (".heic", "image/heic"),
    (".m4a", "audio/mp4"),
    (".md", "text/markdown"),
    (".mkv", "video/x-matroska"),
    (".ogg", "audio/ogg"),
    (".opus", "audio/ogg"),
    (".webp", "image/webp"),
):
    _TYPES.add_type(_type, _suffix)


class Files:
    """The part of `api.AgentApi` that is about files, whose words its methods keep."""

    def __init__(
        self,
        agent_id: str,
        store: Store,
        rest: RelayRest,
        sending: Sending,
        holding: Holding,
        folders: Folders,
        *,
        e2ee: bool,
    ) -> None:
        self._agent_id = agent_id
        self._store = store
        self._rest = rest
        self._sending = sending
        self._holding = holding
        self._folders = folders
        self._e2ee = e2ee

    def describe(self) -> dict[str, Any]:
        """The folders and the limit, as status shows them."""
        return {
            "save_to": [str(folder) for folder in self._folders.inward],
            "send_from": [str(folder) for folder in self._folders.outward],
            "max_bytes": MAX_FILE,
        }

    # -- in ----------------------------------------------------------------------------------------------------

    async def save_attachment(
        self,
        *,
        message_id: str,
        attachment_id: str,
        directory: str | None = None,
        session: Session | None = None,
        call_id: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> SavedFile:
        call = identify(session.id if session else None, call_id, None, "save", message_id, attachment_id, directory)
        mark = await self._store.run(lambda tx: earlier(tx, self._agent_id, call))
        file = await self._find(message_id, attachment_id)
        target = await in_thread(self._folders.target, directory)
        try:
            await in_thread(target.open)
            path = await in_thread(target.kept, mark) if mark else None
            if path is None:
                await self._fetch(file, target.write, on_progress)
                mark = await in_thread(target.mark)
                # Before the file can be seen: whoever repeats the call is told of this one, wherever we are killed.
                await self._store.run(lambda tx: remember(tx, self._agent_id, call, mark))
                path = await in_thread(target.keep, file["name"])
        finally:
            await in_thread(target.close)
        return SavedFile(str(path), file["name"], file["mime"], file["size"])

    @asynccontextmanager
    async def attachment(self, message_id: str, attachment_id: str) -> AsyncIterator[FetchedFile]:
        file = await self._find(message_id, attachment_id)
        with tempfile.SpooledTemporaryFile(IN_MEMORY, dir=str(self._folders.state)) as spool:  # on disk it has no name

            def keep(data: bytes) -> None:
                try:
                    spool.write(data)
                except OSError as error:
                    raise NotPossible(f"The disk takes no more: {error.strerror}", hint="Free some space.") from error

            async def pieces() -> AsyncIterator[bytes]:
                while piece := await in_thread(spool.read, PIECE):
                    yield piece

            await self._fetch(file, keep, None)
            spool.seek(0)
            yield FetchedFile(file["name"], file["mime"], file["size"], pieces())

    async def _find(self, message_id: str, attachment_id: str) -> dict[str, Any]:
        files = await self._store.run(lambda tx: requests.files_of(tx, self._agent_id, message_id))
        if files is None:
            raise unknown_request(message_id)
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
        if file["size"] > MAX_FILE:
            raise NotPossible(
                f"The attachment has {file['size']} bytes; at most {MAX_FILE} can be fetched",
                hint="Ask the sender for a smaller file, or a link.",
            )
        return file

    async def _fetch(
        self, file: dict[str, Any], write: Callable[[bytes], None], on_progress: OnProgress | None
    ) -> None:
        """Downloads and decrypts. What was written is good if, and only if, this returns."""
        size, done = file["size"], 0
        try:
            opener = FileOpener(
                key=unpack_b64(file["key"]), iv=unpack_b64(file["iv"]), sha256=file["sha256"], size=size
            )

            def take(piece: bytes) -> None:
                write(opener.update(piece))

            async with aclosing(self._rest.download_blob(file["blob_id"])) as pieces:
                async for piece in pieces:
                    await in_thread(take, piece)
                    done += len(piece)
                    if on_progress is not None:
                        on_progress(min(done, size), size)
            opener.finish()
        except RemoteProtocolError as error:
            raise NotPossible(
                f"The attachment does not open: {error}", hint="Ask the sender to send it again."
            ) from error
        except RelayRejected as error:
            if error.status not in (404, 410):
                raise
            raise NotPossible(
                "The attachment is gone from the relay, which keeps files only for a time",
                hint="Ask the sender to send it again.",
            ) from error

    # -- out ---------------------------------------------------------------------------------------------------

    async def send_path(
        self,
        session: Session,
        *,
        path: str,
        name: str | None = None,
        mime: str | None = None,
        text: str = "",
        source_message_id: str | None = None,
        conversation_id: str | None = None,
        to: str | None = None,
        take_over: bool = False,
        call_id: str | None = None,
        idempotency_key: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> Reply:
        text = self._checked(mime, text)
        route = (source_message_id, conversation_id, to, None)
        # By path, not by content: the same call is answered also when the file has changed or gone since.
        call = identify(session.id, call_id, idempotency_key, "path", path, name, mime, text, route)

        def before(tx: Tx) -> Any:
            row = first_result(tx, self._agent_id, call)
            if row is None:
                self._holding.admit(tx, session, source_message_id, take_over=take_over)
                resolve_target(tx, self._agent_id, *route)
            return row

        if (row := await self._store.run(before)) is not None:
            return shapes.reply(row, repeated=True)
        source = await in_thread(self._folders.source, path)
        try:
            await in_thread(source.open)
            _check_size(source.size, "path")
            shown = shown_name(name or source.name)
            found = picture(await in_thread(source.head, HEAD_BYTES))
            file = await self._upload(_pieces_of(source), source.size, on_progress)
        finally:
            await in_thread(source.close)
        file = replace(file, name=shown, mime=mime or (found.mime if found else None) or mime_of(shown))
        if found is not None:
            file = replace(file, width=found.width, height=found.height)

        def draft(tx: Tx) -> Draft:
            self._holding.admit(tx, session, source_message_id, take_over=False)  # not taken over meanwhile
            return self._draft(tx, route, file, text)

        return await self._sending.reply(call, draft)

    async def send_file(
        self,
        session: Session,
        *,
        name: str,
        data: AsyncIterable[bytes],
        size: int | None,
        mime: str | None = None,
        text: str = "",
        source_message_id: str | None = None,
        conversation_id: str | None = None,
        to: str | None = None,
        idempotency_key: str | None = None,
    ) -> Reply:
        text = self._checked(mime, text)
        if size is not None:
            _check_size(size, "data")
        name = shown_name(sendable(name, "name"))
        mime = mime or mime_of(name)
        route = (source_message_id, conversation_id, to, None)
        digest = hashlib.sha256()

        async def pieces() -> AsyncGenerator[bytes]:
            total = 0
            async for piece in data:
                total += len(piece)
                _check_size(total, "data")
                await in_thread(digest.update, piece)
                yield piece

        def before(tx: Tx) -> bool:
            known = idempotency_key is not None and replies.by_call(tx, self._agent_id, f"key:{idempotency_key}")
            if not known:
                resolve_target(tx, self._agent_id, *route)
            return bool(known)

        if await self._store.run(before):
            # Whether it says the same is known once all of it has been read; nothing is uploaded for that.
            async for _ in pieces():
                pass
            file = None
        else:
            file = replace(await self._upload(pieces(), size, None), name=name, mime=mime)
        said = ("file", digest.hexdigest(), name, mime, text, route)
        call = identify(session.id, None, idempotency_key, *said)

        def draft(tx: Tx) -> Draft:
            if file is None:
                raise NotPossible("The reply with this key was forgotten just now", hint="Send the file once more.")
            return self._draft(tx, route, file, text)

        return await self._sending.reply(call, draft)

    def _checked(self, mime: str | None, text: str) -> str:
        if not self._e2ee:
            raise NotPossible("Files are only sent end-to-end encrypted", hint="Start the agent without --no-e2ee.")
        if mime is not None and not _MIME.fullmatch(mime):
            raise InvalidArgument(
                "`mime` is no MIME type", argument="mime", hint="Write it like image/png, or leave it out."
            )
        return sendable(text, "text")

    async def _upload(self, pieces: AsyncIterable[bytes], size: int | None, on_progress: OnProgress | None) -> FileRef:
        """Seals and uploads; the file's name and type are the caller's to add. Raises what `pieces` raises."""
        sealer = FileSealer()
        failures: list[Exception] = []

        async def ciphertext() -> AsyncIterator[bytes]:
            try:
                async for piece in pieces:
                    yield await in_thread(sealer.update, piece)
                    if on_progress is not None and size is not None:
                        on_progress(sealer.size, size)
                if size is not None and sealer.size != size:
                    raise NotPossible("The file ended before its announced size", hint="Send it once more.")
                yield sealer.finish()
            except Exception as error:
                failures.append(error)  # the call to the relay ends with an error of its own
                raise

        try:
            answer = await self._rest.upload_blob(ciphertext(), None if size is None else size + TAG_BYTES)
        except RelayRejected as error:
            if error.status != 413:
                raise
            raise NotPossible(
                f"The relay takes no file of {sealer.size if size is None else size} bytes",
                hint="Send a smaller one, or a link.",
            ) from error
        except LinkError:
            if failures:
                raise failures[0] from None
            raise
        return FileRef(
            id=str(uuid.uuid4()),
            blob_id=_blob_id(answer),
            name="",
            mime="",
            size=sealer.size,
            key=sealer.key,
            iv=sealer.iv,
            sha256=sealer.sha256,
        )

    def _draft(self, tx: Tx, route: tuple[str | None, ...], file: FileRef, text: str) -> Draft:
        target = resolve_target(tx, self._agent_id, *route)
        return Draft(target, "file", encode_text(text, [file]), text or file.name, "text", files=(file,))


def mime_of(name: str) -> str:
    return _TYPES.guess_type(name)[0] or _TYPES.guess_type(name, strict=False)[0] or "application/octet-stream"


async def _pieces_of(source: Source) -> AsyncIterator[bytes]:
    while piece := await in_thread(source.read, PIECE):
        yield piece


def _check_size(size: int, argument: str) -> None:
    if size > MAX_FILE:
        raise InvalidArgument(
            f"The file has {size} bytes or more; at most {MAX_FILE} can be sent",
            argument=argument,
            hint="Send a smaller one, or a link.",
        )


def _blob_id(answer: bytes) -> str:
    try:
        blob_id = json.loads(answer)["id"]
    except (ValueError, TypeError, KeyError, RecursionError):
        blob_id = None
    if not isinstance(blob_id, str) or not blob_id:
        raise RelayRejected("The relay's answer to the upload is not understood", status=201, hint="Try again.")
    return blob_id
