"""The daemon as a unit of the user's systemd."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pacerelle_cli.errors import CliError

from .manager import NoManager, Status, call, program
from .render import Daemon, systemd_files

SERVICE: Final = "pacerelled.service"
SOCKET: Final = "pacerelled.socket"
INSTEAD: Final = (
    "Have whatever starts programs here run `pacerelled --foreground`: it keeps the daemon running, and is also the"
    " command for a container. Without either, hosts start the daemon by themselves."
)
_BOOTED: Final = Path("/run/systemd/system")  # sd_booted(3)
_NOT_LOADED: Final = 5  # exit code of systemctl
_LINGERING: Final = Path("/var/lib/systemd/linger")  # a file for each user who lingers


class Systemd:
    """Raises NoManager if this user has no systemd to talk to."""

    name = "systemd"

    def __init__(self, env: Mapping[str, str]) -> None:
        # Hosts and cron leave it out; it is always the same.
        runtime = env.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
        self._env = {**env, "XDG_RUNTIME_DIR": runtime}
        systemctl = program("systemctl", env)
        if not systemctl or not _BOOTED.exists():
            raise NoManager("systemd does not run here.", hint=_without_systemd())
        self._systemctl = (systemctl, "--user")
        self.start_command = [program("env", env) or "/usr/bin/env", f"XDG_RUNTIME_DIR={runtime}"]
        self.start_command += [*self._systemctl, "start", SOCKET]
        if not Path(runtime, "systemd", "private").exists():
            raise NoManager(
                f"systemd runs here, but none for you: {runtime}/systemd is missing.",
                hint=f"Log in for real (not by su or sudo), or allow it without: sudo loginctl enable-linger {_user()}",
            )

    def files(self, daemon: Daemon) -> dict[Path, str]:
        config = Path(self._env.get("XDG_CONFIG_HOME") or Path.home() / ".config")
        return {config / "systemd" / "user" / name: text for name, text in systemd_files(daemon).items()}

    def prepare(self) -> None:
        self._call("daemon-reload")
        self._call("enable", "--quiet", SOCKET, SERVICE)

    def deactivate(self) -> None:
        self.stop()
        self._call("disable", "--quiet", SOCKET, SERVICE)

    def forget(self) -> None:
        self._call("daemon-reload")
        call([*self._systemctl, "reset-failed", SOCKET, SERVICE], self._env, accept=(0, 1))

    def start(self) -> None:
        self._call("start", SOCKET, SERVICE)

    def stop(self) -> None:
        # Both in one job: of the service alone, the next call to its sockets would be a start.
        call([*self._systemctl, "stop", SOCKET, SERVICE], self._env, accept=(0, _NOT_LOADED))

    def restart(self) -> None:
        self._call("restart", SERVICE)

    def status(self) -> Status:
        service = self._show(SERVICE, "ActiveState", "SubState", "MainPID", "NRestarts", "UnitFileState")
        listens = self._show(SOCKET, "ActiveState")["ActiveState"] == "active"
        pid = int(service["MainPID"] or 0)
        return Status(
            state=_state(service["ActiveState"], service["SubState"], listens),
            pid=pid or None,
            restarts=int(service["NRestarts"] or 0),
            enabled=service["UnitFileState"] == "enabled",
            linger=(_LINGERING / _user()).exists(),
        )

    def set_linger(self, on: bool) -> None:
        verb = "enable-linger" if on else "disable-linger"
        done = subprocess.run(["loginctl", verb], env=self._env, capture_output=True, check=False)
        if done.returncode or (_LINGERING / _user()).exists() != on:
            words = done.stderr.decode(errors="replace").strip()
            raise CliError(
                f"Lingering could not be changed: {words}",
                hint=f"Try again in a session of your own (not by su or sudo), or: sudo loginctl {verb} {_user()}",
            )

    def log_command(self, log: Path, lines: int, follow: bool) -> list[str]:
        more = ["--follow"] if follow else ["--no-pager"]
        return ["journalctl", "--user", f"--unit={SERVICE}", f"--lines={lines}", *more]

    def _call(self, *words: str) -> str:
        return call([*self._systemctl, *words], self._env)

    def _show(self, unit: str, *properties: str) -> dict[str, str]:
        lines = self._call("show", f"--property={','.join(properties)}", unit).splitlines()
        return dict.fromkeys(properties, "") | dict(line.split("=", 1) for line in lines if "=" in line)


def _state(active: str, sub: str, listens: bool) -> str:
    if sub == "auto-restart":
        return "restarting"
    if active == "inactive":
        return "waiting" if listens else "stopped"
    known = {"active": "running", "activating": "starting", "deactivating": "stopping", "failed": "failed"}
    return known.get(active, active)


def _user() -> str:
    return pwd.getpwuid(os.getuid()).pw_name


def _without_systemd() -> str:
    try:
        kernel = Path("/proc/sys/kernel/osrelease").read_text()
    except OSError:
        kernel = ""
    if "microsoft" in kernel.lower():
        return (
            "In WSL, systemd runs if /etc/wsl.conf has a line `systemd=true` below `[boot]`; then `wsl --shutdown` in"
            f" Windows. Or without: {INSTEAD}"
        )
    return INSTEAD
