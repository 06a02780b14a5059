"""Starts the daemon, and starts it again whenever it ends, as a supervisor does."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import sys
from collections.abc import AsyncIterator

from tests.e2e.stack import Stack
from tests.faults import crashing


class Keeper:
    """The first `kills` lives end at a point of `crashing`, each when it has been passed up to `most` times."""

    def __init__(self, stack: Stack, point: str, *, kills: int, most: int, rng: random.Random) -> None:
        self._stack, self._point, self._rng = stack, point, rng
        self._most, self._armed = most, kills
        self.ends: list[int] = []  # exit codes, negative where a signal did it
        self.all_died = asyncio.Event()

    @classmethod
    @contextlib.asynccontextmanager
    async def watching(
        cls, stack: Stack, point: str, *, kills: int, most: int, rng: random.Random
    ) -> AsyncIterator[Keeper]:
        """Meanwhile no shim starts a daemon: whoever starts it holds start.lock."""
        keeper = cls(stack, point, kills=kills, most=most, rng=rng)
        lock = os.open(stack.paths.start_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
        task = asyncio.create_task(keeper._keep())
        try:
            yield keeper
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            os.close(lock)

    async def _keep(self) -> None:
        while True:
            command = ["-m", "pacerelled"]
            if len(self.ends) < self._armed:
                command = [crashing.__file__, self._point, str(self._rng.randint(1, self._most))]
            else:
                self.all_died.set()
            with (self._stack.paths.state / "pacerelled.log").open("ab") as log:
                daemon = await asyncio.create_subprocess_exec(
                    sys.executable, "-I", *command, "--store-root", str(self._stack.root),
                    env={"HOME": str(self._stack.home), "PATH": os.environ["PATH"]},
                    stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                )  # fmt: skip
            try:
                self.ends.append(await daemon.wait())
            finally:
                if daemon.returncode is None:
                    daemon.kill()
                    await daemon.wait()
