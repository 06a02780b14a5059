"""The conversation in a terminal: what comes in is shown while one types; lines are messages, answers or commands."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pacerelle_protocol.errors import ProtocolError
from pacerelle_protocol.payload import FileRef

from . import show
from .answers import field_value, parse_answer
from .device import Device
from .errors import InvalidArgument, PhoneError
from .files import File
from .model import Agent, Message
from .terminal import Terminal

HELP = """\
Type to write. A short answer (yes, no, a number) answers the widget shown last; otherwise:
/answer …        answer the open widget (a form asks for each field; files: their paths)
/cancel          decline the open widget
/send PATH TEXT  send a file, with a text if you like
/files           the files of this conversation     /save N [DIR]  save one of them
/code            the safety codes to compare        /trust         accept the agent's new key
/status          connection and what is waiting     /quit          leave (Ctrl-D)"""

BACKLOG = 10  # messages shown at the beginning


class Talk:
    def __init__(self, phone: Device, agent: Agent, terminal: Terminal) -> None:
        self._phone = phone
        self._agent = agent
        self._terminal = terminal
        self._commands: dict[str, Callable[[str], Awaitable[None]]] = {
            "help": self._help,
            "answer": self._answer,
            "cancel": self._cancel,
            "send": self._send_file,
            "files": self._list_files,
            "save": self._save,
            "code": self._code,
            "trust": self._trust,
            "status": self._status,
        }

    async def run(self) -> None:
        """Until the user leaves."""
        backlog = await self._phone.conversation(self._agent.conversation_id, BACKLOG)
        for message in backlog:
            self._show(message)
        await self._phone.mark_shown(backlog)
        self._terminal.print(f"-- {show.escape(self._agent.name, one_line=True)}. /help shows the commands.")
        incoming = asyncio.create_task(self._watch(backlog[-1].seq if backlog else 0))
        try:
            while (line := await self._terminal.line()) is not None:
                if line.strip() == "/quit":
                    return
                try:
                    await self._line(line)
                except (PhoneError, ProtocolError) as e:
                    hint = getattr(e, "hint", "")
                    self._terminal.print(show.escape(f"! {e}" + (f" {hint}" if hint else "")))
        finally:
            incoming.cancel()
            await asyncio.gather(incoming, return_exceptions=True)

    async def _watch(self, after: int) -> None:
        async for message in self._phone.messages(after):
            if message.conversation_id == self._agent.conversation_id:
                self._show(message)
                await self._phone.mark_shown([message])

    def _show(self, message: Message) -> None:
        self._terminal.print(show.message(message, "You" if message.direction == "out" else self._agent.name))

    async def _line(self, line: str) -> None:
        text = line.strip()
        if not text:
            return
        if text.startswith("/") and not text.startswith("//"):
            name, _, rest = text[1:].partition(" ")
            if name not in self._commands:
                raise InvalidArgument(f"There is no command /{name}.", argument="command", hint="/help lists them.")
            await self._commands[name](rest.strip())
        elif not await self._answered(text):
            await self._sent(await self._phone.send(self._agent.agent_id, line.removeprefix("/")))

    async def _sent(self, message_id: str) -> None:
        self._show(await self._phone.wait_sent(message_id, 1.0))

    async def _widget(self) -> Message | None:
        """The newest open widget that wants an answer."""
        for message in await self._phone.open_widgets(self._agent.conversation_id):
            if message.widget is not None and message.widget.kind != "progress":
                return message
        return None

    async def _answered(self, text: str) -> bool:
        """Whether the line was the answer to the open widget. What does not fit it is a message."""
        open_widget = await self._widget()
        if open_widget is None or open_widget.widget is None or open_widget.widget.kind == "form":
            return False
        try:
            value = parse_answer(open_widget.widget, text)
        except InvalidArgument:
            return False
        await self._sent(await self._phone.respond(open_widget, value))
        return True

    async def _help(self, _: str) -> None:
        self._terminal.print(HELP)

    async def _answer(self, text: str) -> None:
        message = await self._needed_widget()
        widget = message.widget
        assert widget is not None
        value: Any
        if widget.kind == "form" and not text:
            value = await self._fill_in(widget.spec["fields"])
            if value is None:
                return
        elif widget.kind == "file-picker":
            files = [await asyncio.to_thread(File.read, Path(path).expanduser()) for path in _words(text)]
            if not files:
                raise InvalidArgument("Files are needed: /answer PATH …", argument="answer")
            await self._sent(await self._phone.send(self._agent.agent_id, "", files=files, reply_to=message.id))
            value = [{"name": f.name, "mime": f.mime, "size": len(f.data)} for f in files]
        else:
            value = parse_answer(widget, text)
        await self._sent(await self._phone.respond(message, value))

    async def _fill_in(self, fields: list[dict[str, object]]) -> dict[str, object] | None:
        """Field by field; None when the user changes their mind."""
        value: dict[str, object] = {}
        for field in fields:
            while True:
                label = show.escape(str(field["label"]), one_line=True)
                text = await self._terminal.line(f"{label}{' (needed)' if field.get('required') else ''}: ")
                if text is None or text.strip() == "/cancel":
                    self._terminal.print("Not answered.")
                    return None
                try:
                    said = field_value(field, text)
                    break
                except InvalidArgument as e:
                    self._terminal.print(show.escape(f"! {e.message} {e.hint}"))
            if said is not None:
                value[str(field["name"])] = said
        return value

    async def _needed_widget(self) -> Message:
        found = await self._widget()
        if found is None:
            raise InvalidArgument("There is no open widget.", argument="answer")
        return found

    async def _cancel(self, _: str) -> None:
        await self._sent(await self._phone.respond(await self._needed_widget(), cancelled=True))

    async def _send_file(self, text: str) -> None:
        words = _words(text)
        if not words:
            raise InvalidArgument("A path is needed: /send PATH TEXT", argument="file")
        path, said = Path(words[0]).expanduser(), " ".join(words[1:])
        await self._sent(await self._phone.send(self._agent.agent_id, said, files=[path]))

    async def _files(self) -> list[FileRef]:
        said = await self._phone.conversation(self._agent.conversation_id, 500)
        return [file for message in said if message.direction == "in" for file in message.files]

    async def _list_files(self, _: str) -> None:
        files = await self._files()
        for number, file in enumerate(files, 1):
            name = show.escape(file.name, one_line=True)
            self._terminal.print(f"    {number}. {name} ({file.size:,} bytes)")
        if not files:
            self._terminal.print("No files yet.")

    async def _save(self, text: str) -> None:
        files, words = await self._files(), _words(text)
        if not words or not words[0].isdecimal() or not 0 < int(words[0]) <= len(files):
            raise InvalidArgument("The file's number is needed: /save N [DIR]", argument="file", hint="See /files.")
        folder = Path(words[1]).expanduser() if len(words) > 1 else Path.cwd()
        path = await self._phone.save(files[int(words[0]) - 1], folder)
        self._terminal.print(f"Saved as {show.escape(str(path), one_line=True)}")

    async def _code(self, _: str) -> None:
        agent_id = self._agent.agent_id
        self._terminal.print(
            f"Agent:       {await self._phone.safety_code(agent_id) or 'none before the first message'}"
        )
        if changed := await self._phone.new_safety_code(agent_id):
            self._terminal.print(f"Its new key: {changed}")
        self._terminal.print(f"This device: {await self._phone.own_safety_code()}")

    async def _trust(self, _: str) -> None:
        await self._phone.trust_new_key(self._agent.agent_id)
        self._terminal.print("The agent's present key is trusted now; what waited is sent.")

    async def _status(self, _: str) -> None:
        status = await self._phone.status()
        self._terminal.print(f"Relay {self._phone.relay_url}: {status.link}. Waiting to be sent: {status.queued}.")
        if status.problem and status.link != "connected":
            self._terminal.print(show.escape(f"! {status.problem}"))


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        raise InvalidArgument("A quotation mark is missing.", argument="command") from None
