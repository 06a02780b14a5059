"""What starts, in what order, and how it stops."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from pacerelle_protocol.local import LocalPaths
from pacerelled import __version__
from pacerelled.config import Settings
from pacerelled.errors import place_of
from pacerelled.sd_notify import AGAIN, notify
from pacerelled.servers.sockets import bind_unix, inherited_sockets, unlink_own
from pacerelled.store.custody import store_created
from pacerelled.store.database import Store
from pacerelled.store.keyring import Keyring
from pacerelled.store.rekey import store_key
from pacerelled.store.retention import Policy
from pacerelled.store.upkeep import Upkeep
from pacerelled.upgrade import Upgrade, is_kept_running
from pacerelled.watchdog import feed

if TYPE_CHECKING:
    from pacerelled.agent.hub import Hub
    from pacerelled.checkup.finding import Finding
    from pacerelled.paseo.bridge import Bridge
    from pacerelled.servers.control import ControlServer
    from pacerelled.servers.http.server import HttpServer

log = logging.getLogger(__name__)

SILENT = 660.0  # seconds; a host's call that is not one for new requests has ended by then, a file's transfer too
STAGE_LIMIT = 1.7  # seconds for the servers to stop, and for the agents
STOP_LIMIT = 4.5  # seconds; then the process ends anyway, as after a crash, which the store survives


async def run(paths: LocalPaths, settings: Settings, env: Mapping[str, str]) -> None:
    """Serves until SIGTERM, SIGINT or `POST /v1/stop`, which may also come while it starts. Raises PacerelledError.

    The caller holds the owner's lock.
    """
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_log_failure)
    serving: asyncio.Task[None]
    stopping = False

    def stop() -> None:
        nonlocal stopping
        if not stopping:
            stopping = True
            threading.Thread(target=_end_anyway, name="stop limit", daemon=True).start()
            notify("STOPPING=1", env)
            log.info("Stopping")
            serving.cancel()

    serving = loop.create_task(_serve(paths, settings, env, stop), name="serve")
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))  # see __main__
    await asyncio.wait([serving])
    if not serving.cancelled():
        serving.result()


async def _serve(paths: LocalPaths, settings: Settings, env: Mapping[str, str], stop: Callable[[], None]) -> None:
    """Until it is cancelled.

    Sockets are bound first, so that a host that connects while the store opens waits instead of failing; READY=1 is
    said when requests are answered.
    """
    with ExitStack() as cleanup:
        given = inherited_sockets(env)
        sockets: dict[str, socket.socket] = {}
        for name, path in (("mcp", paths.mcp_sock), ("control", paths.control_sock)):
            sockets[name] = given.get(name) or bind_unix(path)
            cleanup.callback(sockets[name].close)
            cleanup.callback(unlink_own, path, sockets[name])
        keyring = Keyring(settings.keyring, env)
        importing = asyncio.create_task(asyncio.to_thread(_import_servers))
        key = await store_key(paths, keyring=keyring, env=env)
        store = await Store.open(paths.store, key.raw, new=key.new)
        try:
            store_created(paths.state, key)
            await importing
            from pacerelled.agent.hub import Hub
            from pacerelled.notify.reminders import Reminders
            from pacerelled.notify.wake import Wake
            from pacerelled.notify.webhooks import Webhooks
            from pacerelled.servers.checkup_calls import CheckupCalls
            from pacerelled.servers.control import ControlServer
            from pacerelled.servers.mcp_sock import McpSocketServer
            from pacerelled.servers.wake_calls import WakeCalls
            from pacerelled.servers.webhook_calls import WebhookCalls

            hub = Hub(store, settings, keyring=keyring, env=env, state=paths.state)
            places = {name: str(getattr(paths, name)) for name in paths.__slots__}
            mcp_server = McpSocketServer(hub, sockets["mcp"], version=__version__)
            webhooks = Webhooks(store, hub.event_log)
            reminders = Reminders(store, hub.event_log, after=settings.overdue_after)
            wake = Wake(
                store,
                hub.event_log,
                hosts=hub.sessions,
                knows=hub.agent,
                env=env,
                state=paths.state,
                ids={"PACERELLE_STORE_ROOT": str(paths.state.parent)},
            )
            checkup = CheckupCalls(lambda: _checkup(store, hub))
            calls = [*WebhookCalls(webhooks).routes(), *WakeCalls(wake, hub.agent).routes(), *checkup.routes()]
            control = ControlServer(hub, sockets["control"], paths=places, stop=stop, calls=calls)
            http = _http_server(hub, settings)
            hub.paseo = paseo = _paseo_bridge(hub, store, settings, env)
            hub.warned_by += [webhooks.warnings, *([paseo.warnings] if paseo else [])]
            upkeep = Upkeep(store, _policy(settings))
            try:
                await hub.start()
                if paseo is not None:
                    paseo.start()
                mcp_server.start()
                await webhooks.start()
                await wake.start()
                reminders.start()
                await control.start()
                if http is not None:
                    http.start()
                upkeep.start()
                gc.freeze()  # what is there now stays
                gc.enable()
                notify("READY=1\nSTATUS=Serving", env)
                upgrade = _upgrade(hub, control, env, stop)
                hub.warned_by.append(upgrade.warnings)
                for work, name in ((feed(store, env), "watchdog"), (upgrade.watch(), "upgrade")):
                    cleanup.callback(asyncio.create_task(work, name=name).cancel)
                log.info("pacerelled %s serves (pid %d, %d agents)", __version__, os.getpid(), len(hub.agents()))
                await asyncio.Event().wait()
            finally:
                # Before they are closed: a socket's file without a listener looks like a crash, and shims start a
                # daemon after a crash.
                unlink_own(paths.mcp_sock, sockets["mcp"])
                unlink_own(paths.control_sock, sockets["control"])
                servers = [mcp_server.stop(), control.stop(), *([http.stop()] if http else [])]
                await _in_time(asyncio.gather(*servers, webhooks.stop(), wake.stop(), reminders.stop()), "servers")
                agents = [hub.stop(), upkeep.stop(), *([paseo.stop()] if paseo else [])]
                await _in_time(asyncio.gather(*agents), "agents")
        finally:
            await store.close()


def _import_servers() -> None:
    """Most of a start is this: it goes on while the store is opened and checked."""
    for name in ("agent.hub", "servers.mcp_sock", "servers.control", "servers.webhook_calls", "servers.wake_calls"):
        import_module(f"pacerelled.{name}")


def _paseo_bridge(hub: Hub, store: Store, settings: Settings, env: Mapping[str, str]) -> Bridge | None:
    if settings.paseo is None or not settings.paseo.enabled:
        return None
    from pacerelled.paseo.bridge import Bridge  # costs nothing while it is off

    bridge = Bridge(store, settings.paseo, env, hub.asking, on_change=hub.coding_agents_changed)

    def look(_: str, topic: str) -> None:
        if topic == "widget":
            bridge.approvals.look()

    hub.subscribe(look)
    return bridge


def _http_server(hub: Hub, settings: Settings) -> HttpServer | None:
    if not settings.http:
        return None
    from pacerelled.servers.http.server import HttpServer  # costs nothing while it is off

    return HttpServer(
        hub,
        host=settings.http_host,
        port=settings.http_port,
        names=settings.http_names,
        idle=settings.claim_lease,
    )


async def _checkup(store: Store, hub: Hub) -> list[Finding]:
    from pacerelled.checkup.running import examine  # needed rarely

    return await examine(store, hub)


def _upgrade(hub: Hub, control: ControlServer, env: Mapping[str, str], stop: Callable[[], None]) -> Upgrade:
    def is_quiet() -> bool:
        hosts = hub.sessions()
        return not control.is_busy and all(host["waiting"] or host["idle_s"] > SILENT for host in hosts)

    def restart() -> None:
        notify(AGAIN, env)
        stop()

    return Upgrade(restart=restart if is_kept_running(env) else None, is_quiet=is_quiet)


def _policy(settings: Settings) -> Policy:
    return Policy(
        requests=settings.retention_requests,
        replies=settings.retention_replies,
        events=settings.retention_events,
        receipts=settings.retention_receipts,
        days=settings.retention_days,
        receipt_days=settings.retention_receipt_days,
    )


async def _in_time(work: Awaitable[object], what: str) -> None:
    try:
        async with asyncio.timeout(STAGE_LIMIT):
            await work
    except TimeoutError:
        log.error("Stopping the %s took longer than %.1f s; going on without", what, STAGE_LIMIT)


def _end_anyway() -> None:
    """A thread that is stuck (in a disk, a name server, the keyring) must not keep the process alive."""
    time.sleep(STOP_LIMIT)
    log.error("Stopping took longer than %.1f s; ending anyway", STOP_LIMIT)
    os._exit(0)


def _log_failure(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """An exception nobody waited for: where it was, not its text, which may quote what people wrote."""
    error = context.get("exception")
    log.error("%s: %s", context["message"], place_of(error) if error else "no exception")
