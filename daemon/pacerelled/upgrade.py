"""Notices that another version was installed while this one runs.

Where a service manager keeps the daemon running, it ends as soon as nobody needs it, and the new version is started:
hosts notice nothing of a restart (docs/shim.md). Elsewhere `pacerelle status` says that a restart is due.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from . import __version__
from .activation import by_launchd, by_supervisor, by_systemd

log = logging.getLogger(__name__)

DISTRIBUTION = "pacerelled"
LOOK = 60.0  # seconds between looks at what is installed
QUIET_LOOK = 2.0  # seconds between looks whether nobody needs us
_TRIAL = 60.0  # seconds


def installed_version() -> str | None:
    """What a daemon started now would be; None while an installer is between two versions."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return None


def is_kept_running(env: Mapping[str, str]) -> bool:
    """Whether somebody starts the daemon again when it ends."""
    return by_systemd(env) or by_launchd(env) or by_supervisor(env)


async def starts() -> bool:
    """Whether what is installed can be started at all: an installer may have got stuck half-way."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-m", "pacerelled", "--version"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        return await asyncio.wait_for(process.wait(), _TRIAL) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class Upgrade:
    """`restart` is called once, when another version is there to stay, can be started, and `is_quiet` says so.

    Without `restart` it is only told in `due`.
    """

    def __init__(
        self,
        *,
        restart: Callable[[], None] | None,
        is_quiet: Callable[[], bool],
        installed: Callable[[], str | None] = installed_version,
        trial: Callable[[], Awaitable[bool]] = starts,
    ) -> None:
        self._restart = restart
        self._is_quiet = is_quiet
        self._installed = installed
        self._trial = trial
        self.due: str | None = None
        """The version that is installed, if it is another than this one."""

    async def watch(self) -> None:
        """Until it is cancelled, or has asked for the restart."""
        # What was installed at the start is this one, whatever it says: else a start could follow the other for ever.
        this = None, __version__, await asyncio.to_thread(self._installed)
        seen = None
        while True:
            await asyncio.sleep(LOOK)
            found = await asyncio.to_thread(self._installed)
            self.due = found if found not in this else None
            # Seen twice, so that an installer has had the time to finish.
            if self.due and self.due == seen and self._restart is not None and await self._tried():
                while not self._is_quiet():  # noqa: ASYNC110 - what is waited for has no event
                    await asyncio.sleep(QUIET_LOOK)
                log.info("Version %s was installed: ending, to be started as that", self.due)
                self._restart()
                return
            seen = self.due

    async def warnings(self) -> list[dict[str, Any]]:
        """For GET /v1/status."""
        if self.due is None:
            return []
        return [
            {
                "code": "restart_due",
                "message": f"pacerelled {self.due} is installed, and {__version__} still runs",
                "hint": "It restarts by itself as soon as no host needs it."
                if self._restart is not None
                else "Run `pacerelle stop`: the next call of a host starts the new one.",
            }
        ]

    async def _tried(self) -> bool:
        try:
            well = await self._trial()
        except (OSError, TimeoutError):
            well = False
        if not well:
            log.warning("Version %s is installed, but cannot be started; staying with %s", self.due, __version__)
        return well
