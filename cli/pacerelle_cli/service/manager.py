"""What systemd and launchd can both do for the daemon, and which of them is here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pacerelle_cli.errors import CliError

if TYPE_CHECKING:
    from .render import Daemon

_PATIENCE = 120.0  # seconds for a service manager's command; starting waits until the daemon serves


class NoManager(CliError):
    """There is no service manager for users here."""

    code = "no_service_manager"


@dataclass(frozen=True)
class Status:
    """`state`: running, starting, restarting (after a failure), waiting (for the first call), stopped, or failed."""

    state: str
    pid: int | None = None
    restarts: int | None = None  # since it was started; None where the manager does not count
    enabled: bool = False  # starts by itself, at login or, with lingering, at boot
    linger: bool | None = None  # None where there is no such thing


class Manager(Protocol):
    """All raise CliError with the manager's own words."""

    name: str
    start_command: list[str]  # with absolute paths, for any environment

    def files(self, daemon: Daemon) -> dict[Path, str]: ...
    def prepare(self) -> None:
        """Reads the files, and has the service start by itself from now on."""

    def deactivate(self) -> None:
        """Stops it, and has it no longer start by itself. The files are still there."""

    def forget(self) -> None:
        """The files are gone."""

    def start(self) -> None:
        """Returns when the daemon serves."""

    def stop(self) -> None:
        """Returns when the daemon has ended; also if there is no such service."""

    def restart(self) -> None: ...
    def status(self) -> Status: ...
    def set_linger(self, on: bool) -> None: ...
    def log_command(self, log: Path, lines: int, follow: bool) -> list[str]: ...


def find_manager(env: Mapping[str, str]) -> Manager:
    """Raises NoManager: there is none, with the reason and what to do instead."""
    if sys.platform == "darwin":
        from .launchd import Launchd

        return Launchd(env)
    from .systemd import Systemd

    return Systemd(env)


def call(command: Sequence[str], env: Mapping[str, str], *, accept: Sequence[int] = (0,)) -> str:
    """What the command prints. Raises CliError with its words if its exit code is not among `accept`."""
    try:
        done = subprocess.run(
            command, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise CliError(
            f"`{' '.join(command)}` is still not done after {_PATIENCE:g} seconds.",
            hint="See `pacerelle service status` and `pacerelle service logs`.",
        ) from None
    if done.returncode not in accept:
        words = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise CliError(
            f"`{' '.join(command)}` failed: {words or f'exit code {done.returncode}'}",
            hint="See `pacerelle service status` and `pacerelle service logs`.",
        )
    return done.stdout.decode(errors="replace")


def program(name: str, env: Mapping[str, str]) -> str | None:
    """Where a program is; None if it is not installed."""
    return shutil.which(name, path=env.get("PATH", os.defpath))


def tail_command(log: Path, lines: int, follow: bool) -> list[str]:
    return ["tail", "-n", str(lines), *(["-F"] if follow else []), os.fspath(log)]
