"""`pacerelle release`, `inbox` and `hosts` as processes, and what they show of who works on what."""

from __future__ import annotations

import json

from tests.cli.world import World, home, world  # noqa: F401 - fixtures
from tests.control.hub_double import claimed_by, request


async def test_a_request_is_taken_away_from_its_host(world: World) -> None:  # noqa: F811
    agent = await world.agent()
    agent.requests.append(request(1, "build it", claim=claimed_by("codex 0.171 (codex-cli, /home/ada/site)")))
    shown = await world.run("inbox")
    assert "held by codex 0.171 (codex-cli, /home/ada/site)" in shown.out
    done = await world.run("release", "msg-1")
    assert (done.code, done.out) == (0, "msg-1 is free: the next host that waits gets it.\n")
    assert "held by" not in (await world.run("inbox")).out
    again = await world.run("release", "msg-1", "--json")
    assert json.loads(again.out)["request"]["claim"] is None
    missing = await world.run("release", "msg-9")
    assert missing.code == 1
    assert "no request msg-9" in missing.err
