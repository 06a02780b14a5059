"""What starts, in what order, and how it stops."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Mapping

from pacerelle_protocol.local import LocalPaths
from pacerelled import __version__
from pacerelled.agent.hub import Hub
from pacerelled.config import Settings
from pacerelled.notify import notify
from pacerelled.servers.control import ControlServer
from pacerelled.servers.mcp_sock import McpSocketServer
from pacerelled.servers.sockets import bind_unix, inherited_sockets, unlink_own
from pacerelled.store.custody import Keyring, obtain_store_key, store_created
from pacerelled.store.database import Store

log = logging.getLogger(__name__)

STOP_LIMIT = 4.0  # seconds; then the process ends anyway, as after a crash, which the store survives


async def run(paths: LocalPaths, settings: Settings, env: Mapping[str, str]) -> None:
    """Serves until SIGTERM, SIGINT or `POST /v1/stop`. The caller holds the owner's lock. Raises PacerelledError.

    Sockets are bound first, so that a host that connects while the store opens waits instead of failing; READY=1 is
    said when requests are answered.
    """
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    given = inherited_sockets(env)
    sockets = {
        "mcp": given.get("mcp") or bind_unix(paths.mcp_sock),
        "control": given.get("control") or bind_unix(paths.control_sock),
    }
    try:
        keyring = Keyring(settings.keyring, env)
        key = await obtain_store_key(paths.state, paths.key_file, paths.store, keyring=keyring, env=env)
        store = await Store.open(paths.store, key.raw, new=key.new)
        try:
            store_created(paths.state, key)
            hub = Hub(store, settings, keyring=keyring, env=env, state=paths.state)
            places = {name: str(getattr(paths, name)) for name in paths.__slots__}
            mcp_server = McpSocketServer(hub, sockets["mcp"], version=__version__)
            control = ControlServer(hub, sockets["control"], paths=places, stop=stopping.set)
            try:
                await hub.start()
                mcp_server.start()
                await control.start()
                notify("READY=1\nSTATUS=Serving", env)
                log.info("pacerelled %s serves (pid %d, %d agents)", __version__, os.getpid(), len(hub.agents()))
                await stopping.wait()
                notify("STOPPING=1", env)
                log.info("Stopping")
            finally:
                await _in_time(asyncio.gather(mcp_server.stop(), control.stop()), "servers")
                await _in_time(hub.stop(), "agents")
        finally:
            await _in_time(store.close(), "store")
    finally:
        for name, path in (("mcp", paths.mcp_sock), ("control", paths.control_sock)):
            unlink_own(path, sockets[name])
            sockets[name].close()


async def _in_time(work: Awaitable[object], what: str) -> None:
    try:
        async with asyncio.timeout(STOP_LIMIT):
            await work
    except TimeoutError:
        log.error("Stopping the %s took longer than %.0f s; going on without", what, STOP_LIMIT)
