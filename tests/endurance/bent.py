"""A daemon of a test's own in a `Stack`: started here instead of by a shim, in a world that can be bent (launch.py)."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from tests.daemon.process import Daemon
from tests.e2e.stack import Stack

LAUNCH = Path(__file__).with_name("launch.py")
YEARS = 365 * 86400.0  # seconds


class World:
    """What launch.py reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._content: dict[str, Any] = {}
        self.bend()

    def bend(self, **changes: Any) -> None:
        self._content |= changes
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self._content))
        new.replace(self.path)


@contextlib.asynccontextmanager
async def bent_daemon(
    stack: Stack, world: World, *, env: dict[str, str] | None = None, before: tuple[str, ...] = ()
) -> AsyncIterator[Daemon]:
    """The daemon, serving. `before` is a command that runs the rest of its arguments.

    Meanwhile no host starts another.
    """
    with starting_lock(stack):
        running = await Daemon(stack.home, root=stack.root, env=env).start(command=_command(world, before))
        try:
            await running.serving()
            yield running
        finally:
            await running.kill()


async def restart(daemon: Daemon, world: World, before: tuple[str, ...] = ()) -> str:
    """Ends the daemon as asked and starts it again; what the first one said on standard error."""
    daemon.signal()
    assert await daemon.ended() == 0
    said = await daemon.errors()
    await daemon.start(command=_command(world, before))
    await daemon.serving()
    return said


def _command(world: World, before: tuple[str, ...]) -> tuple[str, ...]:
    return (*before, sys.executable, str(LAUNCH), str(world.path))


@contextlib.contextmanager
def starting_lock(stack: Stack) -> Iterator[None]:
    """Whoever has it may start the daemon; shims wait."""
    stack.paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(stack.paths.start_lock, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


async def pacerelle(stack: Stack, *args: str, stdin: bytes = b"") -> tuple[int, dict[str, Any]]:
    """`pacerelle … --json`: exit code and answer."""
    env = {"PATH": os.environ["PATH"], "HOME": str(stack.home), "PACERELLE_STORE_ROOT": str(stack.root)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "pacerelle_cli", *args, "--json",
        env=env, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(stdin), 60)
    return process.returncode or 0, json.loads(out)


def problems(status: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By code."""
    return {problem["code"]: problem for problem in status["health"]["problems"]}
