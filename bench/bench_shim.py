"""What a host pays for the shim, beside a Python SDK server of the same kind and an empty Python process.

All three are measured in turn, so that what else the machine does falls on all alike; medians of many runs.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

import pacerelle_shim

RUNS = 21
CALLS = 300
SDK_SERVER = """
from mcp.server import MCPServer
server = MCPServer("bench")
@server.tool()
def get_status() -> str:
    return "ok"
server.run()
"""
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
SETTLE = 0.3  # seconds before resident memory is read


def main() -> dict[str, Any]:
    """Milliseconds from spawn to the answer to `initialize` (of an empty process: to its end), MiB resident when idle,
    and milliseconds a ping takes."""
    fast = [sys.executable, "-I", "-S", str(Path(pacerelle_shim.__file__).with_name("__main__.py"))]
    shim, sdk, python = _Series(), _Series(), _Series()
    with _daemon() as (root, sock):
        shim_command = [*fast, "--store-root", str(root)]
        _measure(shim_command, _Series())  # the first run writes the bytecode
        for _ in range(RUNS):
            _measure(shim_command, shim)
            _measure([sys.executable, "-c", SDK_SERVER], sdk)
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            python.ms.append((time.perf_counter() - began) * 1000)
        spliced, direct = _ping_through(shim_command), _ping(sock)
    result = {
        "runs": RUNS,
        "shim": shim.medians(),
        "sdk_server": sdk.medians(),
        "python_pass_ms": round(statistics.median(python.ms), 1),
        "time_ratio": round(statistics.median(shim.ms) / statistics.median(sdk.ms), 3),
        "memory_ratio": round(statistics.median(shim.mib) / statistics.median(sdk.mib), 3),
        "ping_ms": {"through_shim": round(spliced, 3), "direct": round(direct, 3)},
    }
    print(f"median of {RUNS} runs       spawn → initialize     idle memory")
    print(f"shim                     {result['shim']['ms']:8.1f} ms        {result['shim']['mib']:8.1f} MiB")
    print(
        f"Python SDK stdio server  {result['sdk_server']['ms']:8.1f} ms        {result['sdk_server']['mib']:8.1f} MiB"
    )
    print(f"python -c pass           {result['python_pass_ms']:8.1f} ms")
    print(f"shim / SDK server        {result['time_ratio']:8.3f}           {result['memory_ratio']:8.3f}")
    print(f"a ping: {spliced:.3f} ms through the shim, {direct:.3f} ms on mcp.sock itself (median of {CALLS})")
    return result


class _Series:
    def __init__(self) -> None:
        self.ms: list[float] = []
        self.mib: list[float] = []

    def medians(self) -> dict[str, float]:
        return {"ms": round(statistics.median(self.ms), 1), "mib": round(statistics.median(self.mib), 1)}


def _measure(command: list[str], series: _Series) -> None:
    began = time.perf_counter()
    with _started(command) as process:
        _answer(process)
        series.ms.append((time.perf_counter() - began) * 1000)
        time.sleep(SETTLE)
        series.mib.append(psutil.Process(process.pid).memory_info().rss / 2**20)


@contextmanager
def _started(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A server that has been sent `initialize`; ended by EOF."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        yield process
        process.stdin.close()


def _answer(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout
    line = process.stdout.readline()
    if "result" not in json.loads(line or b"{}"):
        raise RuntimeError(f"no answer to initialize: {line!r}")


def _ping_through(command: list[str]) -> float:
    with _started(command) as process:
        _answer(process)
        assert process.stdin
        assert process.stdout
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            process.stdin.write(PING)
            process.stdin.flush()
            process.stdout.readline()
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def _ping(path: Path) -> float:
    hello = {"pacerelle": "hello", "v": 1, "session": os.urandom(16).hex(), "shim": "bench", "pid": os.getpid()}
    with socket.socket(socket.AF_UNIX) as sock:
        sock.connect(str(path))
        lines = sock.makefile("rb")
        for message in (hello, INITIALIZE):
            sock.sendall(json.dumps(message).encode() + b"\n")
            lines.readline()
        sock.sendall(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            sock.sendall(PING)
            lines.readline()
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


@contextmanager
def _daemon() -> Iterator[tuple[Path, Path]]:
    """A daemon without agents in a home of its own: its store root and mcp.sock."""
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        root, env = Path(home) / "root", os.environ | {"HOME": home, "PACERELLED_KEYRING": "false"}
        command = [sys.executable, "-I", "-m", "pacerelled", "--store-root", str(root)]
        with subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL) as process:
            sock = root / "pacerelled" / "mcp.sock"
            while not sock.exists():
                if process.poll() is not None:
                    raise RuntimeError("the daemon did not start")
                time.sleep(0.02)
            try:
                yield root, sock
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
