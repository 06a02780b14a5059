"""Asking the service manager, where a service is installed: for commands that need the daemon, or its end."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from . import record

_PATIENCE = 25.0  # seconds


def start_service(state: Path) -> bool:
    """Whether there is a service, and its manager did what was asked: the daemon's sockets are open then."""
    known = record.load(state)
    if known is None:
        return False
    try:
        done = subprocess.run(
            known.start, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_PATIENCE
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def stop_service(state: Path) -> bool:
    """Whether there was a service to stop. Raises CliError: its manager refuses."""
    if record.load(state) is None:
        return False
    from .manager import NoManager, find_manager

    try:
        find_manager(os.environ).stop()
    except NoManager:
        return False  # nobody logged in: a host may have started the daemon nevertheless
    return True
