"""What a host pays for the shim, beside servers of the same kind on the Python and the Node SDK, and an empty process.

All are measured in turn, so that what else the machine does falls on all alike; medians of many runs.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
from tests.outside.node import Unavailable, node, packages

import pacerelle_shim

from .machine import INITIALIZE, INITIALIZED, attached, daemon

RUNS = 21
CALLS = 300
NODE_SDK = "@modelcontextprotocol/sdk@1.32"
SDK_SERVER = """
from mcp.server import MCPServer
server = MCPServer("bench")
@server.tool()
def get_status() -> str:
    return "ok"
server.run()
"""
NODE_SERVER = """
const { McpServer } = require("@modelcontextprotocol/sdk/server/mcp.js")
const { StdioServerTransport } = require("@modelcontextprotocol/sdk/server/stdio.js")
const server = new McpServer({ name: "bench", version: "1" })
server.registerTool("get_status", {}, () => ({ content: [{ type: "text", text: "ok" }] }))
server.connect(new StdioServerTransport())
"""
PING = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n'
SETTLE = 0.3  # seconds before resident memory is read


def main() -> dict[str, Any]:
    """Milliseconds from spawn to the answer to `initialize` (of an empty process: to its end), MiB resident when idle,
    and milliseconds a ping takes."""
    fast = [sys.executable, "-I", "-S", str(Path(pacerelle_shim.__file__).with_name("__main__.py"))]
    shim, sdk, on_node, python = _Series(), _Series(), _Series(), _Series()
    node_command, reason = _node_server()
    with daemon() as (_, root, sock):
        shim_command = [*fast, "--store-root", str(root)]
        _measure(shim_command, _Series())  # the first run writes the bytecode
        for _ in range(RUNS):
            _measure(shim_command, shim)
            _measure([sys.executable, "-c", SDK_SERVER], sdk)
            if node_command:
                _measure(node_command, on_node)
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            python.ms.append((time.perf_counter() - began) * 1000)
        spliced, direct = _ping_through(shim_command), _ping(sock)
    result = {
        "runs": RUNS,
        "shim": shim.medians(),
        "sdk_server": sdk.medians(),
        "node_server": on_node.medians() if node_command else reason,
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
    if node_command:
        figures = on_node.medians()
        print(f"Node SDK stdio server    {figures['ms']:8.1f} ms        {figures['mib']:8.1f} MiB")
    else:
        print(f"Node SDK stdio server    not measured: {reason}")
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


def _node_server() -> tuple[list[str], str]:
    """The command of a server on the Node SDK, which npm installs outside of this folder; or why there is none."""
    try:
        program, folder = node(), packages(NODE_SDK)
    except Unavailable as missing:
        return [], str(missing)
    script = folder / "server.cjs"
    script.write_text(NODE_SERVER)
    return [program, str(script)], ""


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
        process.stdin.write(INITIALIZED)
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            process.stdin.write(PING)
            process.stdin.flush()
            process.stdout.readline()
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


def _ping(path: Path) -> float:
    with attached(path) as sock, sock.makefile("rb") as lines:
        times = []
        for _ in range(CALLS):
            began = time.perf_counter()
            sock.sendall(PING)
            lines.readline()
            times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


if __name__ == "__main__":
    main()
