"""Whether SQLite's log has lost committed transactions.

When SQLite recovers a log, it stops at the first frame whose checksum is wrong and forgets what follows: right after a
power failure, where that can only be the one transaction that was being written. After damage it would silently be an
older state of the store, and with it of the encryption, whose keys would then be used twice.

Layout (SQLite's file format, "The Write-Ahead Log"): a header of 32 bytes (magic, version, page size, sequence, two
salts, checksum), then frames of 24 bytes (page number, pages in the database after a commit or 0, the salts, checksum)
and a page each. Checksums are cumulative.
"""

from __future__ import annotations

import struct
from itertools import batched
from pathlib import Path

_HEADER = struct.Struct(">8I")
_FRAME = struct.Struct(">6I")
_MAGIC = 0x377F0682  # its lowest bit says whether checksums are over big-endian words


def log_is_damaged(path: Path) -> bool:
    """True if the log at `path` breaks off before a transaction that had been committed; False without a log.

    Each commit is synced before the next transaction begins: two commits after the break cannot both be unfinished
    work. Damage within the very last transaction looks like a power failure, and is taken for one.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return False
    if len(data) <= _HEADER.size:
        return False
    magic, _, page_size, _, *salts, sum1, sum2 = _HEADER.unpack_from(data)
    order = ">" if magic & 1 else "<"
    state = _checksum(data[:24], order, (0, 0))
    if magic & ~1 != _MAGIC or state != (sum1, sum2) or page_size < 512:
        return True
    intact = True
    lost = 0
    for start in range(_HEADER.size, len(data) - _FRAME.size - page_size + 1, _FRAME.size + page_size):
        _, commit, *frame_salts, sum1, sum2 = _FRAME.unpack_from(data, start)
        same_run = frame_salts == salts  # others are left over from before the log was last begun anew
        if intact:
            state = _checksum(data[start : start + 8], order, state)
            state = _checksum(data[start + _FRAME.size : start + _FRAME.size + page_size], order, state)
            intact = same_run and state == (sum1, sum2)
        if not intact and same_run and commit:
            lost += 1
    return lost > 1


def _checksum(data: bytes, order: str, state: tuple[int, int]) -> tuple[int, int]:
    first, second = state
    for a, b in batched(struct.unpack(f"{order}{len(data) // 4}I", data), 2):
        first = (first + a + second) & 0xFFFFFFFF
        second = (second + b + first) & 0xFFFFFFFF
    return first, second
