"""Who may ask: what a request's head must say before anything else of it is looked at."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})
CHALLENGE: Final = 'Bearer realm="pacerelle"'


class Refused(Exception):
    """A request that is answered with an HTTP error: `status`, what is wrong, and what to do about it.

    It never holds what the client sent: it could be a token.
    """

    def __init__(self, status: int, message: str, hint: str = "", *, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.text = f"{message}. {hint}".strip()
        self.headers = headers or {}

    def as_dict(self) -> dict[str, Any]:
        """A JSON-RPC error without a request's id, which MCP allows as the body of an HTTP error."""
        return {"jsonrpc": "2.0", "id": None, "error": {"code": -32600, "message": self.text}}


def check_host(headers: Headers, names: Collection[str]) -> None:
    """A web page that has its own name point at this machine (DNS rebinding) still sends that name. Raises Refused."""
    sent = headers.getlist("host")
    if len(sent) != 1 or _name(f"//{sent[0]}") not in names:
        raise Refused(421, "This server does not answer under that host name", "Use 127.0.0.1, or set `http_names`")


def check_origin(headers: Headers, names: Collection[str]) -> None:
    """Only browsers send an Origin: the one of the page that asks. Raises Refused."""
    for origin in headers.getlist("origin"):
        if not origin.startswith(("http://", "https://")) or _name(origin) not in names:
            raise Refused(403, "This server does not answer to other web pages")


def bearer(headers: Headers) -> str:
    """The token that a request shows. Raises Refused."""
    sent = headers.getlist("authorization")
    scheme, _, token = sent[0].partition(" ") if len(sent) == 1 else ("", "", "")
    if scheme.lower() != "bearer" or not token.strip():
        raise Refused(
            401,
            "A token is missing",
            "Make one with `pacerelle token create LABEL` and send it as `Authorization: Bearer TOKEN`",
            headers={"WWW-Authenticate": CHALLENGE},
        )
    return token.strip()


def unknown_token() -> Refused:
    """The answer to a wrong or revoked token."""
    return Refused(
        401,
        "This token is not known: it is wrong or was revoked",
        "`pacerelle token list` shows the tokens, `pacerelle token create LABEL` makes one",
        headers={"WWW-Authenticate": f'{CHALLENGE}, error="invalid_token"'},
    )


def _name(address: str) -> str | None:
    """The host name of `//name:port` or of an origin, in lower case and without brackets."""
    try:
        parts = urlsplit(address)
        parts.port  # noqa: B018 - raises for one that is no number
    except ValueError:
        return None
    return parts.hostname if "@" not in parts.netloc and not (parts.path or parts.query or parts.fragment) else None
