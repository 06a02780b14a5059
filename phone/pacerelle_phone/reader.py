"""Reading what was said, and waiting for what will be."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path

from pacerelle_protocol.files import TAG_BYTES, open_file
from pacerelle_protocol.payload import FileRef

from .core import Core
from .errors import InvalidArgument, KeyMissing, WaitTimeout
from .files import write_new
from .model import Message


class Reader:
    def __init__(self, core: Core) -> None:
        self._core = core
        self._opened_at = 0

    async def start_reading(self) -> None:
        """From here on is what `messages` gives by default."""
        self._opened_at = await self.last_seq()

    async def messages(self, after: int | None = None) -> AsyncGenerator[Message]:
        """What comes in, for ever, oldest first: what follows `seq` `after`, by default since the device was opened."""
        cursor = self._opened_at if after is None else after
        with self._core.news.reading() as queue:
            while page := await self._core.run(self._core.log.after, cursor, 100):
                for message in page:
                    cursor = message.seq
                    yield message
            while True:
                message = await queue.get()
                if message.seq > cursor:
                    cursor = message.seq
                    yield message

    async def wait_for(
        self, predicate: Callable[[Message], bool], timeout: float, *, after: int | None = None
    ) -> Message:
        """The first incoming message that fits, within `timeout` seconds. Raises WaitTimeout."""
        try:
            async with asyncio.timeout(timeout), contextlib.aclosing(self.messages(after)) as messages:
                async for message in messages:
                    if predicate(message):
                        return message
        except TimeoutError:
            pass
        raise WaitTimeout("The message that was waited for did not come in time.")

    async def wait_reply(self, message_id: str, timeout: float) -> Message:
        """The first message that refers to ours, within `timeout` seconds. Raises WaitTimeout."""
        with self._core.news.reply_to(message_id) as arrived:
            if found := await self._core.run(self._core.log.replies, message_id):
                return found[0]
            try:
                async with asyncio.timeout(timeout):
                    return await arrived
            except TimeoutError:
                raise WaitTimeout("No reply came in time.", hint="The agent may still answer later.") from None

    async def wait_sent(self, message_id: str, timeout: float) -> Message:
        """Our message once the relay has it (or refused it), or as it stands after `timeout` seconds."""
        deadline = asyncio.get_running_loop().time() + timeout
        while True:
            with self._core.news.outgoing(message_id) as moved:
                message = await self.message(message_id)
                if message.state != "queued":
                    return message
                try:
                    async with asyncio.timeout_at(deadline):
                        await moved
                except TimeoutError:
                    return message

    async def message(self, message_id: str) -> Message:
        """Raises InvalidArgument for an id this device does not know."""
        found = await self._core.run(self._core.log.find, message_id)
        if found is None:
            raise InvalidArgument("This device has no such message.", argument="message_id")
        return found

    async def conversation(self, conversation_id: str, limit: int = 50) -> list[Message]:
        """The newest messages of a conversation, both directions, oldest first."""
        return await self._core.run(self._core.log.newest, conversation_id, limit)

    async def not_shown(self, agent_id: str | None, up_to: int) -> list[Message]:
        """What came in up to that `seq` and nobody was shown (`mark_shown`), oldest first, at most 100."""
        return await self._core.run(self._core.log.not_shown, agent_id, up_to, 100)

    async def mark_shown(self, messages: Sequence[Message]) -> None:
        """The person has seen these: for programs that end and start again, such as `pacerelle chat listen`."""

        def store() -> None:
            with self._core.store.transaction():
                self._core.log.mark_shown([message.seq for message in messages])

        await self._core.run(store)

    async def open_widgets(self, conversation_id: str) -> list[Message]:
        """Widgets not answered from this device, newest first, as they stand after the agent's updates."""
        return await self._core.run(self._core.log.open_widgets, conversation_id)

    async def download(self, attachment: FileRef) -> bytes:
        """A file's bytes, decrypted and checked. Raises KeyMissing, RelayError, and DecryptError for a changed file."""
        if attachment.key is None or attachment.iv is None:
            raise KeyMissing("The file was not sent end-to-end encrypted: there is no key for it.")
        ciphertext = await self._core.api.blob(attachment.blob_id, limit=attachment.size + TAG_BYTES)
        return await asyncio.to_thread(
            open_file,
            ciphertext,
            key=attachment.key,
            iv=attachment.iv,
            sha256=attachment.sha256,
            size=attachment.size,
        )

    async def save(self, attachment: FileRef, folder: Path) -> Path:
        """Download into a new file of `folder`, never over an old one. Raises as `download`, and InvalidArgument."""
        data = await self.download(attachment)
        return await asyncio.to_thread(write_new, folder, attachment.name, data)

    async def last_seq(self) -> int:
        """The number of the newest message: what `messages(after=…)` starts behind."""
        return await self._core.run(self._core.log.last_seq)
