"""One request and its response, contained: it can be ended from outside, and a client that is slow holds nobody up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import anyio
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pacerelled.errors import place_of

from .checks import Refused

log = logging.getLogger(__name__)

BODY_TIME: Final = 30.0  # seconds for a request to arrive whole
WRITE_TIME: Final = 30.0  # seconds that a client may read nothing while something is written to it
_LAST_WORD: Final = 1.0  # seconds for the end of a response that is cut short


class Exchange:
    """Wraps an ASGI call.

    `status` is what was answered, `left` whether the client went before the answer was whole, and `on_start` is called
    with the status just before it leaves.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scope = scope
        self.owner: str | None = None  # the id of the token that it came with
        self.status: int | None = None
        self.left = False
        self.on_start: Callable[[int], None] = lambda status: None
        self._inner_receive, self._inner_send = receive, send
        self._whole = False  # the response
        self._body_until: float | None = None
        self._life = anyio.CancelScope()
        self._end_with: Refused | None = None

    async def run(self, app: ASGIApp) -> None:
        """Serves it with `app`; whatever that raises becomes an answer."""
        refused: Refused | None = None
        try:
            with self._life:
                self._body_until = anyio.current_time() + BODY_TIME
                await app(self.scope, self._receive, self._send)
        except Refused as error:
            refused = error
        except Exception as error:
            log.error("An error in an HTTP request: %s", place_of(error))
            refused = Refused(500, "An error inside the daemon", "Its log says where")
        if self._life.cancelled_caught:
            refused = self._end_with
        if not self._whole and not self.left:
            await self._finish(refused)

    def end(self, reason: Refused) -> None:
        """Ends it at once: with `reason` as the answer, or by closing the stream that has begun."""
        self._end_with = reason
        self._life.cancel()

    async def _finish(self, refused: Refused | None) -> None:
        with anyio.move_on_after(_LAST_WORD) as limit:
            if self.status is None:
                refused = refused or Refused(500, "No answer came", "Try again")
                response = JSONResponse(refused.as_dict(), refused.status, refused.headers)
                await response(self.scope, self._receive, self._send)
            else:
                await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        if limit.cancelled_caught:
            self._abort()

    async def _receive(self) -> Message:
        if self._body_until is None:
            message = await self._inner_receive()
        else:
            with anyio.move_on_after(self._body_until - anyio.current_time()):
                message = await self._inner_receive()
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    self._body_until = None
                return self._noted(message)
            raise Refused(408, "The request did not arrive in time")
        return self._noted(message)

    def _noted(self, message: Message) -> Message:
        if message["type"] == "http.disconnect" and not self._whole:
            self.left = True
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.on_start(message["status"])
        with anyio.move_on_after(WRITE_TIME) as limit:
            await self._inner_send(message)
        if limit.cancelled_caught:
            log.warning("A client read nothing for %.0f s; its connection was ended", WRITE_TIME)
            self._abort()
        elif message["type"] == "http.response.body" and not message.get("more_body", False):
            self._whole = True

    def _abort(self) -> None:
        """What waits in the connection's buffer would keep it open for ever otherwise."""
        self.left = True
        self.scope.get("state", {}).get("abort", lambda: None)()
