"""Hosts of both protocol eras on a machine whose daemon goes and comes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

import pacerelle_shim
from pacerelle_phone.model import PairedAgent
from tests.e2e.stack import Host, RelayProcess, Stack, until

Era = Literal["handshake", "modern"]
ERAS: tuple[Era, Era] = ("handshake", "modern")
MODERN = "2026-07-28"
_META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientInfo": {"name": "modern", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
INITIALIZE = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "skewed", "version": "1"}}


class NoRelay(RelayProcess):
    """For machines on which nobody writes to an agent."""

    async def kill(self) -> None:
        pass


def without_relay(folder: Path) -> Stack:
    return Stack(folder, NoRelay(folder), agents_url="http://127.0.0.1:9")


class EraHost(Host):
    """A host of one era. `shim` sets constants of the shim."""

    def __init__(self, stack: Stack, agent: PairedAgent | None, name: str, era: Era, **shim: float) -> None:
        super().__init__(stack, agent, name)
        self.era = era
        self.request_ids: dict[str, int] = {}
        if shim:
            lines = ["import sys", f"sys.path.append({str(Path(pacerelle_shim.__file__).parents[1])!r})"]
            lines += ["import pacerelle_shim as shim", *(f"shim.{name} = {value}" for name, value in shim.items())]
            self.command = [sys.executable, "-I", "-S", "-c", "\n".join([*lines, "sys.exit(shim.main())"])]
        stack.hosts.append(self)

    async def start(self, *, initialize: bool = True, extra_env: dict[str, str] | None = None) -> Host:
        return await super().start(initialize=initialize and self.era == "handshake", extra_env=extra_env)

    async def call(self, method: str, params: dict[str, Any], deadline: float = 120.0) -> dict[str, Any]:
        return await super().call(method, params | ({"_meta": _META} if self.era == "modern" else {}), deadline)

    async def result(self, method: str, **params: Any) -> dict[str, Any]:
        """What the host gets, which is no error."""
        answer = await self.call(method, params)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    def updates(self, uri: str) -> int:
        """How often the host was told that a resource has changed."""
        told = (n["params"]["uri"] for n in self.notifications if n.get("method") == "notifications/resources/updated")
        return sum(each == uri for each in told)

    def acknowledged(self) -> int:
        return sum(n.get("method") == "notifications/subscriptions/acknowledged" for n in self.notifications)


async def killed(stack: Stack) -> int:
    """Waits for the daemon of this moment and kills it; returns its pid."""
    pid: int = await until(stack.daemon_pid, "a daemon")
    stack.kill_daemon()
    return pid


async def answer_of(host: Host, method: str) -> dict[str, Any]:
    return await host.call(method, INITIALIZE if method == "initialize" else {})
