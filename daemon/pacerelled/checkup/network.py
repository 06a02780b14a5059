"""The way to a relay's address, step by step: proxy, name, TLS, and the two clocks.

No token is sent. What the libraries raise is told apart in `link.failures`.
"""

from __future__ import annotations

import asyncio
import socket
import time
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import aiohttp

from pacerelled.errors import LinkError
from pacerelled.link.failures import unreachable
from pacerelled.link.proxy import place_of_proxy, proxy_for

from .finding import Finding, failed

PATIENCE = 10.0  # seconds for each step
CLOCK_NOTE, CLOCK_WRONG = 60.0, 300.0  # seconds between the clocks


async def way_to(base_url: str) -> list[Finding]:
    """Ends at the first step that fails."""
    about = urlsplit(base_url).netloc
    try:
        proxy = proxy_for(base_url)
    except LinkError as error:
        return [failed("proxy", error, about)]
    found = [Finding("proxy", "ok", f"through {place_of_proxy(proxy)}" if proxy else "none", about=about)]
    named = await _name(proxy or base_url, about)
    found.append(named)
    return found if named.state == "failed" else [*found, *await _answer(base_url, proxy, about)]


async def _name(url: str, about: str) -> Finding:
    host = urlsplit(url).hostname or ""
    try:
        async with asyncio.timeout(PATIENCE):
            addresses = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a timeout is an OSError
        return failed("dns", unreachable(error if isinstance(error, OSError) else OSError(str(error))), about)
    return Finding("dns", "ok", f"{host} has {len({a[4][0] for a in addresses})} addresses", about=about)


async def _answer(base_url: str, proxy: str | None, about: str) -> list[Finding]:
    tls = urlsplit(base_url).scheme == "https"
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    connector = aiohttp.TCPConnector(force_close=True)
    jar = aiohttp.DummyCookieJar()
    try:
        async with aiohttp.ClientSession(connector=connector, cookie_jar=jar, timeout=timeout) as session:
            started = time.time()
            async with session.get(f"{base_url}/", proxy=proxy, allow_redirects=False) as response:
                middle = (started + time.time()) / 2
                date = response.headers.get("Date")
    except (aiohttp.ClientError, OSError, ValueError) as error:
        return [failed("tls" if tls else "relay", unreachable(error), about)]
    return [_tls(base_url, about), clock(date, middle, about)]


def _tls(base_url: str, about: str) -> Finding:
    parts = urlsplit(base_url)
    if parts.scheme == "https":
        return Finding("tls", "ok", "the certificate is accepted", about=about)
    if parts.hostname in ("127.0.0.1", "::1", "localhost"):
        return Finding("tls", "ok", "not needed: the relay is on this machine", about=about)
    return Finding(
        "tls", "note", "none: on the way to the relay, the token can be read", "Give the relay an https address.", about
    )


def clock(date: str | None, now: float, about: str) -> Finding:
    """This machine's clock (`now`, seconds since 1970) against the `Date` of an answer, which is in whole seconds."""
    try:
        there = parsedate_to_datetime(date or "").timestamp()
    except ValueError:
        return Finding("clock", "skipped", "the relay does not tell its time", about=about)
    off = now - (there + 0.5)
    if abs(off) < CLOCK_NOTE:
        return Finding("clock", "ok", "as the relay's", about=about)
    message = f"{abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the relay's"
    hint = "Set this machine's clock, or let it be set from the network."
    return Finding("clock", "failed" if abs(off) > CLOCK_WRONG else "note", message, hint, about)
