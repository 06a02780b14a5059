"""The proxy between us and the relay: the one that the environment (on macOS also the system) names.

HTTPS_PROXY (HTTP_PROXY for a relay without TLS), else ALL_PROXY, and nothing for hosts in NO_PROXY; small letters too.
The HTTP library and the WebSocket library have rules of their own, which differ: neither is left to them.
"""

from __future__ import annotations

from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pacerelled.errors import LinkError

_SECURE = {"http": "http", "ws": "http", "https": "https", "wss": "https"}


def proxy_for(url: str) -> str | None:
    """The address of the proxy for `url`, None where it is reached directly.

    Raises LinkError for a proxy that cannot be used, with a hint.
    """
    parts = urlsplit(url)
    proxies = getproxies()
    proxy = proxies.get(_SECURE[parts.scheme]) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    if "://" not in proxy:
        proxy = f"http://{proxy}"
    try:
        found = urlsplit(proxy)
        usable = bool(found.hostname) and found.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise LinkError(
            "The proxy that the environment names is no address",
            code="proxy",
            hint="Write HTTPS_PROXY like http://proxy.example.org:3128, then restart the daemon.",
        )
    if found.scheme not in ("http", "https"):
        raise LinkError(
            f"The proxy {place_of_proxy(proxy)} speaks {found.scheme}, which is not supported",
            code="proxy",
            hint="Name an HTTP proxy in HTTPS_PROXY, or the relay's host in NO_PROXY, then restart the daemon.",
        )
    return proxy


def place_of_proxy(proxy: str) -> str:
    """Host and port, without the name and the password that may stand before them."""
    return urlsplit(proxy).netloc.rpartition("@")[2]
