"""What the command line costs: processor time and wall time of a command, beside an interpreter that does nothing."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from .machine import daemon

ROUNDS = 40
COMMANDS = {
    "python -c pass": ("-c", "pass"),
    "status": ("-m", "pacerelle_cli", "status"),
    "status --json": ("-m", "pacerelle_cli", "status", "--json"),
    "inbox": ("-m", "pacerelle_cli", "inbox"),
    "completion": ("-m", "pacerelle_cli"),
}
COMPLETING = {"_PACERELLE_COMPLETE": "bash_complete", "COMP_WORDS": "pacerelle st", "COMP_CWORD": "1"}


def main() -> dict[str, Any]:
    """In turns, so that a busy moment of the machine meets all of them. The median of each."""
    with daemon() as (_, root, _):
        env = {**os.environ, "PACERELLE_STORE_ROOT": str(root)}
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in COMMANDS}
        for _ in range(ROUNDS):
            for name, words in COMMANDS.items():
                taken[name].append(_run(words, env | (COMPLETING if name == "completion" else {})))
    bare = _median([cpu for cpu, _ in taken["python -c pass"]])
    rows = []
    print("command            processor        wall     of a bare interpreter's processor time")
    for name, each in taken.items():
        cpu, wall = _median([cpu for cpu, _ in each]), _median([wall for _, wall in each])
        rows.append(
            {"command": name, "cpu_ms": round(cpu, 1), "wall_ms": round(wall, 1), "times": round(cpu / bare, 2)}
        )
        print(f"{name:<16} {cpu:8.1f} ms {wall:8.1f} ms     {cpu / bare:4.2f} times")
    return {"rows": rows}


def _run(words: tuple[str, ...], env: dict[str, str]) -> tuple[float, float]:
    """Milliseconds of processor time, and until its end."""
    quiet = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)]
    started = time.perf_counter()
    pid = os.posix_spawn(sys.executable, [sys.executable, *words], env, file_actions=quiet)
    _, _, used = os.wait4(pid, 0)
    return (used.ru_utime + used.ru_stime) * 1000, (time.perf_counter() - started) * 1000


def _median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


if __name__ == "__main__":
    main()
