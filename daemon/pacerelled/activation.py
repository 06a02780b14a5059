"""Sockets that a service manager opened before the daemon was there: systemd's LISTEN_FDS, launchd's by name.

Little is imported here: it is asked before the lock is taken.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Mapping
from typing import Any

from .errors import ConfigError

LAUNCHD_LABEL = "pacerelled"  # the agent's name in launchd/pacerelled.plist

SUPERVISOR = "PACERELLED_SUPERVISOR"  # environment: the pid of the `pacerelled --foreground` that keeps us running


def by_systemd(env: Mapping[str, str]) -> bool:
    """Whether sockets were handed over as in sd_listen_fds(3)."""
    return env.get("LISTEN_PID") == str(os.getpid())


def by_launchd(env: Mapping[str, str]) -> bool:
    """Whether launchd started this process as our agent. launchd names the job in the environment of its process."""
    return env.get("XPC_SERVICE_NAME") == LAUNCHD_LABEL


def by_supervisor(env: Mapping[str, str]) -> bool:
    """Whether `pacerelled --foreground` started this process."""
    return env.get(SUPERVISOR) == str(os.getppid())


def launchd_descriptors(names: Iterable[str], library: Any = None) -> dict[str, int]:
    """The descriptors of the sockets in the agent's plist, by launch_activate_socket(3) of `library` (libSystem).

    launchd hands a socket over once in a process's life. Raises ConfigError: it hands over none of this name.
    """
    library = library or ctypes.CDLL(None, use_errno=True)
    found: dict[str, int] = {}
    for name in names:
        descriptors, count = ctypes.POINTER(ctypes.c_int)(), ctypes.c_size_t()
        error = library.launch_activate_socket(name.encode(), ctypes.byref(descriptors), ctypes.byref(count))
        if error or count.value == 0:
            raise ConfigError(
                f"launchd has no socket `{name}` for pacerelled: {os.strerror(error) if error else 'none'}",
                hint="Write the agent anew with `pacerelle service install`.",
            )
        first, *rest = descriptors[: count.value]
        library.free(descriptors)
        for spare in rest:
            os.close(spare)
        found[name] = first
    return found
