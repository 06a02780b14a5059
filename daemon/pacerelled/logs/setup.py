"""Where the log goes, and how much of it there is."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from .capped import CappedFile, is_file
from .journal import JournalHandler, is_journal
from .repeats import Counting
from .shapes import JsonFormatter, TextFormatter

# Libraries log addresses and payloads below warnings; the relay's address has the token in it.
_LIBRARIES: Final = (
    *("websockets", "aiohttp", "asyncio", "mcp", "keyring", "urllib3", "httpx", "uvicorn", "sse_starlette"),
)


def start_logging(level: str, log_format: str, file: Path, env: Mapping[str, str]) -> None:
    """To the journal where standard error leads there; else to standard error, which is kept small if it is `file`.

    `log_format` is text or json; the journal has fields of its own.
    """
    handler: logging.Handler
    if is_journal(2, env):
        handler = JournalHandler()
    else:
        handler = CappedFile(file) if is_file(2, file) else logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.getLogger().handlers[:] = [Counting(handler)]
    set_level(level)


def set_level(level: str) -> None:
    """debug, info, warning or error; from now on, until the process ends."""
    root = logging.getLogger()
    root.setLevel(level.upper())
    for name in _LIBRARIES:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def describe() -> dict[str, Any]:
    """The body of GET /v1/log (docs/local-protocol.md)."""
    return {"level": logging.getLevelName(logging.getLogger().level).lower()}
