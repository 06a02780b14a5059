"""What the daemon costs while nothing happens: resident memory, processor time and wakings, by attached hosts."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from .machine import attached, daemon

SESSIONS = 0, 20, 200
SETTLE, SPAN = (
    65.0,
    60.0,
)  # seconds; a daemon looks after its store a minute after its start, and then not while it idles


def main() -> dict[str, Any]:
    """For each number of sessions a daemon of its own, all beside each other."""
    with ExitStack() as stack:
        pids = []
        for count in SESSIONS:
            pid, _, path = stack.enter_context(daemon())
            pids.append(pid)
            for _ in range(count):
                stack.enter_context(attached(path))
        time.sleep(SETTLE)
        before = [_spent(pid) for pid in pids]
        time.sleep(SPAN)
        after = [_spent(pid) for pid in pids]
        memory = [psutil.Process(pid).memory_info().rss for pid in pids]
    rows = [
        {
            "sessions": count,
            "mib": round(resident / 2**20, 1),
            "cpu_ms_a_minute": round((end[0] - start[0]) * 60 / SPAN * 1000, 1),
            "wakings_a_minute": round((end[1] - start[1]) * 60 / SPAN, 1),
        }
        for count, resident, start, end in zip(SESSIONS, memory, before, after, strict=True)
    ]
    each = round((memory[-1] - memory[-2]) / 1024 / (SESSIONS[-1] - SESSIONS[-2]), 1)
    print("sessions     resident      processor     wakings")
    for row in rows:
        print(
            f"{row['sessions']:8}   {row['mib']:6.1f} MiB   {row['cpu_ms_a_minute']:5.0f} ms/min"
            f"   {row['wakings_a_minute']:5.0f}/min"
        )
    print(f"a session: {each} KiB")
    return {"rows": rows, "kib_a_session": each}


def _spent(pid: int) -> tuple[float, int]:
    """A process's processor time in seconds, and how often its threads have begun to wait (Linux only; else 0)."""
    wakings = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        wakings += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return float(sum(psutil.Process(pid).cpu_times()[:2])), wakings


if __name__ == "__main__":
    main()
