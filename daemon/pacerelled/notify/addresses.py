"""Where a webhook may go: https anywhere, plain http only to this machine and private networks.

What counts is the address that is connected to, not the name: each attempt looks the name up once, checks what came
out, and connects to that. A name that means something else the next time gets nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from pacerelled.errors import InvalidArgument

MAX_URL = 2_000  # characters
_PRIVATE = [
    ipaddress.ip_network(each)
    for each in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
]
PUBLIC = "plain http goes only to this machine and to private networks"


def checked_address(url: str) -> str:
    """The URL, if a webhook may have it. Raises InvalidArgument."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        usable = None
    if not usable or len(url) > MAX_URL or any(c <= " " or c >= "\x7f" for c in url):
        raise _wrong("`url` is not a usable address", "Write it like https://example.org/hooks/pacerelle")
    if parts.username is not None or parts.password is not None:
        raise _wrong("`url` has a name or a password in it", "What proves a delivery is its signature.")
    if parts.fragment:
        raise _wrong("`url` has a part behind #, which is never sent", "Leave it away.")
    literal = _literal(parts.hostname or "")
    if parts.scheme == "http" and literal is not None and not is_private(literal):
        raise _wrong(f"`url` is not allowed: {PUBLIC}", "Use https.")
    return url


def is_private(address: str) -> bool:
    """Whether plain http may be spoken to this IP address. Link-local ones are not meant: clouds keep secrets there."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return any((mapped or found) in network for network in _PRIVATE if network.version == (mapped or found).version)


class PrivateOnly(AbstractResolver):
    """Names whose every address is private; OSError for others."""

    def __init__(self, lookup: Callable[[], AbstractResolver] = ThreadedResolver) -> None:
        self._resolver = lookup()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._resolver.resolve(host, port, family)
        if not found or not all(is_private(each["host"]) for each in found):
            raise OSError(PUBLIC)
        return found

    async def close(self) -> None:
        await self._resolver.close()


def _literal(host: str) -> str | None:
    try:
        return str(ipaddress.ip_address(host.partition("%")[0]))
    except ValueError:
        return None


def _wrong(message: str, hint: str) -> InvalidArgument:
    return InvalidArgument(message, argument="url", hint=hint)
