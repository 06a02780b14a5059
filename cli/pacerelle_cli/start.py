"""Starting the daemon, as a host's shim does: whoever holds start.lock starts it, everybody else waits for it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from .client import Daemon
from .errors import CliError, NotAnswering, NotRunning
from .service.asking import start_service

_START_WAIT = 30.0  # seconds
_POLL = 0.05
_ALREADY_RUNNING = 75  # pacerelled's exit code when somebody else was faster

_PASSED_ON: Final = frozenset(
    {
        *("HOME", "PATH", "LANG", "TMPDIR", "USER", "LOGNAME", "TZ"),
        *("DBUS_SESSION_BUS_ADDRESS", "XDG_RUNTIME_DIR", "SSL_CERT_FILE", "SSL_CERT_DIR"),
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    }
)


def start_daemon(daemon: Daemon, *, socket: str | None) -> int | None:
    """Returns once the daemon answers: its pid, or None if somebody else started it meanwhile.

    Raises CliError with the daemon's last words if it ends, NotAnswering if it takes too long.
    """
    paths, until = daemon.paths, time.monotonic() + _START_WAIT
    try:
        paths.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(paths.start_lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        log = os.open(paths.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise CliError(
            f"{error.filename} cannot be made: {error.strerror}.", hint="Choose another place with --store-root."
        ) from error
    try:
        if not _locked(lock, daemon, until):
            return None
        if start_service(paths.state):
            while not _answers(daemon):
                _pause(until, daemon)
            return None
        seen = os.fstat(log).st_size
        command = [sys.executable, "-I", "-m", "pacerelled", "--store-root", os.fspath(paths.state.parent)]
        if socket:
            command += ["--socket", os.fspath(paths.mcp_sock)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env=_environment(os.environ),
            start_new_session=True,
        )
        while not _answers(daemon):
            code = process.poll()
            if code not in (None, _ALREADY_RUNNING):
                raise CliError(
                    f"pacerelled could not start: {_last_words(paths.log, seen)}", hint=f"Its log is {paths.log}"
                )
            _pause(until, daemon)
        if process.poll() is not None:
            return None
        process.returncode = 0  # nobody waits for it: it outlives us, and Popen need not warn of that
        return process.pid
    finally:
        os.close(lock)
        os.close(log)


def _locked(lock: int, daemon: Daemon, until: float) -> bool:
    """Whether it is up to us to start the daemon; False when it has come up."""
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            return not daemon.is_up()
        if daemon.is_up():
            return False
        _pause(until, daemon)


def _answers(daemon: Daemon) -> bool:
    try:
        daemon.call("GET", "/v1/paths", timeout=_START_WAIT)
    except NotRunning:
        return False
    return True


def _pause(until: float, daemon: Daemon) -> None:
    if time.monotonic() > until:
        raise NotAnswering(
            f"pacerelled did not start within {_START_WAIT:g} seconds.", hint=f"Its log is {daemon.paths.log}"
        )
    time.sleep(_POLL)


def _environment(env: Mapping[str, str]) -> dict[str, str]:
    """What a daemon needs that outlives this terminal; the terminal's secrets are not among it."""
    return {k: v for k, v in env.items() if k.upper() in _PASSED_ON or k.startswith(("LC_", "PACERELLED_"))}


def _last_words(log: Path, since: int) -> str:
    with log.open("rb") as file:
        file.seek(since)
        lines = file.read(64 * 1024).decode(errors="replace").splitlines()
    return " ".join(line.strip() for line in lines[-4:])[-600:] or "it ended without a word."
