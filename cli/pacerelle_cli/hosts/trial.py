"""Starts a host's entry as the host would, and asks it for its tools."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from .errors import HostFailed

DEADLINE: Final = 30.0  # seconds; hosts give a server about as much to start
_PROTOCOL: Final = "2025-06-18"
_GOODBYE: Final = 3.0  # seconds after the end of its input


@dataclass(frozen=True)
class Trial:
    """What a server said. Times are seconds since it was started."""

    server: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]]
    initialized: float
    listed: float


def run(command: Sequence[str], env: Mapping[str, str]) -> Trial:
    """Raises HostFailed."""
    program = shutil.which(command[0], path=env.get("PATH", os.defpath))
    if program is None:
        raise HostFailed(f"The entry's command is not there: {command[0]}.", hint=_AGAIN)
    with tempfile.TemporaryFile() as errors:
        started = time.monotonic()
        try:
            process = subprocess.Popen(
                [program, *command[1:]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(env),
                cwd=env.get("HOME", "/"),
            )
        except OSError as error:
            raise HostFailed(f"The entry's command cannot be started: {error}.", hint=_AGAIN) from error
        with process:
            try:
                return _talk(_Server(process, errors, started))
            finally:
                _end(process)


_AGAIN: Final = "Write the entry anew: pacerelle host install HOST"


@dataclass
class _Server:
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    started: float
    unread: bytes = b""

    def send(self, message: Mapping[str, Any]) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it has ended; what it said is read below

    def ask(self, number: int, method: str, params: Mapping[str, Any]) -> Any:
        self.send({"id": number, "method": method, "params": params})
        while True:
            message = self._message(method)
            if message.get("id") == number and "method" not in message:
                break
        if "result" in message:
            return message["result"]
        error = message.get("error")
        reason = error.get("message") if isinstance(error, dict) else None
        raise HostFailed(f"The server refused `{method}`: {reason or 'it gave no reason'}")

    def _message(self, method: str) -> dict[str, Any]:
        line = self._line(method)
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            shown = line[:200].decode(errors="replace").strip()
            raise HostFailed(f"The entry's command is no MCP server: it wrote “{shown}”.", hint=_AGAIN)
        return message

    def _line(self, method: str) -> bytes:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while b"\n" not in self.unread:
                left = self.started + DEADLINE - time.monotonic()
                if left <= 0 or not selector.select(left):
                    why = f"The server did not answer `{method}` within {DEADLINE:g} seconds."
                    raise HostFailed(why + self._words())
                data = os.read(self.process.stdout.fileno(), 1 << 16)
                if not data:
                    raise HostFailed(f"The server {self._ending()} before it answered.{self._words()}")
                self.unread += data
        line, _, self.unread = self.unread.partition(b"\n")
        return line

    def _ending(self) -> str:
        try:
            return f"ended with exit code {self.process.wait(_GOODBYE)}"
        except subprocess.TimeoutExpired:
            return "closed its output"

    def _words(self) -> str:
        """The end of what it wrote to standard error."""
        self.errors.seek(0)
        lines = self.errors.read()[-4096:].decode(errors="replace").strip().splitlines()
        return f" Its last words: {' '.join(lines[-4:])[-600:]}" if lines else ""


def _talk(server: _Server) -> Trial:
    client = {"name": "pacerelle host test", "version": "1"}
    hello = server.ask(1, "initialize", {"protocolVersion": _PROTOCOL, "capabilities": {}, "clientInfo": client})
    initialized = time.monotonic() - server.started
    server.send({"method": "notifications/initialized"})
    tools: list[Mapping[str, Any]] = []
    number, cursor = 2, None
    while True:
        page = server.ask(number, "tools/list", {"cursor": cursor} if cursor else {})
        tools += page.get("tools", [])
        number, cursor = number + 1, page.get("nextCursor")
        if not cursor:
            break
    return Trial(hello.get("serverInfo", {}), tools, initialized, time.monotonic() - server.started)


def _end(process: subprocess.Popen[bytes]) -> None:
    """As hosts do it: end of input, then SIGTERM, then SIGKILL."""
    assert process.stdin is not None
    try:
        process.stdin.close()
    except OSError:
        pass
    for insist in (process.terminate, process.kill):
        try:
            process.wait(_GOODBYE)
        except subprocess.TimeoutExpired:
            insist()
