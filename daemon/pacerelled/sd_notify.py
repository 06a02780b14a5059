"""Tells a service manager how we are: `READY=1`, `STOPPING=1`, … on `$NOTIFY_SOCKET` (sd_notify(3))."""

from __future__ import annotations

import socket
from collections.abc import Mapping

AGAIN = "X_PACERELLED_AGAIN=1"  # of a daemon that ends to be started again, for `pacerelled --foreground`


def notify(state: str, env: Mapping[str, str]) -> bool:
    """Sends one state. False without a service manager, or when it cannot be reached: never a reason to fail."""
    address = env.get("NOTIFY_SOCKET", "")
    if not address or address[0] not in "/@":
        return False
    if address[0] == "@":
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0)) as sock:
            sock.settimeout(1.0)
            sock.connect(address)
            sock.sendall(state.encode())
    except OSError:
        return False
    return True
