"""The relay's human API (docs/relay.md) over one HTTP session. Foreign errors become ours here and nowhere else."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp

from .errors import InvalidArgument, RelayRejected, RelayUnreachable, TokenRefused

CALL_TIMEOUT = aiohttp.ClientTimeout(total=30, connect=10)  # seconds
BLOB_TIMEOUT = aiohttp.ClientTimeout(total=600, connect=10, sock_read=60)  # seconds
HEARTBEAT = 20.0  # seconds between pings; a link without traffic for half as long after one is dead
MAX_FRAME = 16 << 20  # bytes; more than any relay sends, so that a large frame is refused by content, not by size


class RelayClient:
    """Calls are safe to repeat unless said otherwise. All raise RelayUnreachable, TokenRefused or RelayRejected."""

    def __init__(self, url: str, token: str | None = None) -> None:
        """Raises InvalidArgument for a URL that is not http(s)."""
        self.url = checked_url(url)
        self._token = token
        self._http = aiohttp.ClientSession()

    def authorize(self, token: str) -> None:
        self._token = token

    async def close(self) -> None:
        await self._http.close()

    async def __aenter__(self) -> RelayClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def register(self, name: str, device_name: str | None, invite: str | None) -> dict[str, Any]:
        body = {"name": name, "device_name": device_name, "invite": invite}
        return await self._call("POST", "/accounts", body, open=True)

    async def link(self, code: str, device_name: str | None) -> dict[str, Any]:
        return await self._call("POST", "/devices/link", {"link_code": code, "device_name": device_name}, open=True)

    async def link_code(self) -> dict[str, Any]:
        return await self._call("POST", "/devices/codes", {})

    async def announce(self, identity_key_b64: str) -> None:
        await self._call("PUT", "/devices/self/identity", {"identity_key": identity_key_b64})

    async def create_agent(self, name: str) -> dict[str, Any]:
        return await self._call("POST", "/agents", {"name": name})

    async def new_token(self, agent_id: str) -> dict[str, Any]:
        return await self._call("POST", f"/agents/{quote(agent_id, safe='')}/token", {})

    async def agents(self) -> list[dict[str, Any]]:
        return _objects(await self._call("GET", "/agents"), "agents")

    async def conversations(self) -> list[dict[str, Any]]:
        return _objects(await self._call("GET", "/conversations"), "conversations")

    async def create_group(self, agent_ids: list[str], title: str) -> dict[str, Any]:
        return await self._call(
            "POST", "/conversations", {"kind": "group", "agent_ids": agent_ids, "title": title or None}
        )

    async def prekey_bundle(self, agent_id: str) -> dict[str, Any]:
        """Each call uses up one of the agent's one-time prekeys."""
        return await self._call("GET", f"/agents/{quote(agent_id, safe='')}/prekey-bundle")

    async def post(self, path: str, body: str) -> dict[str, Any]:
        """A body that is JSON already, sent as it stands."""
        return await self._call("POST", path, raw=body)

    async def put_blob(self, ciphertext: bytes) -> str:
        async with self._request("POST", "/blobs", data=io.BytesIO(ciphertext), timeout=BLOB_TIMEOUT) as answer:
            return text_field(_json(await answer.read()), "id")

    async def blob(self, blob_id: str, *, limit: int) -> bytes:
        """Raises RelayRejected (too_large) for more than `limit` bytes."""
        path = f"/blobs/{quote(blob_id, safe='')}"
        async with self._request("GET", path, timeout=BLOB_TIMEOUT) as answer:
            data = bytearray()
            async for chunk in answer.content.iter_chunked(1 << 16):
                data += chunk
                if len(data) > limit:
                    raise RelayRejected(
                        "The file at the relay is larger than its message says.", status=200, code="too_large"
                    )
            return bytes(data)

    @asynccontextmanager
    async def socket(self) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        try:
            async with self._http.ws_connect(
                f"{self.url}/human/v1/ws",
                headers=self._headers(open=False),
                heartbeat=HEARTBEAT,
                max_msg_size=MAX_FRAME,
                timeout=aiohttp.ClientWSTimeout(ws_close=2),
            ) as ws:
                yield ws
        except aiohttp.WSServerHandshakeError as e:
            raise self._rejected(e.status, "refused", e.message, None) from None
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            raise self._unreachable(e) from e

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, raw: str | None = None, open: bool = False
    ) -> dict[str, Any]:
        if body is not None:
            raw = json.dumps({name: value for name, value in body.items() if value is not None})
        data = raw.encode() if raw is not None else None
        async with self._request(method, path, data=data, json_body=raw is not None, open=open) as answer:
            return _json(await answer.read())

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        *,
        data: bytes | io.BytesIO | None = None,  # large ones in pieces: aiohttp writes bytes all at once
        json_body: bool = False,
        open: bool = False,
        timeout: aiohttp.ClientTimeout = CALL_TIMEOUT,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        headers = self._headers(open)
        if data is not None:
            headers["Content-Type"] = "application/json" if json_body else "application/octet-stream"
        try:
            async with self._http.request(
                method, f"{self.url}/human/v1{path}", data=data, headers=headers, timeout=timeout, allow_redirects=False
            ) as answer:
                if not 200 <= answer.status < 300:
                    raise self._rejection(answer.status, await answer.content.read(1 << 16), answer.headers)
                yield answer
        except (aiohttp.ClientError, OSError, TimeoutError) as e:
            raise self._unreachable(e) from e

    def _headers(self, open: bool) -> dict[str, str]:
        return {} if open or self._token is None else {"Authorization": f"Bearer {self._token}"}

    def _unreachable(self, error: Exception) -> RelayUnreachable:
        why = "it did not answer in time" if isinstance(error, (TimeoutError, asyncio.TimeoutError)) else str(error)
        return RelayUnreachable(
            f"The relay at {self.url} cannot be reached: {why or type(error).__name__}.",
            hint="Check that it is running (pacerelle relay) and that the address is right.",
        )

    def _rejection(self, status: int, body: bytes, headers: Any) -> RelayRejected | TokenRefused | RelayUnreachable:
        try:
            error = json.loads(body)["error"]
            code, message = str(error["code"])[:64], str(error["message"])[:500]
        except (ValueError, KeyError, TypeError, RecursionError):
            code, message = "refused", "no reason given"
        return self._rejected(status, code, message, headers.get("Retry-After"))

    def _rejected(
        self, status: int, code: str, message: str, retry_after: str | None
    ) -> RelayRejected | TokenRefused | RelayUnreachable:
        if status == 401:
            return TokenRefused(
                "The relay refused this device's token.",
                hint="The device was removed from the account. Link it again in another home, or register.",
            )
        if status >= 500:
            return RelayUnreachable(
                f"The relay at {self.url} has trouble: {status} {code}.", hint="It is tried again; see the relay's log."
            )
        wait = float(retry_after) if retry_after is not None and retry_after.isdecimal() else None
        return RelayRejected(
            f"The relay refused: {message} ({status} {code}).", status=status, code=code, retry_after=wait
        )


