"""What the daemon costs while nothing happens: resident memory, processor time and wakings, by attached hosts."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil

from .machine import attached, daemon

SESSIONS = 0, 20, 200
SETTLE, SPAN = 3.0, 60.0  # seconds


def main() -> dict[str, Any]:
    """For each number of sessions a daemon of its own, so that nothing of the one before is left."""
    rows = [_measure(count) for count in SESSIONS]
    print("sessions    resident      a session      processor      wakings")
    for row in rows:
        each = f"{row['kib_a_session']:8.1f} KiB" if row["sessions"] else " " * 12
        print(
            f"{row['sessions']:8}  {row['mib']:6.1f} MiB   {each}   {row['cpu_ms_a_minute']:5.0f} ms/min"
            f"   {row['wakings_a_minute']:5.0f}/min"
        )
    return {"rows": rows}


def _measure(count: int) -> dict[str, Any]:
    with daemon() as (pid, _, path):
        process = psutil.Process(pid)
        attached(path).close()
        time.sleep(SETTLE)
        empty = process.memory_info().rss
        hosts = [attached(path) for _ in range(count)]
        time.sleep(SETTLE)
        cpu, wakings = _cpu(process), _wakings(pid)
        time.sleep(SPAN)
        cpu, wakings = _cpu(process) - cpu, _wakings(pid) - wakings
        memory = process.memory_info().rss
        for host in hosts:
            host.close()
    return {
        "sessions": count,
        "mib": round(memory / 2**20, 1),
        "kib_a_session": round((memory - empty) / 1024 / count, 1) if count else 0.0,
        "cpu_ms_a_minute": round(cpu * 60 / SPAN * 1000, 1),
        "wakings_a_minute": round(wakings * 60 / SPAN, 1),
    }


def _cpu(process: psutil.Process) -> float:
    return float(sum(process.cpu_times()[:2]))


def _wakings(pid: int) -> int:
    """How often its threads have begun to wait, so far. Linux only; 0 elsewhere."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        total += int(status.read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return total


if __name__ == "__main__":
    main()
