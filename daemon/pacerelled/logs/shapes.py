"""A log record as one line."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

from pacerelled.errors import place_of


class TextFormatter(logging.Formatter):
    """For people, in local time."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatException(self, ei: Any) -> str:
        """Kind and place: an exception's own text may quote what people wrote."""
        return place_of(ei[1])


class JsonFormatter(logging.Formatter):
    """One object a line (docs/daemon.md), in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if repeated := getattr(record, "repeated", 0):
            line["repeated"] = repeated
        if record.exc_info and record.exc_info[1]:
            line["place"] = place_of(record.exc_info[1])
        return json.dumps(line)
