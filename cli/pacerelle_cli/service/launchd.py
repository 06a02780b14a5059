"""The daemon as a launchd agent of the user. Written from launchd.plist(5) and launchctl(1); not tried on macOS yet."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pacerelle_cli.errors import CliError

from .manager import NoManager, Status, call, program, tail_command
from .render import Daemon, launchd_file

LABEL: Final = "pacerelled"  # pacerelled.activation knows it too
_NOT_LOADED: Final = (0, 3, 113)  # exit codes of launchctl: fine; there is no such agent
_LOADED: Final = (0, 5, 37)  # fine; it is loaded already


class Launchd:
    """Raises NoManager if there is no launchctl."""

    name = "launchd"

    def __init__(self, env: Mapping[str, str]) -> None:
        launchctl = program("launchctl", env)
        if not launchctl:
            raise NoManager("launchd does not run here.", hint="Have `pacerelled --foreground` started instead.")
        self._launchctl = launchctl
        self._env = env
        self._domain = f"gui/{os.getuid()}"
        self._agent = f"{self._domain}/{LABEL}"
        self._file = Path.home() / "Library" / "LaunchAgents" / f"{LABEL}.plist"
        self.start_command = [launchctl, "bootstrap", self._domain, os.fspath(self._file)]

    def files(self, daemon: Daemon) -> dict[Path, str]:
        return {self._file: launchd_file(daemon)}

    def prepare(self) -> None:
        call([self._launchctl, "enable", self._agent], self._env)

    def deactivate(self) -> None:
        self.stop()

    def forget(self) -> None:
        """An agent without a file is none."""

    def start(self) -> None:
        call(self.start_command, self._env, accept=_LOADED)

    def stop(self) -> None:
        """An agent that is only told to end would be started again: it is unloaded, and its sockets with it."""
        call([self._launchctl, "bootout", self._agent], self._env, accept=_NOT_LOADED)

    def restart(self) -> None:
        self.start()
        call([self._launchctl, "kickstart", "-k", self._agent], self._env)

    def status(self) -> Status:
        text = call([self._launchctl, "print", self._agent], self._env, accept=_NOT_LOADED)
        pid = re.search(r"^\s*pid = (\d+)$", text, re.MULTILINE)
        return Status(
            state="running" if pid else "waiting" if "state = " in text else "stopped",
            pid=int(pid[1]) if pid else None,
            enabled=self._file.exists(),
        )

    def set_linger(self, on: bool) -> None:
        raise CliError("macOS runs agents only while you are logged in: there is nothing like lingering.")

    def log_command(self, log: Path, lines: int, follow: bool) -> list[str]:
        return tail_command(log, lines, follow)
