"""How long a host's call takes that meets a daemon's death: from SIGKILL to the answer, through the shim.

Beside it a call's usual time, and what a new daemon needs by itself: from its start to its first answer.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

import pacerelle_shim

from .machine import INITIALIZE, INITIALIZED, PATIENCE, attached, home

RUNS = 15
SETTLE = 1.0  # seconds between a return and the next kill


def main() -> dict[str, Any]:
    """Milliseconds: the least, the median, and the worst."""
    usual, killed, alone, cpu = [], [], [], []
    with home() as (root, env):
        shim = [sys.executable, "-I", "-S", str(Path(pacerelle_shim.__file__).with_name("__main__.py"))]
        command = [*shim, "--store-root", str(root)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env) as process:
            host = _Host(process)
            host.say(json.dumps(INITIALIZE).encode() + b"\n")
            host.hear()
            host.say(INITIALIZED)
            for _ in range(RUNS):
                usual.append(host.call())
                pid = int((root / "pacerelled" / "lock").read_text())
                os.kill(pid, signal.SIGKILL)
                killed.append(host.call())
                time.sleep(SETTLE)
            process.stdin.close()  # type: ignore[union-attr]
        _end(root)
        for _ in range(RUNS):
            wall, spent = _start(root, env)
            alone.append(wall)
            cpu.append(spent)
    result: dict[str, Any] = {
        "runs": RUNS,
        "usual_ms": _figures(usual),
        "killed_ms": _figures(killed),
        "start_ms": _figures(alone),
        "start_cpu_ms": _figures(cpu),
    }
    print(f"of {RUNS} runs, ms                                      least    median     worst")
    for name, words in (
        ("usual_ms", "a call (tools/list) through the shim"),
        ("killed_ms", "the same, the daemon killed just before"),
        ("start_ms", "a daemon's start until its first answer"),
        ("start_cpu_ms", "processor time of that start"),
    ):
        figures = result[name]
        print(f"{words:48} {figures['least']:9.1f} {figures['median']:9.1f} {figures['worst']:9.1f}")
    return result


class _Host:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        self._in, self._out = process.stdin, process.stdout

    def say(self, line: bytes) -> None:
        self._in.write(line)
        self._in.flush()

    def hear(self) -> None:
        line = self._out.readline()
        if "result" not in json.loads(line or b"{}"):
            raise RuntimeError(f"a call failed: {line!r}")

    def call(self) -> float:
        began = time.perf_counter()
        self.say(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}\n')
        self.hear()
        return (time.perf_counter() - began) * 1000


def _start(root: Path, env: dict[str, str]) -> tuple[float, float]:
    """The wall and processor time of a daemon's start, in milliseconds."""
    began = time.perf_counter()
    command = [sys.executable, "-I", "-m", "pacerelled", "--store-root", str(root)]
    with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                host = attached(root / "pacerelled" / "mcp.sock")
                break
            except (FileNotFoundError, ConnectionRefusedError):
                if time.monotonic() > until:
                    raise
                time.sleep(0.002)
        wall = time.perf_counter() - began
        spent = float(sum(psutil.Process(process.pid).cpu_times()[:2]))
        host.close()
        process.terminate()
    return wall * 1000, spent * 1000


def _end(root: Path) -> None:
    """Of the daemon that a shim started."""
    pid = int((root / "pacerelled" / "lock").read_text())
    with suppress(ProcessLookupError, psutil.NoSuchProcess):
        os.kill(pid, signal.SIGTERM)
        psutil.Process(pid).wait(PATIENCE)


def _figures(values: list[float]) -> dict[str, float]:
    middle = statistics.median(values)
    return {"least": round(min(values), 1), "median": round(middle, 1), "worst": round(max(values), 1)}


if __name__ == "__main__":
    main()
