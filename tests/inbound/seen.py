"""What tests of this folder ask an agent about what came in."""

from __future__ import annotations

from typing import Any

from pacerelle_protocol.signal import safety_code
from pacerelled.agent.agent import Agent
from pacerelled.agent.wanted import Wanted
from tests.daemon.core import Core
from tests.daemon.human import Human, message_id
from tests.daemon.polling import until
from tests.daemon.scripted_relay import ScriptedRelay


def code(human: Human) -> str:
    return safety_code(human.signal.identity_key)


async def deliver(agent: Agent, relay: ScriptedRelay, *frames: str) -> None:
    """Returns when all of them are accepted or in quarantine."""
    await relay.push(*frames)
    wanted = {message_id(frame) for frame in frames}
    await until(lambda: wanted <= set(relay.acked), "the acknowledgements")


async def texts(agent: Agent) -> list[str]:
    """Of what a host would be handed, in order."""
    found, _ = await agent.inbox(limit=500)
    return [request.text for request in found if request.authorized]


async def reasons(agent: Agent) -> list[str]:
    return [row["reason"] for row in await agent.quarantine.select()]


async def device(agent: Agent, human: Human) -> dict[str, Any]:
    rows = await agent.devices.select()
    return next(row for row in rows if (row["user_id"], row["device_id"]) == (human.user, human.device))


async def problems(agent: Agent) -> list[str]:
    found = (await agent.status())["problems"]
    return [problem["code"] for problem in found]


async def events(core: Core) -> list[str]:
    return [event["type"] for event in (await core.hub.event_log.last(500, Wanted()))["events"]]


async def reborn(relay: ScriptedRelay, human: Human) -> Human:
    """The same device after a reinstallation: another identity key."""
    other = human.fork()
    other.start(relay)
    return other
