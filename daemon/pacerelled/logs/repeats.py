"""Counts what is said again and again: a relay that is away for a night must not fill a log.

The same is what has the same words; numbers in it (pauses, sizes) make no difference. The first few are written, later
ones after pauses that grow, with how many there were in between. What has been silent for a while is forgotten, so its
return is news.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

FIRST = 3  # written before counting begins
PAUSE, LONGEST_PAUSE = 60.0, 3600.0  # seconds between the written ones, doubled each time
SILENCE = 600.0  # seconds
MOST = 256  # kept in mind; more different ones than that are no repetitions


@dataclass
class _Said:
    record: logging.LogRecord  # the newest
    times: int  # in all
    written: float  # monotonic seconds, as the following
    last: float
    pause: float = PAUSE
    held: int = 0  # not written since


class Repeats:
    """`clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._said: dict[tuple[object, ...], _Said] = {}

    def take(self, record: logging.LogRecord) -> list[logging.LogRecord]:
        """What to write now that this was said."""
        now = self._clock()
        out = self._forget_silent(now)
        if record.levelno < logging.INFO:
            return [*out, record]
        args = record.args if isinstance(record.args, tuple) else ()
        key = (record.name, record.levelno, record.msg, *(arg for arg in args if isinstance(arg, str)))
        said = self._said.setdefault(key, _Said(record, 0, now, now))
        said.record, said.last, said.times = record, now, said.times + 1
        if said.times <= FIRST:
            said.written = now
            return [*out, record]
        said.held += 1
        if now - said.written < said.pause:
            return out
        out.append(_counted(said, now))
        said.held, said.written, said.pause = 0, now, min(said.pause * 2, LONGEST_PAUSE)
        return out

    def _forget_silent(self, now: float) -> list[logging.LogRecord]:
        silent = [key for key, said in self._said.items() if now - said.last > SILENCE]
        silent += list(self._said)[: max(0, len(self._said) - MOST)]
        gone = [self._said.pop(key) for key in dict.fromkeys(silent)]
        return [_counted(said, now) for said in gone if said.held]


def _counted(said: _Said, now: float) -> logging.LogRecord:
    """The newest, with how many there were since one was written."""
    ended = now - said.last
    when = f", the last {ended / 60:.0f} min ago" if ended >= 60 else ""
    record = logging.makeLogRecord(said.record.__dict__)
    record.msg, record.args = f"{said.record.getMessage()} ({said.held} times since{when})", ()
    record.repeated = said.held
    return record


class Counting(logging.Handler):
    """Hands on to `target` what is to be written."""

    def __init__(self, target: logging.Handler, repeats: Repeats | None = None) -> None:
        super().__init__()
        self._target = target
        self._repeats = repeats or Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        for each in self._repeats.take(record):
            self._target.handle(each)
