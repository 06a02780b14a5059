"""What the phone's parts share: the store on its own thread, the relay, and the news of what changed."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from .errors import NotPaired
from .log import Log
from .model import Message
from .peers import Peers
from .relay import RelayClient
from .store import DeviceRow, Store


class Core:
    """`store`, `peers` and `log` belong to the store's thread: touch them only in a function handed to `run`."""

    def __init__(self, executor: ThreadPoolExecutor, store: Store) -> None:
        self._executor = executor
        self.store = store
        self.peers = Peers(store)
        self.log = Log(store)
        self.news = News()
        self.relay: RelayClient | None = None
        self._device = store.device()

    @classmethod
    async def open(cls, database: Path) -> Core:
        """Raises HomeUnusable."""
        executor = ThreadPoolExecutor(1, thread_name_prefix="phone-store")
        try:
            store = await asyncio.get_running_loop().run_in_executor(executor, Store, database)
            return await asyncio.get_running_loop().run_in_executor(executor, cls, executor, store)
        except BaseException:
            executor.shutdown()
            raise

    async def run[**P, T](self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run on the store's thread. A cancelled caller leaves the function running to its commit."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: function(*args, **kwargs))

    @property
    def is_paired(self) -> bool:
        return self._device is not None

    @property
    def device(self) -> DeviceRow:
        """Raises NotPaired."""
        if self._device is None:
            raise NotPaired(
                "This home has no device yet.",
                hint="Register with `pacerelle chat pair --name NAME`, or link it with `pacerelle chat link CODE`.",
            )
        return self._device

    @property
    def api(self) -> RelayClient:
        """The relay, with this device's token. Raises NotPaired."""
        if self.relay is None:
            self.relay = RelayClient(self.device.relay_url, self.device.device_token)
        return self.relay

    def paired(self, device: DeviceRow) -> None:
        self._device = device

    async def close(self) -> None:
        if self.relay is not None:
            await self.relay.close()
        await self.run(self.store.close)
        self._executor.shutdown()


class News:
    """Tells those who wait. On the loop's thread only."""

    def __init__(self) -> None:
        self._readers: set[asyncio.Queue[Message]] = set()
        self._replies: defaultdict[str, set[asyncio.Future[Message]]] = defaultdict(set)
        self._outgoing: defaultdict[str, set[asyncio.Future[None]]] = defaultdict(set)

    def arrived(self, messages: Sequence[Message]) -> None:
        for message in messages:
            for queue in self._readers:
                queue.put_nowait(message)
            if message.reply_to is not None and message.direction == "in":
                _resolve(self._replies.get(message.reply_to, ()), message)

    def moved(self, message_ids: Sequence[str]) -> None:
        """Outgoing messages whose state or reason changed."""
        for message_id in message_ids:
            _resolve(self._outgoing.get(message_id, ()), None)

    @contextmanager
    def reading(self) -> Iterator[asyncio.Queue[Message]]:
        queue: asyncio.Queue[Message] = asyncio.Queue()
        self._readers.add(queue)
        try:
            yield queue
        finally:
            self._readers.discard(queue)

    @contextmanager
    def reply_to(self, message_id: str) -> Iterator[asyncio.Future[Message]]:
        with _waiting(self._replies, message_id) as future:
            yield future

    @contextmanager
    def outgoing(self, message_id: str) -> Iterator[asyncio.Future[None]]:
        with _waiting(self._outgoing, message_id) as future:
            yield future


@contextmanager
def _waiting[T](waiting: defaultdict[str, set[asyncio.Future[T]]], key: str) -> Iterator[asyncio.Future[T]]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    waiting[key].add(future)
    try:
        yield future
    finally:
        waiting[key].discard(future)
        if not waiting[key]:
            del waiting[key]
        future.cancel()


def _resolve[T](futures: Sequence[asyncio.Future[T]] | set[asyncio.Future[T]], value: T) -> None:
    for future in futures:
        if not future.done():
            future.set_result(value)
