"""A line editor without a terminal: keys in, lines out. Pure, so that it can be tried key by key."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[@-~]|O.)")
_PARTIAL = re.compile(r"\x1b(?:\[[0-9;?]*|O)?\Z")
_MOVES = {
    "\x1b[D": "left", "\x1bOD": "left", "\x02": "left",
    "\x1b[C": "right", "\x1bOC": "right", "\x06": "right",
    "\x1b[H": "home", "\x1bOH": "home", "\x1b[1~": "home", "\x01": "home",
    "\x1b[F": "end", "\x1bOF": "end", "\x1b[4~": "end", "\x05": "end",
    "\x1b[A": "older", "\x1bOA": "older", "\x10": "older",
    "\x1b[B": "newer", "\x1bOB": "newer", "\x0e": "newer",
    "\x1b[3~": "delete",
    "\x7f": "backspace", "\x08": "backspace", "\x15": "kill line", "\x17": "kill word", "\x0b": "kill rest",
}  # fmt: skip


class Editor:
    """`text` is what has been typed, `cursor` where the next character goes."""

    def __init__(self) -> None:
        self.text = ""
        self.cursor = 0
        self._pending = ""  # the beginning of an escape sequence
        self._history: list[str] = []
        self._at = 0  # in the history; its length: the line being written
        self._draft = ""

    def feed(self, keys: str) -> Iterator[str | None]:
        """The lines that these keys complete; None for the end of input (Ctrl-D on an empty line)."""
        keys, self._pending = self._pending + keys, ""
        at = 0
        while at < len(keys):
            if keys[at] == "\x1b":
                if sequence := _SEQUENCE.match(keys, at):
                    self._do(_MOVES.get(sequence[0], ""))
                    at = sequence.end()
                    continue
                if _PARTIAL.match(keys, at):
                    self._pending = keys[at:]
                    return
            key, at = keys[at], at + 1
            if key in "\r\n":
                yield self._submit()
            elif key == "\x04":
                if not self.text:
                    yield None
                self._do("delete")
            elif key in _MOVES:
                self._do(_MOVES[key])
            elif key.isprintable():
                self.text = self.text[: self.cursor] + key + self.text[self.cursor :]
                self.cursor += 1

    def _submit(self) -> str:
        line = self.text
        if line.strip() and self._history[-1:] != [line]:
            self._history.append(line)
        self._at = len(self._history)
        self._set("")
        return line

    def _set(self, text: str) -> None:
        self.text, self.cursor = text, len(text)

    def _cut(self, start: int, end: int) -> None:
        self.text, self.cursor = self.text[:start] + self.text[end:], start

    def _do(self, move: str) -> None:
        match move:
            case "left":
                self.cursor = max(0, self.cursor - 1)
            case "right":
                self.cursor = min(len(self.text), self.cursor + 1)
            case "home":
                self.cursor = 0
            case "end":
                self.cursor = len(self.text)
            case "backspace" if self.cursor:
                self._cut(self.cursor - 1, self.cursor)
            case "delete":
                self._cut(self.cursor, self.cursor + 1)
            case "kill line":
                self._cut(0, self.cursor)
            case "kill rest":
                self._cut(self.cursor, len(self.text))
            case "kill word":
                before = self.text[: self.cursor].rstrip()
                self._cut(before.rfind(" ") + 1, self.cursor)
            case "older" if self._at > 0:
                if self._at == len(self._history):
                    self._draft = self.text
                self._at -= 1
                self._set(self._history[self._at])
            case "newer" if self._at < len(self._history):
                self._at += 1
                self._set(self._history[self._at] if self._at < len(self._history) else self._draft)

    def window(self, columns: int) -> tuple[str, int]:
        """The part of the line that fits `columns`, with the cursor in it, and the cursor's column."""
        start = 0
        while start < self.cursor and _width(self.text[start : self.cursor]) >= columns:
            start += 1
        end = self.cursor
        while end < len(self.text) and _width(self.text[start : end + 1]) < columns:
            end += 1
        return self.text[start:end], _width(self.text[start : self.cursor])


def _width(text: str) -> int:
    return sum(_cell(c) for c in text)


def _cell(c: str) -> int:
    if unicodedata.combining(c) or unicodedata.category(c) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1
