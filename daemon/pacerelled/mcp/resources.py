"""What can be looked at, and telling hosts of both protocol eras that they changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from mcp.server import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp_types import Resource, ResourceTemplate, SubscriptionsListenRequestParams, SubscriptionsListenResult

from pacerelled.agent.api import AgentApi, HubApi
from pacerelled.agent.model import Session
from pacerelled.errors import AgentError

from .results import NOTICE
from .sizes import MESSAGE_TEMPLATE, Room, page, parse_message_uri, shown

if TYPE_CHECKING:
    from .paseo.resources import CodingResources

ListChanged = ToolsListChanged | PromptsListChanged | ResourcesListChanged

CURRENT_CONVERSATION = "conversation://current"
PENDING_WIDGET = "widget://pending"
PENDING_INBOX = "inbox://pending"
MIME = "application/json"

RESOURCES = {
    resource.uri: resource
    for resource in (
        Resource(
            uri=CURRENT_CONVERSATION,
            name="current_conversation",
            title="Current conversation",
            description="The conversation of the newest request: its id, person and device.",
            mime_type=MIME,
        ),
        Resource(
            uri=PENDING_WIDGET,
            name="pending_widget",
            title="Pending widget response",
            description="The newest answer to a widget that is not processed yet.",
            mime_type=MIME,
        ),
        Resource(
            uri=PENDING_INBOX,
            name="pending_inbox",
            title="Pending requests",
            description="The requests that are not processed yet, oldest first, and which session works on which.",
            mime_type=MIME,
        ),
    )
}
TEMPLATES = [
    ResourceTemplate(
        uri_template=MESSAGE_TEMPLATE,
        name="message",
        title="A message",
        description="A request or reply of any length, in pages: go on with start = `next` until that is null.",
        mime_type=MIME,
    )
]

_TOPICS = {"conversation": CURRENT_CONVERSATION, "widget": PENDING_WIDGET, "inbox": PENDING_INBOX}


def is_known(uri: str) -> bool:
    return uri in RESOURCES or parse_message_uri(uri) is not None


async def read(agent: AgentApi, session: Session, uri: str) -> dict[str, Any]:
    """The content of one of `RESOURCES`, or of a message. Raises as `agent` does."""
    if uri == CURRENT_CONVERSATION:
        return {"conversation": await agent.current_conversation(), "notice": NOTICE}
    if uri == PENDING_WIDGET:
        request = await agent.pending_widget()
        return {"widget_response": shown(request) if request else None, "notice": NOTICE}
    if uri == PENDING_INBOX:
        requests, more = await agent.pending(session=session, fits=Room().fits)
        return {"requests": [shown(request) for request in requests], "has_more": more, "notice": NOTICE}
    message = parse_message_uri(uri)
    assert message is not None
    return {**page(await agent.message(message[0]), message[1]), "notice": NOTICE}


class Updates:
    """Tells one connection's host which of its resources changed. Costs nothing until a host subscribes.

    Changes that come faster than the host reads are told once.
    """

    def __init__(self, hub: HubApi, session: Session, coding: CodingResources | None = None) -> None:
        self._hub = hub
        self._coding = coding
        self._listed: set[ListChanged] = set()  # lists that are others than before
        self._session = session
        self._changed: set[str] = set()
        self._wake = asyncio.Event()
        self._handshake: dict[str, ServerSession] = {}  # resources/subscribe
        self._bus = InMemorySubscriptionBus()  # subscriptions/listen
        self._listen = ListenHandler(self._bus)
        self._task: asyncio.Task[None] | None = None
        self._unsubscribe: Callable[[], None] = lambda: None

    def subscribe(self, uri: str, host: ServerSession) -> None:
        self._handshake[uri] = host
        self._start(uri)

    def unsubscribe(self, uri: str) -> None:
        self._handshake.pop(uri, None)

    async def listen(
        self, context: ServerRequestContext[Any], params: SubscriptionsListenRequestParams, *, replaced: bool
    ) -> SubscriptionsListenResult:
        """`replaced`: the host knows the lists of another daemon."""
        self._start(*RESOURCES)
        if replaced:
            self._listed |= {ToolsListChanged(), PromptsListChanged(), ResourcesListChanged()}
            self._wake.set()
        return await self._listen(context, params)

    async def aclose(self) -> None:
        self._unsubscribe()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def _start(self, *uris: str) -> None:
        if self._task is None:
            self._unsubscribe = self._hub.subscribe(self._note)
            self._task = asyncio.create_task(self._tell())
        if self._session.in_flight is not None:  # nobody noted what changed while the host was without a daemon
            self._changed.update(uris)
            self._wake.set()

    def _note(self, agent_id: str, topic: str) -> None:
        if topic == "coding" and self._coding is not None:
            self._changed.update(self._coding.changed(agent_id))
            if self._coding.came_or_went():
                self._listed.add(ResourcesListChanged())
            self._wake.set()
            return
        uri = _TOPICS.get(topic)
        if uri is not None and self._is_ours(agent_id):
            self._changed.add(uri)
            self._wake.set()

    def _is_ours(self, agent_id: str) -> bool:
        try:
            return self._hub.agent_for(self._session).agent_id == agent_id
        except AgentError:
            return False

    async def _tell(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            changed, self._changed = self._changed, set()
            listed, self._listed = self._listed, set()
            for change in listed:
                await self._bus.publish(change)
            if ResourcesListChanged() in listed:
                for subscriber in set(self._handshake.values()):
                    await subscriber.send_resource_list_changed()
            for uri in sorted(changed):
                await self._bus.publish(ResourceUpdated(uri))
                if host := self._handshake.get(uri):
                    await host.send_resource_updated(uri)
