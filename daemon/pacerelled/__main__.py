"""`pacerelled`: the daemon's command.

The lock comes before everything that is slow to import: of twenty daemons started in one moment, nineteen end at once.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Sequence

from pacerelle_protocol.errors import LocalProtocolError
from pacerelle_protocol.local import LocalPaths, local_paths
from pacerelled import __version__
from pacerelled.activation import by_launchd, by_systemd
from pacerelled.config import Settings, load_settings
from pacerelled.errors import AlreadyRunning, ConfigError, PacerelledError, SocketPathError, StoreError
from pacerelled.files import private_directory
from pacerelled.lock import OwnerLock

EXIT_FAILURE, EXIT_STORE, EXIT_RUNNING, EXIT_CONFIG = 1, 74, 75, 78  # sysexits.h: IOERR, TEMPFAIL, CONFIG


def main(argv: Sequence[str] | None = None) -> None:
    """Exit codes: 0 stopped as asked, 2 usage, 74 store, 75 another daemon runs, 78 settings or sockets, 1 the rest."""
    # Kept until there is somebody to hear them: an exception in the midst of imports can get lost.
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
    arguments = _parser().parse_args(argv)
    try:
        paths = _paths(arguments.store_root, arguments.socket)
        private_directory(paths.state)
        flags = {"base_url": arguments.base_url, "ws_url": arguments.ws_url, "log_level": arguments.log_level}
        settings = load_settings(paths.config, os.environ, flags)
        if arguments.foreground:
            from pacerelled.logs.setup import start_logging
            from pacerelled.supervise import supervise

            start_logging(settings.log_level, settings.log_format, paths.log, os.environ)
            sys.exit(supervise(paths, _options(arguments)))
        lock = OwnerLock(paths.lock)
        # Whoever the service manager gave the sockets to is the daemon: nobody can reach another one any more.
        lock.acquire(take_over=by_systemd(os.environ) or by_launchd(os.environ))
    except PacerelledError as error:
        sys.exit(_complain(error))
    try:
        sys.exit(_serve(paths, settings))
    finally:
        lock.release()


def _serve(paths: LocalPaths, settings: Settings) -> int:
    import asyncio

    from pacerelled.logs.setup import start_logging

    os.umask(0o077)
    start_logging(settings.log_level, settings.log_format, paths.log, os.environ)
    faulthandler.enable()  # a watchdog ends a daemon that hangs with SIGABRT: the log then has where each thread was
    env = dict(os.environ)
    os.environ.pop("PACERELLE_AGENT_TOKEN", None)  # not for whatever we start
    gc.disable()  # until it serves: a sixth of the start would be looks at what only grows
    from pacerelled.app import run

    try:
        asyncio.run(run(paths, settings, env))
    except PacerelledError as error:
        return _complain(error)
    return 0


def _options(arguments: argparse.Namespace) -> list[str]:
    given = {name: value for name, value in vars(arguments).items() if isinstance(value, str)}
    return [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]


def _paths(store_root: str | None, socket: str | None) -> LocalPaths:
    try:
        return local_paths(store_root, socket, env=os.environ, uid=os.getuid())
    except LocalProtocolError as error:
        raise ConfigError(f"No place for the daemon's files: {error}", hint="Set --store-root or --socket.") from error


def _complain(error: PacerelledError) -> int:
    print(f"pacerelled: {error.message}", file=sys.stderr)
    if error.hint:
        print(f"  {error.hint}", file=sys.stderr)
    if isinstance(error, AlreadyRunning):
        return EXIT_RUNNING
    if isinstance(error, (ConfigError, SocketPathError)):
        return EXIT_CONFIG
    return EXIT_STORE if isinstance(error, StoreError) else EXIT_FAILURE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pacerelled",
        description="Owns the relay connection, the encryption and the encrypted store of your agents, and serves any"
        " number of MCP hosts. Hosts start it by themselves; `pacerelle status` shows how it is.",
        epilog="example: pacerelled --store-root ~/.pacerelle/mcp",
    )
    parser.add_argument("--store-root", metavar="DIR", help="folder of the local state (default ~/.pacerelle/mcp)")
    parser.add_argument("--socket", metavar="PATH", help="another place for mcp.sock; control.sock lies beside it")
    parser.add_argument("--base-url", metavar="URL", help="the relay's address for agents that name none")
    parser.add_argument("--ws-url", metavar="URL", help="the relay's WebSocket address, if it is another one")
    parser.add_argument("--log-level", metavar="LEVEL", help="debug, info, warning or error")
    parser.add_argument(
        "--foreground",
        action="store_true",
        help="start the daemon as a child, and again when it fails: for containers, and where there is no systemd",
    )
    parser.add_argument("--version", action="version", version=f"pacerelled {__version__}")
    return parser


if __name__ == "__main__":
    main()
