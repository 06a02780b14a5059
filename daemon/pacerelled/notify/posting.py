"""One attempt to deliver something to a webhook, and whether and when another one makes sense."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

import aiohttp

from pacerelled.errors import LinkError
from pacerelled.link.backoff import retry_after
from pacerelled.link.proxy import proxy_for

from .addresses import PrivateOnly
from .signing import signature

TIMEOUT = 10.0  # seconds for all of an attempt
ATTEMPTS = 6
BACKOFF = (1.0, 2.0, 4.0, 8.0, 16.0)  # seconds after each attempt but the last
JITTER = 0.25  # at most so much of it more
_AGAIN = (408, 429)
_MAX_ANSWER = 64 * 1024  # bytes of an answer that are read, for its connection to be used again


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an attempt: the HTTP status, or what went wrong before there was one."""

    code: int | None
    error: str | None = None
    retry_after: float = 0.0  # seconds that the receiver asked for

    @property
    def delivered(self) -> bool:
        return self.code is not None and 200 <= self.code < 300

    @property
    def again(self) -> bool:
        """Whether another attempt may succeed: not where the receiver refused it, or sends us elsewhere."""
        return self.code is None or self.code in _AGAIN or self.code >= 500


def pause(attempts: int, outcome: Outcome) -> float | None:
    """Seconds until the next attempt, after so many; None if there is none."""
    if outcome.delivered or not outcome.again or attempts >= ATTEMPTS:
        return None
    return max(BACKOFF[attempts - 1] * random.uniform(1.0, 1.0 + JITTER), outcome.retry_after)


class Poster:
    """Makes attempts. Redirects are not followed: a signature is for one address."""

    def __init__(self, resolver: type[PrivateOnly] = PrivateOnly) -> None:
        self._resolver = resolver
        self._sessions: dict[str, aiohttp.ClientSession] = {}

    async def close(self) -> None:
        for session in self._sessions.values():
            await session.close()

    async def post(self, url: str, secret: str, body: bytes, headers: Mapping[str, str]) -> Outcome:
        scheme = urlsplit(url).scheme
        signed = {"Pacerelle-Signature": signature(secret, int(time.time()), body), **headers}
        try:
            async with asyncio.timeout(TIMEOUT):
                proxy = proxy_for(url) if scheme == "https" else None
                async with self._session(scheme).post(
                    url, data=body, headers=signed, allow_redirects=False, proxy=proxy
                ) as response:
                    await response.content.read(_MAX_ANSWER)
                    wait = retry_after(response.headers.get("Retry-After"), response.headers.get("Date"))
                    return Outcome(response.status, retry_after=wait)
        except TimeoutError:
            return Outcome(None, f"no answer within {TIMEOUT:g} s")
        except LinkError as error:
            return Outcome(None, error.message)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Outcome(None, _reason(error))

    def _session(self, scheme: str) -> aiohttp.ClientSession:
        if scheme not in self._sessions:
            resolver = self._resolver() if scheme == "http" else None
            connector = aiohttp.TCPConnector(resolver=resolver, use_dns_cache=False, limit_per_host=4)
            self._sessions[scheme] = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"Content-Type": "application/json", "User-Agent": "pacerelled"},
            )
        return self._sessions[scheme]


def _reason(error: Exception) -> str:
    """What a person can do something with; without the address, which can hold a secret."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "its certificate is not accepted"
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        if isinstance(cause, socket.gaierror):
            return "its name is not found"
        return os.strerror(cause.errno) if cause.errno else str(cause)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the connection ended before an answer"
    return type(error).__name__
