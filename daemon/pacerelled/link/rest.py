"""The agent's HTTP calls to the relay (the relay protocol reference, section HTTP), with timeouts and mapped errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import aiohttp

from pacerelled.errors import LinkError, NotConnected, RelayRejected, TokenRefused

from .backoff import retry_after
from .failures import unreachable
from .proxy import proxy_for

TIMEOUT = aiohttp.ClientTimeout(total=30, connect=15)
BLOB_TIMEOUT = aiohttp.ClientTimeout(total=600, connect=15, sock_read=60)
MAX_BLOB = 64 * 1024 * 1024  # bytes
MAX_JSON = 16 * 1024 * 1024


class RelayRest:
    """Raises RelayUnreachable, TokenRefused (401, 403), RelayRejected (any other answer) or another LinkError."""

    def __init__(self, base_url: str, token: Callable[[], str | None]) -> None:
        self._base_url = base_url
        self._token = token
        self._session: aiohttp.ClientSession | None = None
        self._closed = False
        self._waiting: set[asyncio.Timeout] = set()

    async def close(self) -> None:
        """Ends the calls under way, with NotConnected as any that come later."""
        self._closed = True
        for wait in self._waiting:  # aiohttp would let them wait for what cannot come any more
            wait.reschedule(asyncio.get_running_loop().time())
        self._waiting.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def publish_bundle(self, bundle: dict[str, Any]) -> None:
        await self._call("PUT", "/agent/prekey-bundle", json=bundle)

    async def publish_one_time(self, prekeys: dict[str, Any]) -> None:
        await self._call("POST", "/agent/one-time-prekeys", json=prekeys)

    async def group_keys(self, conversation_id: str) -> bytes:
        """The list of sealed group keys as JSON bytes."""
        return await self._call("GET", f"/agent/group-keys?conversation_id={quote(conversation_id, safe='')}")

    async def upload_blob(self, ciphertext: AsyncIterable[bytes], size: int | None) -> bytes:
        """The relay's answer as JSON bytes; `size` in bytes, None if it is not known before the end.

        The file's name stays out: it travels encrypted. What `ciphertext` raises becomes RelayUnreachable: whoever
        cares keeps it.
        """
        headers = {"Content-Type": "application/octet-stream"}
        if size is not None:
            headers["Content-Length"] = str(size)
        return await self._call("POST", "/agent/blobs", data=ciphertext, headers=headers, timeout=BLOB_TIMEOUT)

    def download_blob(self, blob_id: str) -> AsyncGenerator[bytes]:
        """The ciphertext in pieces, at most `MAX_BLOB` bytes. Whoever stops early closes it, which ends the call."""
        return self._pieces("GET", f"/agent/blobs/{quote(blob_id, safe='')}", timeout=BLOB_TIMEOUT, limit=MAX_BLOB)

    async def _call(self, method: str, path: str, **options: Any) -> bytes:
        async with aclosing(self._pieces(method, path, **options)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def _pieces(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        data: AsyncIterable[bytes] | None = None,
        headers: dict[str, str] | None = None,
        timeout: aiohttp.ClientTimeout | None = None,
        limit: int = MAX_JSON,
    ) -> AsyncGenerator[bytes]:
        """The answer's body."""
        if self._closed:
            raise _stopped()
        if self._session is None:
            # No connection is kept: calls are rare, and one that died in the computer's sleep would stall the next.
            connector = aiohttp.TCPConnector(force_close=True)
            self._session = aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar())
        token = self._token()
        if not token:
            raise TokenRefused("There is no token for this agent", hint="Give it with `pacerelle agent token`.")
        what = f"{method} {path.partition('?')[0]}"
        try:
            request = self._session.request(
                method,
                self._base_url + path,
                json=json,
                data=data,
                headers={"Authorization": f"Bearer {token}", **(headers or {})},
                timeout=timeout or TIMEOUT,
                # Not aiohttp's `trust_env`: with it an entry in ~/.netrc would take the place of the agent's token.
                proxy=proxy_for(self._base_url),
                allow_redirects=False,
            )
            async with await self._until_closed(request) as response:
                if response.status in (401, 403):
                    raise TokenRefused(
                        f"The relay refused the token ({response.status})",
                        hint="Copy a new token from Pacerelle and give it with `pacerelle agent token`.",
                    )
                if not 200 <= response.status < 300:
                    raise RelayRejected(
                        f"The relay answered {response.status} to {what}",
                        status=response.status,
                        hint="Try again later.",
                        retry_after=retry_after(response.headers.get("Retry-After"), response.headers.get("Date")),
                    )
                too_large = LinkError(f"The relay's answer to {what} is larger than {limit >> 20} MiB")
                if (response.content_length or 0) > limit:
                    raise too_large
                size = 0
                while piece := await self._until_closed(response.content.readany()):
                    size += len(piece)
                    if size > limit:
                        raise too_large
                    yield piece
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, RuntimeError) as error:
            if self._closed:
                raise _stopped() from error
            if isinstance(error, RuntimeError):  # aiohttp has them for what is closed while it is used, by us
                raise
            raise unreachable(error) from error

    async def _until_closed[T](self, work: Awaitable[T]) -> T:
        """Raises TimeoutError when this is closed meanwhile."""
        async with asyncio.timeout(None) as wait:
            self._waiting.add(wait)
            try:
                return await work
            finally:
                self._waiting.discard(wait)


def _stopped() -> NotConnected:
    return NotConnected("The agent is being stopped", hint="Try again when the daemon is ready.")
