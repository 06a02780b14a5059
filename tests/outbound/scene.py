"""An agent that people have written to, a relay that can be told to misbehave, and what tests do with them."""

from __future__ import annotations

import uuid
from typing import Any

from pacerelle_protocol.groups import GroupKey, seal_group
from pacerelle_protocol.payload import WidgetResponse, WidgetUpdate, encode_widget_response, encode_widget_update
from pacerelled.agent.agent import Agent
from pacerelled.agent.model import Reply, Request, Session
from pacerelled.agent.wanted import Wanted
from tests.daemon.core import Core
from tests.daemon.human import Human, message_id
from tests.daemon.polling import until
from tests.daemon.scripted_relay import ScriptedRelay

WIDGET: dict[str, Any] = {"type": "widget.standard", "v": 1, "id": "w1", "kind": "confirm", "spec": {"title": "Go?"}}


class Scene:
    """`ada` has written in conversation c1, and the agent can be asked to answer `question`."""

    question = "question of ada"

    def __init__(self, core: Core, relay: ScriptedRelay) -> None:
        self.core = core
        self.relay = relay
        self.agent: Agent
        self.session: Session
        self.ada: Human

    async def begin(self) -> None:
        self.agent = await self.core.agent(self.relay.url)
        self.session = self.core.session()
        self.ada = await self.meet("ada", "c1")

    async def meet(self, user: str, conversation: str) -> Human:
        """A person who has asked something: `question of <user>`."""
        human = await Human.meet(self.relay, user=user, conversation=conversation)
        await self.deliver(human.frame("question", id=f"question of {user}"))
        return human

    async def restart(self) -> None:
        """Another daemon on the same store."""
        await self.core.restart()
        self.agent = self.core.hub.agent("a1")
        self.agent.set_token("token")
        self.session = self.core.session()

    async def deliver(self, *frames: str) -> None:
        """Until the agent has acknowledged them."""
        await self.relay.push(*frames)
        wanted = {message_id(frame) for frame in frames}
        await until(lambda: wanted <= set(self.relay.acked), "the acknowledgements")

    async def send(self, text: str = "answer", source: str = question, **more: Any) -> Reply:
        return await self.agent.send_message(self.session, text=text, source_message_id=source, **more)

    async def show(self, widget: dict[str, Any] | str = WIDGET, source: str = question, **more: Any) -> Reply:
        return await self.agent.send_widget(self.session, widget=widget, source_message_id=source, **more)

    async def submitted(self, *replies: Reply) -> None:
        for reply in replies:
            assert (await self.agent.wait_for_reply(reply.message_id, timeout=30)).state == "submitted"

    async def in_the_end(self, state: str, *replies: Reply) -> None:
        """Also where it is uncertain in between."""
        for reply in replies:

            async def is_so(reply: Reply = reply) -> bool:
                return await self.state(reply) == state

            await until(is_so, state)

    async def make_uncertain(self, *replies: Reply) -> None:
        """Their frames reach the relay, the proof does not; then the connection is back."""
        before = self.relay.answers_pings
        self.relay.answers_pings = False
        sent = {reply.message_id for reply in replies}
        await until(lambda: sent <= {m["id"] for m in self.relay.messages}, "the frames")
        await self.relay.drop()
        for reply in replies:
            assert (await self.agent.wait_for_reply(reply.message_id, timeout=30)).state == "uncertain"
        self.relay.answers_pings = before
        await self.relay.connected()

    async def state(self, reply: Reply) -> str:
        return (await self.agent.wait_for_reply(reply.message_id, timeout=0)).state

    async def offline(self) -> None:
        """No connection, and none to be had."""
        self.relay.refuse["/ws/agent"] = 500
        await self.relay.drop()

    def online(self) -> None:
        del self.relay.refuse["/ws/agent"]

    def said(self, human: Human) -> list[str]:
        """The texts that the relay has for this person, in the order in which they came, each message once."""
        mine = {m["id"]: m for m in self.relay.messages if m["to"] == human.user}
        return [human.read(m).text for m in mine.values()]

    async def request(self, message: str) -> Request:
        found, _ = await self.agent.inbox(state="all")
        return next(r for r in found if r.message_id == message)

    async def events(self, kind: str) -> list[dict[str, Any]]:
        found = await self.core.hub.event_log.last(500, Wanted())
        return [e["data"] for e in found["events"] if e["type"] == kind]


def response(human: Human, ref: str, value: Any = True, *, group: GroupKey | None = None, **changes: Any) -> str:
    """The frame of a person's answer to the widget `ref`."""
    body = encode_widget_response(WidgetResponse(str(uuid.uuid4()), ref, value))
    return _frame(human, body, group, changes)


def update(human: Human, ref: str, patch: dict[str, Any], **changes: Any) -> str:
    return _frame(human, encode_widget_update(WidgetUpdate(str(uuid.uuid4()), ref, patch)), None, changes)


def _frame(human: Human, body: str, group: GroupKey | None, changes: dict[str, Any]) -> str:
    if group is None:
        return human.envelope(human.encrypt(body), **changes)
    return human.envelope(seal_group(body.encode(), group), **{"to": f"group:{group.conversation_id}"} | changes)
