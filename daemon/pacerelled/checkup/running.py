"""The checkup of a daemon that runs: also a round trip through the relay of each agent."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from pacerelled.agent.model import short
from pacerelled.errors import LinkError, RelayUnreachable
from pacerelled.store.database import Store

from .finding import Finding, failed
from .network import way_to
from .runtime import runtime
from .secrets import secrets
from .store import open_store

if TYPE_CHECKING:
    from pacerelled.agent.agent import Agent
    from pacerelled.agent.hub import Hub

PATIENCE = 20.0  # seconds for a round trip


async def examine(store: Store, hub: Hub) -> list[Finding]:
    """Takes at most about 30 seconds. An address that several agents have is looked at once."""
    agents = hub.agents()
    parts = await asyncio.gather(
        open_store(store),
        *(way_to(url) for url in dict.fromkeys(agent.row.base_url for agent in agents)),
        *(_round_trip(agent) for agent in agents if agent.login == "ok"),
    )
    return [runtime(), *secrets(await hub.keys.describe()), *(finding for part in parts for finding in part)]


async def _round_trip(agent: Agent) -> list[Finding]:
    started, about = time.monotonic(), short(agent.agent_id)
    try:
        async with asyncio.timeout(PATIENCE):
            await agent.round_trip()
    except TimeoutError:
        late = RelayUnreachable(
            f"No answer within {PATIENCE:g} s", hint="Check the network. It is tried again by itself."
        )
        return [failed("round trip", late, about)]
    except LinkError as error:
        return [failed("round trip", error, about)]
    took = (time.monotonic() - started) * 1000
    return [Finding("round trip", "ok", f"published, connected, a ping answered: {took:.0f} ms", about=about)]
