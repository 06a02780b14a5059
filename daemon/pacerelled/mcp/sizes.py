"""How large a result may be, and what becomes of a message that is larger.

Hosts give a tool's result up, or cut it, above about 25,000 tokens. Ids and other scripts than Latin take a token for
about two bytes, and a host may count structured content and the same text both: so one of the two has at most
`MAX_RESULT` bytes. Lists end early, with a cursor. A message that would not fit into one is shown in part, says so
(`shortened`), and can be read in pages.
"""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import quote, unquote

from pacerelled.agent.model import DATA_NOTICE, Checkpoint, Reply, Request
from pacerelled.errors import InvalidArgument

from .results import json_text

MAX_RESULT: Final = 24_000
"""Bytes of a result's JSON, in UTF-8."""
MAX_PAGE: Final = 18_000  # bytes of a page of a message, as a JSON string

_MAX_MESSAGE = 21_000  # bytes of a message in a list
_MAX_TEXT = 12_000  # of which are its text
_MAX_LARGE = 5_000  # and these, which may be as long as a message
_LARGE = ("widget_response", "widget_update", "widget", "attachments")
_ABOUT = 300  # bytes in which it says that it is shortened, but for its id
_FRAME = 1_500  # bytes of a result around its list: notices, cursor

MESSAGE_TEMPLATE: Final = "message://{message_id}{?start}"
_MESSAGE_URI = re.compile(r"message://([^/?#]+)/?(?:\?start=([0-9]{1,15}))?")


def size(value: Any) -> int:
    """Bytes of its JSON."""
    return len(json_text(value).encode())


def shown(item: Request | Reply | Checkpoint) -> dict[str, Any]:
    """An item of a list, shortened if it is too long for one."""
    row = item.as_dict()
    if isinstance(item, Checkpoint):  # what is saved is bounded
        return row
    left_out = _left_out(row)
    for name in left_out:
        del row[name]
    text, row["text"] = row["text"], ""
    rest = size(row) + size(item.message_id) + size(message_uri(item.message_id)) + _ABOUT
    end = _cut(text, 0, max(0, min(_MAX_TEXT, _MAX_MESSAGE - rest)))
    row["text"] = text[:end]
    if end == len(text) and not left_out:
        return row
    start = 0 if left_out else end
    row["shortened"] = {
        "characters": len(_whole(item)[0]),
        "shown": start,
        "left_out": left_out,
        "rest": message_uri(item.message_id, start),
        "how": f"read_message {json_text({'messageId': item.message_id, 'start': start})}",
    }
    return row


def page(item: Request | Reply, start: int) -> dict[str, Any]:
    """A piece of a message, from the character `start` on. Raises InvalidArgument if it is not that long."""
    content, mime = _whole(item)
    if start > len(content):
        raise InvalidArgument(
            f"start is {start}, but the message has {len(content)} characters",
            argument="start",
            hint="Start with 0, and go on with the `next` of each result.",
        )
    end = _cut(content, start, MAX_PAGE)
    return {
        "message_id": item.message_id,
        "kind": item.kind,
        "mime": mime,
        "content": content[start:end],
        "content_is": DATA_NOTICE if isinstance(item, Request) else "Sent by you or another session.",
        "start": start,
        "end": end,
        "characters": len(content),
        "next": end if end < len(content) else None,
    }


def message_uri(message_id: str, start: int = 0) -> str:
    """The resource from which a message is read."""
    return f"message://{quote(message_id, safe='')}" + (f"?start={start}" if start else "")


def parse_message_uri(uri: str) -> tuple[str, int] | None:
    """Message id and start of such a URI; None if it is another one."""
    found = _MESSAGE_URI.fullmatch(uri)
    return (unquote(found[1]), int(found[2] or 0)) if found else None


class Room:
    """What is left of a result while a list is made. The first item always fits: items are bounded too."""

    def __init__(self, most: int = MAX_RESULT - _FRAME) -> None:
        self._left = most
        self._first = True

    def fits(self, item: Request | Reply | Checkpoint) -> bool:
        """Takes the room for one more item, if there is enough."""
        return self.take(shown(item))

    def take(self, row: Any) -> bool:
        needed = size(row) + 2
        if needed > self._left and not self._first:
            return False
        self._left -= needed
        self._first = False
        return True


def some(rows: list[Any], most: int) -> list[Any]:
    """The first of them that have at most `most` bytes together, and one in any case."""
    room = Room(most)
    for count, row in enumerate(rows):
        if not room.take(row):
            return rows[:count]
    return rows


def _left_out(row: dict[str, Any]) -> list[str]:
    """The names of what is too large to be shown beside the text."""
    sizes = sorted((size(row[name]), name) for name in _LARGE if row.get(name))
    names = []
    while sum(each for each, _ in sizes) > _MAX_LARGE:
        names.append(sizes.pop()[1])
    return names


def _whole(item: Request | Reply) -> tuple[str, str]:
    """What is read in pages, and its MIME type: the text, or where it is not just that, all that may be long.

    Only what never changes, so that pages fit together.
    """
    row = item.as_dict()
    if not _left_out(row):
        return item.text, "text/plain"
    return json_text({name: row[name] for name in ("text", *_LARGE) if row.get(name)}), "application/json"


def _cut(text: str, start: int, most: int) -> int:
    """Where a piece from `start` on ends that has at most `most` bytes as a JSON string."""
    low, high = start, min(len(text), start + most)
    while low < high:
        middle = (low + high + 1) // 2
        if size(text[start:middle]) <= most + 2:  # quotes
            low = middle
        else:
            high = middle - 1
    return low
