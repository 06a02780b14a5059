"""What control.sock answers: JSON, and every error as `{"error": {code, message, hint}}` with its status.

The one seam where the daemon's exceptions become HTTP. An unforeseen error is logged with a number that the
caller gets too; never with its words, which could quote a message or a token.
"""

from __future__ import annotations

import logging
import secrets
import traceback
from collections.abc import Mapping
from typing import Any, Final

from aiohttp import web

from pacerelled import errors

log = logging.getLogger(__name__)

STATUSES: Final[tuple[tuple[type[errors.PacerelledError], int], ...]] = (
    (errors.InvalidArgument, 400),
    (errors.ConfigError, 400),
    (errors.TokenRefused, 401),
    (errors.UnknownAgent, 404),
    (errors.NoAgent, 404),
    (errors.UnknownMessage, 404),
    (errors.UnknownToken, 404),
    (errors.UnknownWebhook, 404),
    (errors.AgentError, 409),
    (errors.RelayRejected, 502),
    (errors.LinkError, 503),
    (errors.StoreError, 503),
    (errors.PaseoUnavailable, 503),
    (errors.PaseoError, 502),
)
"""The first class that fits decides; 500 where none does."""

_HTTP_ERRORS = {
    403: ("refused", "this socket serves the daemon's own user, and no browsers"),
    404: ("not_found", "there is no such call"),
    405: ("method_not_allowed", "this call has another method"),
    413: ("too_large", "the body is larger than this call takes"),
    503: ("stopping", "the daemon is stopping"),
}


def answer(body: Mapping[str, Any], *, status: int = 200) -> web.Response:
    return web.json_response(body, status=status)


def answer_error(request: web.Request, error: Exception) -> web.Response:
    """The answer to a call that ended with `error`."""
    if isinstance(error, errors.PacerelledError):
        status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
        body = error.as_dict()
        if isinstance(error, errors.InvalidArgument):
            body["argument"] = error.argument
        return answer({"error": body}, status=status)
    if isinstance(error, web.HTTPException):
        code, message = _HTTP_ERRORS.get(error.status, ("http", error.reason))
        result = answer({"error": {"code": code, "message": message, "hint": ""}}, status=error.status)
        if error.status == 413:
            result.force_close()  # the rest of the body is still on its way and nobody will read it
        return result
    return answer({"error": _unforeseen(request, error)}, status=500)


def _unforeseen(request: web.Request, error: Exception) -> dict[str, str]:
    number = secrets.token_hex(4)
    resource = request.match_info.route.resource
    log.error(
        "error %s in %s %s: %s\n%s",
        number,
        request.method,
        resource.canonical if resource else "an unknown call",
        type(error).__qualname__,
        "".join(traceback.format_tb(error.__traceback__)),
    )
    return {
        "code": "internal",
        "message": f"an error inside the daemon, number {number}",
        "hint": f"Search the daemon's log for {number} and report what it says there.",
    }