def checked_url(url: str) -> str:
    """The URL without a trailing slash. Raises InvalidArgument."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidArgument(
            "The relay's address must start with http:// or https:// and name a host.",
            argument="relay",
            hint="For a relay on this machine: http://127.0.0.1:8787",
        )
    return url.rstrip("/")


def _nonsense() -> RelayRejected:
    return RelayRejected(
        "The relay's answer is not what docs/relay.md says.", status=200, code="bad_answer", hint="Is it our relay?"
    )


def _json(body: bytes) -> dict[str, Any]:
    if not body:
        return {}
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        raise _nonsense() from None
    if not isinstance(value, dict):
        raise _nonsense()
    return value


def _objects(value: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = value.get(name)
    if not isinstance(found, list) or not all(isinstance(x, dict) for x in found):
        raise _nonsense()
    return found


def text_field(value: dict[str, Any], name: str) -> str:
    """A string of an answer that can be kept. Raises RelayRejected."""
    return _storable(value.get(name))


def text_list(value: dict[str, Any], name: str) -> list[str]:
    """As `text_field`, for a list of strings."""
    found = value.get(name)
    if not isinstance(found, list):
        raise _nonsense()
    return [_storable(item) for item in found]


def _storable(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise _nonsense()
    try:
        value.encode()
    except UnicodeEncodeError:  # a lone surrogate
        raise _nonsense() from None
    return value
