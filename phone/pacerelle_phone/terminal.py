"""The terminal: one line being typed at the bottom, everything else printed above it."""

from __future__ import annotations

import asyncio
import codecs
import os
import shutil
import termios
import tty
from types import TracebackType

from .editor import Editor


class Terminal:
    """Reads keys from `source` and draws on `target` (file descriptors of a terminal) while it is entered."""

    def __init__(self, source: int, target: int, prompt: str = "> ") -> None:
        self._source = source
        self._target = target
        self.prompt = prompt
        self._editor = Editor()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines: asyncio.Queue[str | None] = asyncio.Queue()

    def __enter__(self) -> Terminal:
        self._saved = termios.tcgetattr(self._source)
        tty.setcbreak(self._source)  # keys at once and no echo; Ctrl-C stays a signal
        asyncio.get_running_loop().add_reader(self._source, self._read)
        self._draw()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._source)
        self._write("\r\x1b[K")
        termios.tcsetattr(self._source, termios.TCSADRAIN, self._saved)

    def print(self, text: str) -> None:
        """Above the line being typed. The caller has escaped what others wrote."""
        self._write(f"\r\x1b[K{text}\n")
        self._draw()

    async def line(self, prompt: str | None = None) -> str | None:
        """The next line; None at the end of input. `prompt` is shown instead of the usual one meanwhile."""
        usual = self.prompt
        if prompt is not None:
            self.prompt = prompt
            self._draw()
        try:
            return await self._lines.get()
        finally:
            self.prompt = usual
            self._draw()

    def _read(self) -> None:
        try:
            data = os.read(self._source, 4096)
        except OSError:  # the terminal is gone
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._source)
            self._lines.put_nowait(None)
            return
        for line in self._editor.feed(self._decoder.decode(data)):
            self._lines.put_nowait(line)
        self._draw()

    def _draw(self) -> None:
        columns = shutil.get_terminal_size().columns
        room = max(8, columns - len(self.prompt) - 1)
        shown, cursor = self._editor.window(room)
        back = f"\r\x1b[{len(self.prompt) + cursor}C" if self.prompt or cursor else "\r"
        self._write(f"\r\x1b[K{self.prompt}{shown}{back}")

    def _write(self, text: str) -> None:
        data = text.encode(errors="replace")
        try:
            while data:
                data = data[os.write(self._target, data) :]
        except OSError:  # gone: the reader notices
            pass
