"""Where a command runs that the daemon starts: under systemd not in the daemon's service but in a unit of its own.

The service's hardening is for the daemon. An assistant cannot live with it: Node and every other program that compiles
as it runs need memory that is writable and executable, sandboxes need namespaces. A child cannot take any of that off
again, so the user's systemd is asked to start the command, by systemd-run(1). It also ends all of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pacerelled.activation import by_systemd

_FOR_SYSTEMD = ("PATH", "HOME", "XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
_PATIENCE = 5.0  # seconds from SIGTERM to SIGKILL, and for systemctl to answer
_BEGIN = Path(__file__).with_name("begin.py")


@dataclass(frozen=True, slots=True)
class Unit:
    """A transient unit that a command can be started in. `env` is for systemd's programs, not for the command."""

    name: str
    systemd_run: str
    systemctl: str
    env: Mapping[str, str]

    def words(self, limit: float) -> list[str]:
        """Starts what standard input says, and ends with its exit code; 255 if a signal ended it.

        `limit`: seconds after which systemd ends it, should the daemon be gone.
        """
        settings = ("KillMode=control-group", f"TimeoutStopSec={_PATIENCE:g}", f"RuntimeMaxSec={limit:.0f}")
        return [
            self.systemd_run, "--user", "--quiet", "--collect", "--pipe", "--wait", "--service-type=exec",
            f"--unit={self.name}", "--description=Started by Pacerelle for a request that waits",
            *(f"--property={setting}" for setting in settings),
            "--", sys.executable, "-I", "-S", str(_BEGIN),
        ]  # fmt: skip

    async def stop(self) -> None:
        """Asks systemd to end it, which goes on without us."""
        with suppress(OSError, TimeoutError):
            process = await asyncio.create_subprocess_exec(
                self.systemctl, "--user", "--quiet", "--no-block", "stop", self.name,
                env=dict(self.env),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )  # fmt: skip
            await asyncio.wait_for(process.wait(), _PATIENCE)


def unit(env: Mapping[str, str], name: str) -> Unit | None:
    """None: the command is started by ourselves. `env` is the daemon's environment."""
    if not by_systemd(env) or "MANAGERPID" not in env:  # a unit, and one of the user's systemd
        return None
    programs = [shutil.which(program, path=env.get("PATH")) for program in ("systemd-run", "systemctl")]
    if programs[0] is None or programs[1] is None:
        return None
    return Unit(f"{name}.service", programs[0], programs[1], {key: env[key] for key in _FOR_SYSTEMD if key in env})


def start(argv: Sequence[str], env: Mapping[str, str], cwd: str) -> int:
    """A descriptor to be the unit's standard input. In memory: an environment can have passwords of proxies."""
    fd = os.memfd_create("start", os.MFD_CLOEXEC)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(json.dumps({"argv": list(argv), "env": dict(env), "cwd": cwd}).encode())
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
