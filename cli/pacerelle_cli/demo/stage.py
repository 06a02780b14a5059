"""A temporary home, the processes in it, and their end.

What is started here gets a home of its own, the few variables a program needs, and none of the user's: no proxy, no
keyring, no settings. Its standard error goes to a file, whose last lines are shown when the demo fails.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import psutil

from pacerelle_protocol.local import LocalPaths, local_paths

from .errors import DemoFailed

STEP_LIMIT = 30.0  # seconds; each takes a second or two
_LINE_LIMIT = 4 << 20  # bytes
_END_LIMIT = 5.0  # seconds a process gets, for each way of ending it
_TAIL_LINES, _TAIL_BYTES = 8, 16 << 10
_PASSED_ON = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR")


@asynccontextmanager
async def step(what: str) -> AsyncIterator[None]:
    """Names what is being done, in case that it gets stuck. Raises DemoFailed."""
    try:
        async with asyncio.timeout(STEP_LIMIT):
            yield
    except TimeoutError as error:
        raise DemoFailed(f"Stuck for {STEP_LIMIT:g} seconds: {what}.") from error


class Stage:
    """Made by `stage`. `store_root` is the daemon's, which the first shim starts."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._logs = home / "logs"
        self._logs.mkdir()
        self._processes: list[asyncio.subprocess.Process] = []
        # The settings file, since an environment reaches the daemon only if the shim that starts it was given one.
        self.paths.state.mkdir(mode=0o700, parents=True)
        self.paths.config.write_text("keyring = false\n")

    @property
    def store_root(self) -> Path:
        return self.home / "store"

    @property
    def paths(self) -> LocalPaths:
        return local_paths(os.fspath(self.store_root), env={}, uid=os.getuid())

    async def spawn(
        self, name: str, command: Sequence[str], *, env: dict[str, str] | None = None, reads: bool = False
    ) -> asyncio.subprocess.Process:
        """Starts a process out of reach of the terminal's Ctrl-C, which is ours. `reads`: it ends with its input."""
        base = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | {"HOME": os.fspath(self.home)}
        with (self._logs / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE if reads else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                cwd=self.home,
                env=base | (env or {}),
                limit=_LINE_LIMIT,
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def tail(self, name: str) -> list[str]:
        """The last lines that a process of this name wrote to standard error."""
        return _tail(self._logs / f"{name}.log")

    def last_words(self) -> list[str]:
        """The ends of all logs that have something in them."""
        logs = [*sorted(self._logs.glob("*.log")), self.paths.log]
        return [line for log in logs if (lines := _tail(log)) for line in (f"--- {log.name}", *lines)]

    def daemons(self) -> list[psutil.Process]:
        """The processes that are this store's daemon, or are about to be."""
        return [
            process
            for process in psutil.process_iter(["cmdline"])
            if "pacerelled" in (words := process.info["cmdline"] or ()) and os.fspath(self.store_root) in words
        ]

    async def end(self, process: asyncio.subprocess.Process) -> None:
        """Asks it to end, then makes it. Does nothing if it has ended."""
        if process.stdin is not None:
            process.stdin.close()
        else:
            _signal(process.terminate)
        for harder in (process.terminate, process.kill):
            try:
                async with asyncio.timeout(_END_LIMIT):
                    await process.wait()
                    return
            except TimeoutError:
                _signal(harder)
        await process.wait()

    async def close(self) -> bool:
        """Ends everything that was started here and removes the home. Whether nothing is left."""
        await asyncio.gather(*map(self.end, self._processes))
        await asyncio.to_thread(self._end_daemons)  # after the shims, which would start another
        if self.paths.mcp_sock.parent != self.paths.state:  # the short place, for a home whose path is long
            with suppress(OSError):
                self.paths.mcp_sock.parent.rmdir()
        await asyncio.to_thread(shutil.rmtree, self.home, ignore_errors=True)
        return not self.home.exists() and not self.daemons()

    def _end_daemons(self) -> None:
        for how in (psutil.Process.terminate, psutil.Process.kill):
            found = self.daemons()
            for process in found:
                with suppress(psutil.NoSuchProcess):
                    how(process)
            psutil.wait_procs(found, timeout=_END_LIMIT)


@asynccontextmanager
async def stage() -> AsyncIterator[Stage]:
    """Raises DemoFailed if something could not be ended or removed."""
    made = Stage(Path(tempfile.mkdtemp(prefix="pacerelle-demo-")))
    try:
        yield made
    finally:
        clean = await made.close()
    if not clean:
        raise DemoFailed(f"Not everything could be stopped and removed: {made.home}")


def _signal(send: Callable[[], None]) -> None:
    with suppress(ProcessLookupError):
        send()


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
    except OSError:
        return []
