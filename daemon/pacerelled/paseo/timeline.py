"""An agent's timeline as a compact transcript, paged by size. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from .frames import text

MAX_ENTRY = 4_000  # characters of one entry that are shown; the middle of a longer one is left out
MAX_DETAIL = 200  # characters of what a tool was called with

Who = Literal["user", "agent", "thinking", "tool", "todo", "error", "note"]


@dataclass(frozen=True, slots=True)
class Entry:
    """`first` and `last` are the daemon's row numbers. What it says is data."""

    who: Who
    text: str = field(repr=False)
    first: int
    last: int
    at: str | None = None
    message_id: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return {"who": self.who, "text": self.text, "at": self.at}


def entries(rows: Any) -> list[Entry]:
    """The rows that say something, neighbours of one speaker joined where the daemon had cut them."""
    found: list[Entry] = []
    for row in rows if isinstance(rows, list) else ():
        entry = _entry(row)
        if entry is None:
            continue
        before = found[-1] if found else None
        if before is not None and entry.who in ("agent", "thinking") and before.who == entry.who:
            found[-1] = Entry(entry.who, before.text + entry.text, before.first, entry.last, before.at)
        else:
            found.append(entry)
    return found


def newest(found: list[Entry], max_bytes: int) -> tuple[list[Entry], bool]:
    """The last entries whose JSON has at most so many bytes, at least one; and whether older ones were left out."""
    taken: list[Entry] = []
    left = max_bytes
    for entry in reversed(found):
        shown = _cut(entry, min(MAX_ENTRY, max_bytes // 4))
        left -= len(json.dumps(shown.as_dict(), ensure_ascii=False).encode("utf-8", "replace")) + 2
        if taken and left < 0:
            break
        taken.append(shown)
    taken.reverse()
    return taken, len(taken) < len(found)


def rows_since(rows: Any, at: str | None) -> list[Any]:
    """The rows from a time on, which is the daemon's own; all of them without one."""
    listed = rows if isinstance(rows, list) else []
    if at is None:
        return listed
    return [row for row in listed if isinstance(row, Mapping) and (text(row.get("timestamp")) or at) >= at]


def last_message(found: Iterable[Entry]) -> str | None:
    """What the agent said last, after the last thing that somebody wrote to it."""
    message = None
    for entry in found:
        if entry.who == "user":
            message = None
        elif entry.who == "agent" and entry.text.strip():
            message = entry.text
    return message


def _entry(row: Any) -> Entry | None:
    item = row.get("item") if isinstance(row, Mapping) else None
    if not isinstance(item, Mapping):
        return None
    said = _said(item)
    if said is None or not said[1]:
        return None
    first = row.get("seqStart")
    last = row.get("seqEnd")
    return Entry(
        who=said[0],
        text=said[1],
        first=first if isinstance(first, int) else 0,
        last=last if isinstance(last, int) else 0,
        at=text(row.get("timestamp")),
        message_id=text(item.get("messageId")) or text(item.get("clientMessageId")),
    )


def _said(item: Mapping[str, Any]) -> tuple[Who, str] | None:
    match item.get("type"):
        case "user_message":
            return "user", text(item.get("text")) or ""
        case "assistant_message":
            return "agent", text(item.get("text")) or ""
        case "reasoning":
            return "thinking", text(item.get("text")) or ""
        case "tool_call":
            return "tool", _tool(item)
        case "todo":
            return "todo", _todos(item.get("items"))
        case "error":
            return "error", text(item.get("message")) or "an error without words"
        case "compaction":
            return "note", f"The conversation so far was summed up ({text(item.get('status')) or 'done'})."
        case str(kind):
            words = text(item.get("text")) or text(item.get("message"))
            return "note", f"[{kind}] {words}" if words else f"[{kind}]"
        case _:
            return None


def _tool(item: Mapping[str, Any]) -> str:
    detail = item.get("detail")
    detail = detail if isinstance(detail, Mapping) else {}
    what = next(
        (
            words
            for name in ("command", "filePath", "query", "url", "description", "text", "path")
            if (words := text(detail.get(name)))
        ),
        "",
    )
    line = f"{text(item.get('name')) or 'tool'}: {_short(what)}" if what else text(item.get("name")) or "tool"
    status = text(item.get("status")) or "unknown"
    if isinstance(detail.get("exitCode"), int) and detail["exitCode"] != 0:
        status += f", exit code {detail['exitCode']}"
    error = item.get("error")
    words = text(error) or (text(error.get("message")) if isinstance(error, Mapping) else None)
    return f"{line} ({status})" + (f": {_short(words)}" if words else "")


def _todos(items: Any) -> str:
    listed = [each for each in items if isinstance(each, Mapping)] if isinstance(items, list) else []
    return "\n".join(f"[{'x' if each.get('completed') is True else ' '}] {text(each.get('text'))}" for each in listed)


def _short(words: str) -> str:
    line = " ".join(words.split())
    return line if len(line) <= MAX_DETAIL else line[: MAX_DETAIL - 1] + "…"


def _cut(entry: Entry, most: int) -> Entry:
    if len(entry.text) <= most:
        return entry
    head, tail = most * 2 // 3, most // 3
    missing = len(entry.text) - head - tail
    shown = f"{entry.text[:head]}\n[… {missing} characters left out …]\n{entry.text[-tail:]}"
    return Entry(entry.who, shown, entry.first, entry.last, entry.at, entry.message_id)
