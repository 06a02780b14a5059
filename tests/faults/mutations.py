"""Spoils what was valid: JSON values at any depth, base64 contents, raw bytes. Everything follows from the `rng`."""

from __future__ import annotations

import base64
import copy
import json
import random
from typing import Any

HOSTILE: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2**31,
    2**53,
    2**64,
    10**400,
    -0.5,
    1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "\x00",
    "\ud800",
    "a:b",
    "group:",
    "../../etc/passwd",
    "\u202e\u200b",
    "💥" * 600,
    "x" * 100_000,
    "AAAA",
    "=",
    [],
    [[]],
    [None] * 2000,
    {},
    {"": {}},
    {"type": "MSG"},
]
TOKENS = [
    b"null",
    b"{",
    b"}",
    b"[",
    b'"',
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbf",
    b",",
]


def spoil(value: Any, rng: random.Random) -> Any:
    """A JSON value with one to three changes somewhere in it."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        parents = list(_containers(value))
        if not parents:
            return _hostile(rng)
        _change(rng.choice(parents), rng)
    return value


def _hostile(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(HOSTILE))


def _containers(value: Any) -> list[Any]:
    """Every object and list within that is not empty."""
    found, todo = [], [value]
    while todo:
        item = todo.pop()
        if isinstance(item, (dict, list)) and item:
            found.append(item)
            todo += item.values() if isinstance(item, dict) else item
    return found


def _change(container: Any, rng: random.Random) -> None:
    keys = list(container) if isinstance(container, dict) else list(range(len(container)))
    at = rng.choice(keys)
    what = rng.randrange(7)
    if what == 0:
        del container[at]
    elif what == 1:
        other = rng.choice(keys)
        container[at], container[other] = container[other], container[at]
    elif what == 2 and isinstance(container, dict):
        container[rng.choice((str(at).upper(), f"{at} ", "", "type", "id"))] = container.pop(at)
    elif what == 3 and isinstance(container[at], str):
        container[at] = spoil_text(container[at], rng)
    elif what == 4:
        container[at] = [container[at]] if rng.random() < 0.5 else {"value": container[at]}
    elif what == 5 and rng.random() < 0.2:
        container[at] = json.loads("[" * 100 + "]" * 100)
    else:
        container[at] = _hostile(rng)


def spoil_text(text: str, rng: random.Random) -> str:
    """Base64 stays base64, of other bytes, half of the time."""
    if rng.random() < 0.5:
        try:
            content = base64.b64decode(text, validate=True)
        except ValueError:
            pass
        else:
            return base64.b64encode(spoil_bytes(content, rng)).decode()
    return spoil_bytes(text.encode("utf-8", "surrogatepass"), rng).decode("utf-8", "replace")


def spoil_bytes(data: bytes, rng: random.Random) -> bytes:
    """Changed, missing, doubled or foreign bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        at = rng.randrange(len(out) + 1)
        end = min(len(out), at + rng.choice((1, 2, 4, 16, 64)))
        what = rng.randrange(6)
        if what == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif what == 1:
            del out[at:end]
        elif what == 2:
            out[at:at] = out[at:end]
        elif what == 3:
            out[at:at] = rng.choice(TOKENS)
        elif what == 4:
            del out[at:]
        else:
            out[at:end] = rng.randbytes(end - at)
    return bytes(out)
