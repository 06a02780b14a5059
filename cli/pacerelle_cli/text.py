"""How things are written for people: names and texts of others, times, ages, sizes."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

# What a terminal could take as a command, or what changes the order in which the rest of a line is shown: C0 and C1
# controls, line and paragraph separators, bidirectional controls, lone surrogates.
UNSAFE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def escape(text: str) -> str:
    """One line that a terminal shows as it is: what is unsafe becomes `\\n`, `\\x1b`, `\\u202e`."""
    return UNSAFE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


def escape_lines(text: str) -> list[str]:
    """The text's lines, each escaped."""
    return [escape(line) for line in re.split(r"\r\n|\n", text)]


def duration(seconds: float) -> str:
    """For example `4 s`, `3 min`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    large, unit, small, small_unit = (
        (whole // 3600, "h", whole % 3600 // 60, "min")
        if whole < 86400
        else (whole // 86400, "d", whole % 86400 // 3600, "h")
    )
    return f"{large} {unit} {small} {small_unit}" if small else f"{large} {unit}"


def ago(seconds: float | None) -> str:
    return "never" if seconds is None else f"{duration(seconds)} ago"


def when(stamp: str, *, now: datetime | None = None) -> str:
    """An ISO 8601 time in local time with its age; what is no time is shown as it is."""
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return escape(stamp)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    age = ((now or datetime.now(UTC)) - moment).total_seconds()
    local = moment.astimezone().strftime("%Y-%m-%d %H:%M")
    return f"{local} ({duration(age)} ago)" if age >= 0 else local


def size(count: int) -> str:
    """Bytes, as a person reads them: `900 B`, `4.1 kB`, `20.0 MB`."""
    if count < 1000:
        return f"{count} B"
    amount, unit = (count / 1e3, "kB") if count < 999_950 else (count / 1e6, "MB")
    return f"{amount:.1f} {unit}"
