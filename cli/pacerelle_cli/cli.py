"""Where the daemon is, and whether JSON is wanted: what every command gets from the options before its name."""

from __future__ import annotations

import os
import sys
from functools import cached_property
from typing import TYPE_CHECKING

from .errors import CliError

if TYPE_CHECKING:
    from pacerelle_protocol.local import LocalPaths

    from .client import Daemon


class Cli:
    """The global options. Created by the root group, found in click's context."""

    def __init__(self, store_root: str | None = None, socket: str | None = None, json: bool = False) -> None:
        self.store_root = store_root
        self.socket = socket
        self.json = json

    @cached_property
    def paths(self) -> LocalPaths:
        from pacerelle_protocol.errors import LocalProtocolError
        from pacerelle_protocol.local import local_paths

        try:
            return local_paths(self.store_root, self.socket, env=os.environ, uid=os.getuid())
        except LocalProtocolError as error:
            raise CliError(str(error), hint="Check --store-root, --socket and HOME.") from error

    @cached_property
    def daemon(self) -> Daemon:
        from .client import Daemon

        return Daemon(self.paths)

    def started_daemon(self) -> Daemon:
        """The daemon; started first if it is not running, with a line on standard error that says so."""
        if not self.daemon.is_up():
            from .start import start_daemon

            pid = start_daemon(self.daemon, socket=self.socket)
            if pid is not None:
                print(f"Started pacerelled (pid {pid}).", file=sys.stderr)
        return self.daemon
