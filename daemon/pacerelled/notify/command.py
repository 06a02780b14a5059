"""Running one command, contained: no shell, a clean environment, an end in any case, and no more output than is kept.

Everything that the command started ends with it. Processes are found by a mark in their environment and by their
session, so one that forks, or makes a process group of its own, is found as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from pacerelled.agent.work import in_thread

from . import outside
from .outside import Unit

MARK = "PACERELLE_WAKE_ID"
MAX_OUTPUT = 256 * 1024  # bytes that are kept; what follows is read and dropped
PATIENCE = 5.0  # seconds between asking a command to end and ending it
_CHUNK = 64 * 1024
_SWEEP_PAUSE = 0.02  # seconds
_SWEEPS = 25  # looks for what a command left: a process that forks all the time may need several
_PASSED_ON = (
    "HOME", "USER", "LOGNAME", "LANG", "TZ", "TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS", "DISPLAY",
    "WAYLAND_DISPLAY", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY",
)  # fmt: skip
_FALLBACK_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True, slots=True)
class Ended:
    """`how`: exited, timeout, stopped, could_not_start."""

    how: str
    exit_code: int | None = None
    signal: int | None = None
    duration_s: float = 0.0
    output_bytes: int = 0
    error: str | None = None


def environment(env: Mapping[str, str], path: str | None, ids: Mapping[str, str]) -> dict[str, str]:
    """What a command sees: of the daemon's environment only what programs need to find their things, and ids."""
    kept = {name: env[name] for name in _PASSED_ON if env.get(name)}
    kept |= {name: value for name, value in env.items() if name.startswith("LC_")}
    return {**kept, "PATH": path or env.get("PATH") or _FALLBACK_PATH, **ids}


async def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    output: Path,
    limit: float,
    stop: asyncio.Event,
    unit: Unit | None = None,
) -> Ended:
    """Runs `argv` for at most `limit` seconds, or until `stop`; in `unit`, if there is one. `env` has `MARK`.

    Its output, standard error too, goes to a new file, 0600.
    """
    started = time.monotonic()
    fd = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    # A pipe of our own: with one of asyncio's, what the command has forked would keep its end from being noticed.
    ours, its = os.pipe()
    given = outside.start(argv, env, cwd) if unit else os.open(os.devnull, os.O_RDONLY)
    with os.fdopen(fd, "wb") as file, os.fdopen(ours, "rb", 0) as pipe:
        try:
            process = await asyncio.create_subprocess_exec(
                *(unit.words(limit + PATIENCE) if unit else argv),
                env=dict(unit.env if unit else env),
                cwd="/" if unit else cwd,
                stdin=given,
                stdout=its,
                stderr=its,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or "it is no command"
            return Ended("could_not_start", error=reason, duration_s=time.monotonic() - started)
        finally:
            os.close(its)
            os.close(given)
        reading = asyncio.create_task(_keep(pipe, file))
        ended = asyncio.create_task(process.wait())
        stopping = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([ended, stopping], timeout=limit, return_when=asyncio.FIRST_COMPLETED)
            how = "exited" if ended.done() else "stopped" if stop.is_set() else "timeout"
            if not ended.done():
                await _end(process, ended, stop, unit)
        finally:
            stopping.cancel()
            if process.returncode is None:
                _signal_group(process.pid, signal.SIGKILL)
            await in_thread(sweep, env[MARK], process.pid)
            await asyncio.wait([ended, reading], timeout=PATIENCE)  # nobody holds the pipe any more
            for task in (ended, reading):
                task.cancel()
            await asyncio.gather(ended, reading, return_exceptions=True)
        size = reading.result() if reading.done() and not reading.cancelled() else file.tell()
    code = process.returncode
    return Ended(
        how,
        exit_code=code if code is not None and code >= 0 else None,
        signal=-code if code is not None and code < 0 else None,
        duration_s=round(time.monotonic() - started, 3),
        output_bytes=size,
    )


def sweep(mark: str, session: int | None = None) -> None:
    """Ends, at once, what carries the mark or is in the session. Blocks for some milliseconds."""
    for _ in range(_SWEEPS):
        found = [process for process in psutil.process_iter() if _belongs(process, mark, session)]
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if not found:
            return
        time.sleep(_SWEEP_PAUSE)  # not a wait for them: that would take their exit status from whoever waits


def _belongs(process: psutil.Process, mark: str, session: int | None) -> bool:
    try:
        if process.uids().real != os.getuid() or process.pid == os.getpid():
            return False
        if process.status() == psutil.STATUS_ZOMBIE:
            return False
        if session is not None and os.getsid(process.pid) == session:
            return True
        return bool(process.environ().get(MARK) == mark)
    except (psutil.Error, OSError):
        return False


async def _end(
    process: asyncio.subprocess.Process, ended: asyncio.Task[int], stop: asyncio.Event, unit: Unit | None
) -> None:
    """Asks it to end; when the daemon stops there is less time for that."""
    if unit is not None:
        await unit.stop()
    else:
        _signal_group(process.pid, signal.SIGTERM)
    stopping = asyncio.create_task(stop.wait()) if not stop.is_set() else None
    await asyncio.wait(
        [ended, *([stopping] if stopping else [])],
        timeout=PATIENCE if stopping else PATIENCE / 10,
        return_when=asyncio.FIRST_COMPLETED,
    )
    if stopping is not None:
        stopping.cancel()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


async def _keep(pipe: IO[bytes], file: IO[bytes]) -> int:
    """Writes the beginning of what comes, and reads the rest; returns how many bytes came."""
    stream = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(stream), pipe)
    size = 0
    try:
        while chunk := await stream.read(_CHUNK):
            if size < MAX_OUTPUT:
                file.write(chunk[: MAX_OUTPUT - size])
                file.flush()
            size += len(chunk)
    finally:
        transport.close()
    return size
