"""The relay as a whole: what starts, in what order, and how it stops."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from aiohttp import WSCloseCode, web

from . import mail
from .agent_http import AgentHttp
from .blobs import BlobStore
from .database import Database
from .errors import DataError, StorageFailed
from .http import answer_errors
from .hub import Hub
from .human_http import HumanHttp
from .limits import Limits
from .services import Services

log = logging.getLogger(__name__)

PRUNE_EVERY_S = 3600.0
SHUTDOWN_S = 3.0  # how long requests in progress may take at the end


@dataclass(frozen=True, slots=True)
class RelayConfig:
    """`port` 0 takes a free one. Without an `invite` whoever reaches the relay may make an account."""

    database: Path
    host: str = "127.0.0.1"
    port: int = 0
    invite: str | None = field(default=None, repr=False)
    limits: Limits = field(default_factory=Limits)


class Relay:
    """A running relay: `async with Relay(config) as relay: … relay.url`."""

    def __init__(self, config: RelayConfig) -> None:
        self.config = config
        self._database = Database(config.database)
        blobs = BlobStore(config.database.with_name("blobs"), self._database, config.limits)
        self._services = Services(self._database, blobs, Hub(), config.limits, config.invite)
        self._lock: int | None = None
        self._runner: web.AppRunner | None = None
        self._pruner: asyncio.Task[None] | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        """`http://host:port`, once started."""
        if self._url is None:
            raise RuntimeError("the relay has not been started")
        return self._url

    async def start(self) -> None:
        """Raises DataError for a data directory that cannot be used, OSError for an address that cannot."""
        try:
            self._lock = _lock(self.config.database)
            await self._database.open()
            await self._services.blobs.open()
            await self._listen()
        except BaseException:
            await self.stop()
            raise
        self._pruner = asyncio.create_task(self._prune_now_and_then())

    async def stop(self) -> None:
        """Closes connections (code 1001), finishes what was accepted, closes the database."""
        if self._pruner is not None:
            self._pruner.cancel()
            await asyncio.wait([self._pruner])
            self._pruner = None
        runner, self._runner = self._runner, None
        if runner is not None:
            for site in list(runner.sites):
                await site.stop()
            await self._services.hub.close(WSCloseCode.GOING_AWAY, "the relay is stopping")
            await runner.cleanup()
        await self._database.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def prune(self) -> None:
        """Forgets messages and blobs that are too old (`Limits`)."""
        now = self._services.now()
        while await self._database.run(mail.prune, self.config.limits, now):
            pass
        await self._services.blobs.prune(now)

    async def _prune_now_and_then(self) -> None:
        while True:
            try:
                await self.prune()
            except (StorageFailed, OSError) as error:
                log.error("pruning failed: %s", error)
            await asyncio.sleep(PRUNE_EVERY_S)

    async def _listen(self) -> None:
        limits = self.config.limits
        app = web.Application(client_max_size=limits.json_bytes, middlewares=[answer_errors])
        app.add_routes(AgentHttp(self._services).routes())
        app.add_routes(HumanHttp(self._services).routes())
        # No access log, and no log of requests that cannot be parsed: both would write agents' tokens, which the
        # protocol puts into the URL.
        silent = logging.Logger("silent")
        silent.addHandler(logging.NullHandler())
        runner = web.AppRunner(app, access_log=None, logger=silent, handle_signals=False, shutdown_timeout=SHUTDOWN_S)
        await runner.setup()
        self._runner = runner
        await web.TCPSite(runner, self.config.host, self.config.port).start()
        host, port = runner.addresses[0][:2]
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _lock(database: Path) -> int:
    """Takes the data directory for this process: two relays on one database would not see each other's people."""
    try:
        _make_directory(database.parent)
        path = database.with_name("relay.lock")
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise DataError(f"{database.parent} cannot be used: {error.strerror}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise DataError(f"another relay is using {database.parent}") from None
    return lock


def _make_directory(path: Path) -> None:
    """With its parents, for the owner alone; what exists already keeps its mode."""
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(mode=0o700)
