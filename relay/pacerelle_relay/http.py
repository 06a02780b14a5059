"""HTTP matters that agents' and devices' calls share: tokens, bodies, errors, blobs."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable

from aiohttp import web

from .accounts import Agent, Device
from .blobs import read_name
from .errors import Malformed, NotFound, RelayError, TooLarge, Unauthorized
from .fields import Fields, parse_object
from .services import Services

log = logging.getLogger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns every failure into the JSON error of docs/relay.md."""
    try:
        return await handler(request)
    except RelayError as error:
        return _error_response(error)
    except web.HTTPRequestEntityTooLarge:
        return _error_response(TooLarge("the body is too large"))
    except web.HTTPException as error:
        refusal = RelayError(error.reason, code="http")
        refusal.status = error.status
        return _error_response(refusal, allow=error.headers.get("Allow"))
    except (web.RequestPayloadError, ConnectionError):
        return _error_response(Malformed("the body ended early"))
    except Exception:
        # The path and not the query: the WebSocket's token is there.
        log.exception("%s %s failed", request.method, request.path)
        return _error_response(RelayError("the relay failed: see its log", code="internal"))


def _error_response(error: RelayError, allow: str | None = None) -> web.Response:
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(error.retry_after))
    if allow is not None:
        headers["Allow"] = allow
    if error.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    return web.json_response(error.as_dict(), status=error.status, headers=headers)


def bearer_token(request: web.Request) -> str:
    """Raises Unauthorized."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise Unauthorized("the header `Authorization: Bearer <token>` is missing")
    return token.strip()


def query_token(request: web.Request) -> str:
    """Raises Unauthorized."""
    token = request.query.get("token")
    if not token:
        raise Unauthorized("the token is missing")
    return token


async def read_fields(request: web.Request) -> Fields:
    """The JSON object in the body; an empty body is an empty object. Raises Malformed, TooLarge."""
    return parse_object(await request.read() or b"{}")


async def receive_blob(services: Services, owner: Agent | Device, request: web.Request) -> web.Response:
    stored = await services.blobs.add(
        owner,
        request.content.iter_any(),
        name=read_name(request.headers.get("X-Blob-Name")),
        size=request.content_length,
        now=services.now(),
    )
    return web.json_response(stored, status=201)


async def send_blob(services: Services, reader: Agent | Device, request: web.Request) -> web.FileResponse:
    path = await services.blobs.path(reader, request.match_info["id"])
    if not path.exists():
        raise NotFound("there is no such blob", code="blob")
    headers = {"Content-Type": "application/octet-stream", "Cache-Control": "private"}
    return web.FileResponse(path, headers=headers)
