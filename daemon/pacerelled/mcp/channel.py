"""Claude Code's channels: requests pushed into a running session, and its permission prompts shown on the phone.

Facts from Claude Code's public "Channels reference" (a research preview, 2.1.80 and later): a server that declares the
capability sends `notifications/claude/channel` with `content` and `meta` (texts under names of letters, digits and
`_`); with the second capability it gets `…/permission_request` and answers with `…/permission`, `allow` or `deny`. A
prompt stays answerable in the terminal; the first answer counts.

A push is an announcement: the request waits in the inbox until a session takes it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import mcp_types as types
from mcp.server.session import ServerSession
from pydantic import ConfigDict

from pacerelled.agent.api import HubApi
from pacerelled.agent.asking import Asked, Asking
from pacerelled.agent.model import Request, Session
from pacerelled.errors import PacerelledError, place_of

log = logging.getLogger(__name__)

CAPABILITIES: dict[str, dict[str, Any]] = {"claude/channel": {}, "claude/channel/permission": {}}
PUSH = "notifications/claude/channel"
PROMPT = f"{PUSH}/permission_request"
VERDICT = f"{PUSH}/permission"
INSTRUCTIONS = """

A <channel source="pacerelle"> message announces a request, perhaps cut short: take it with wait_for_messages \
before you act on it."""

VALID = timedelta(minutes=10)  # that a prompt can be answered on the phone
MAX_TEXT = 2_000  # characters of a request that a push shows
MAX_SHOWN = 3_000  # characters of a prompt; a longer one is not relayed: nobody should allow what they cannot see
SETTLE = 0.2  # seconds that sessions which wait get to take a request first
_MAX_OPEN = 20  # prompts of a session at a time
_ROWS = 50


class PromptParams(types.NotificationParams):
    """What Claude Code asks. `request_id` is its own, short, and names the prompt in the answer.

    Its names have underscores, unlike those of the protocol itself.
    """

    model_config = ConfigDict(alias_generator=None)

    request_id: str
    tool_name: str
    description: str = ""
    input_preview: str = ""


class Channel:
    """Of one connection whose host's entry asks for it. Nothing happens before the host says `initialized`."""

    def __init__(self, hub: HubApi, session: Session) -> None:
        self._hub = hub
        self._session = session
        self._host: ServerSession | None = None
        self._pushed: set[str] = set()
        self._wake = asyncio.Event()
        self._answered = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unsubscribe: Callable[[], None] = lambda: None

    def start(self, host: ServerSession) -> None:
        if self._host is None:
            self._host = host
            self._unsubscribe = self._hub.subscribe(self._note)
            self._wake.set()
            self._spawn(self._push_all())

    async def aclose(self) -> None:
        self._unsubscribe()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def prompt(self, asked: PromptParams) -> None:
        """Shows a prompt on the phone of the person whose request this session works on, if there is one."""
        if self._host is not None and len(self._tasks) <= _MAX_OPEN:
            self._spawn(self._relay(asked))

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(_unless_it_fails(work), name="channel")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _note(self, agent_id: str, topic: str) -> None:
        if topic == "inbox":
            self._wake.set()
        elif topic == "widget":
            self._answered.set()
            self._answered = asyncio.Event()

    # -- requests ----------------------------------------------------------------------------------------------

    async def _push_all(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(SETTLE)
            self._wake.clear()
            try:
                await self._push_new()
            except PacerelledError as error:
                log.warning("A channel could not be told of requests: %s", error.code)

    async def _push_new(self) -> None:
        if self._session.waiting:
            return  # it is handed what there is
        waiting, _ = await self._hub.agent_for(self._session).inbox(state="pending", limit=_ROWS)
        for request in waiting:
            if request.message_id not in self._pushed and request.claim is None and _may_order(request):
                self._pushed.add(request.message_id)
                await self._send(PUSH, {"content": _content(request), "meta": _meta(request)})

    # -- prompts -----------------------------------------------------------------------------------------------

    async def _relay(self, prompt: PromptParams) -> None:
        agent = self._hub.agent_for(self._session)
        held, _ = await agent.inbox(state="pending", limit=_ROWS)
        ours = [r for r in held if r.claim is not None and r.claim.session == self._session.id and _may_order(r)]
        body = "\n\n".join(filter(None, (prompt.description, prompt.input_preview)))
        if not ours or len(body) > MAX_SHOWN:
            return  # it is answered in the terminal
        asking: Asking = self._hub.asking
        asked = await asking.ask_once(
            agent.agent_id,
            f"channel-{self._session.id}-{prompt.request_id}",
            _widget(prompt, body, self._session, datetime.now(UTC) + VALID),
            request=ours[-1],
        )
        async with asyncio.timeout(VALID.total_seconds()):
            verdict = await self._verdict(asking, asked)
        await self._send(VERDICT, {"request_id": prompt.request_id, "behavior": verdict})
        await asking.close(agent.agent_id, asked, "granted" if verdict == "allow" else "denied")

    async def _verdict(self, asking: Asking, asked: Asked) -> str:
        while True:
            answered = self._answered
            decision = await asking.decision(asked)
            if decision is not None:
                return decision
            await answered.wait()

    async def _send(self, method: str, params: dict[str, Any]) -> None:
        assert self._host is not None
        notification = types.Notification[dict[str, Any], str](method=method, params=params)
        await self._host.send_notification(cast(types.ServerNotification, notification))


def _may_order(request: Request) -> bool:
    """Whether its sender may tell a session what to do unasked: allowed, and proven, which nobody is in a group."""
    return request.authorized and request.encrypted and not request.group and request.kind != "widget_update"


def _content(request: Request) -> str:
    text = request.text if len(request.text) <= MAX_TEXT else request.text[:MAX_TEXT] + "…"
    files = f" and {len(request.attachments)} file(s)" if request.attachments else ""
    return f"A request{files} waits in Pacerelle; take it with wait_for_messages. Its sender wrote:\n{text}"


def _meta(request: Request) -> dict[str, str]:
    return {
        "message_id": request.message_id,
        "conversation_id": request.conversation_id,
        "sender": request.sender,
        "kind": request.kind,
        "verified": str(request.verified).lower(),
    }


def _widget(prompt: PromptParams, body: str, session: Session, until: datetime) -> dict[str, Any]:
    expires_at = until.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": "widget.standard",
        "v": 1,
        "id": f"permission-{session.id[:8]}-{prompt.request_id}"[:100],
        "kind": "permission",
        "expires_at": expires_at,
        "spec": {
            "title": f"Allow {prompt.tool_name}?"[:100],
            "body": f"{session.label} asks this.\n\n{body}",
            "scopes": ["once"],
            "authorization": {
                "action": prompt.tool_name,
                "resource": session.cwd or session.label,
                "parameters": {"request": prompt.request_id, "input": prompt.input_preview},
                "expires_at": expires_at,
                "session": {"id": session.id, "label": session.label[:100], "expires_at": expires_at},
                "revocable": True,
                "status": "requested",
            },
        },
    }


async def _unless_it_fails(work: Any) -> None:
    with suppress(TimeoutError):
        try:
            await work
        except PacerelledError as error:
            log.warning("A prompt could not be relayed: %s", error.code)
        except TimeoutError:
            raise
        except Exception as error:
            log.error("A channel failed: %s", place_of(error))
