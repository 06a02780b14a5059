"""Why the relay cannot be reached, in words: what the two network libraries raise, told apart by cause."""

from __future__ import annotations

import logging
import os
import socket
import ssl
from datetime import UTC, datetime

import aiohttp
from websockets.exceptions import InvalidMessage, InvalidProxyStatus, ProxyError, WebSocketException

from pacerelled.errors import RelayUnreachable, place_of

log = logging.getLogger(__name__)

NOT_YET_VALID, EXPIRED = 9, 10  # OpenSSL's X509_V_ERR_CERT_NOT_YET_VALID, _HAS_EXPIRED


def unreachable(error: Exception) -> RelayUnreachable:
    """What to report for an error that a library raised while connecting. Quotes no address of the relay's."""
    why, hint = _cause(error)
    return RelayUnreachable(f"The relay cannot be reached: {why}", hint=hint)


def _cause(error: Exception) -> tuple[str, str]:
    again = "It is tried again by itself."
    if isinstance(error, aiohttp.ClientProxyConnectionError | ProxyError | aiohttp.ClientHttpProxyError):
        return _proxy_said(error), f"Check HTTPS_PROXY, or name the relay's host in NO_PROXY. {again}"
    cause = _inner(error)
    if isinstance(cause, ssl.SSLCertVerificationError):
        return _certificate(cause), (
            f"Set this machine's clock (it says {datetime.now(UTC):%Y-%m-%d %H:%M} UTC), or, if the relay is your own,"
            f" name its certificate in SSL_CERT_FILE. {again}"
        )
    if isinstance(cause, ssl.SSLError):
        return f"TLS failed ({cause.reason or type(cause).__name__})", f"Check that the relay speaks TLS there. {again}"
    if isinstance(cause, socket.gaierror):
        return f"its name is not found ({cause.strerror})", f"Check the network and the relay's address. {again}"
    if isinstance(cause, TimeoutError):
        return "no answer in time", f"Check the network. {again}"
    if isinstance(cause, OSError):
        return os.strerror(cause.errno) if cause.errno else str(cause), f"Check the network. {again}"
    if isinstance(cause, InvalidMessage | EOFError | aiohttp.ServerDisconnectedError):
        return "what answers there is no relay", f"Check the relay's address. {again}"
    if not isinstance(cause, WebSocketException | aiohttp.ClientError | ValueError):
        log.error("Connecting failed: %s", place_of(cause))
    return type(cause).__name__, again


def _inner(error: Exception) -> Exception:
    """The operating system's or TLS's own error inside one of aiohttp's."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return error.certificate_error
    if isinstance(error, aiohttp.ClientConnectorError):
        return error.os_error
    return error


def _certificate(error: ssl.SSLCertVerificationError) -> str:
    if error.verify_code in (NOT_YET_VALID, EXPIRED):
        return f"its {error.verify_message}, or this machine's clock is wrong"
    return f"its certificate is not accepted ({error.verify_message})"


def _proxy_said(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientProxyConnectionError):
        return f"the proxy does not answer ({_cause(error.os_error)[0]})"
    status = error.status if isinstance(error, aiohttp.ClientHttpProxyError) else None
    if isinstance(error, InvalidProxyStatus):
        status = error.response.status_code
    if status == 407:
        return "the proxy wants a name and a password"
    return f"the proxy answered {status}" if status else "what answers as the proxy is none"
