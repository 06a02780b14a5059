"""Who follows the log misses nothing and sees nothing twice, whatever happens to the daemon meanwhile."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.notify.rig import Daemon, daemon, until


async def stream(running: Daemon, last_id: str | None, **query: str) -> AsyncIterator[tuple[str, str | None, Any]]:
    """(id, type, data) of each message of a stream of server-sent events, until it ends."""
    headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
    timeout = aiohttp.ClientTimeout(total=None)
    async with running.control() as control:
        async with control.get("/v1/events", headers=headers, params=query, timeout=timeout) as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            fields: dict[str, str] = {}
            async for line in response.content:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                    continue
                yield fields["id"], fields.get("event"), json.loads(fields["data"]) if "data" in fields else None
                fields = {}


class Follower:
    """Follows by stream; after each break it goes on with the last id that it saw."""

    def __init__(self, running: Daemon) -> None:
        self.events: list[dict[str, Any]] = []
        self.breaks = 0
        self._daemon = running
        self._last: str | None = None

    async def run(self) -> None:
        while True:
            try:
                async for id_, kind, event in stream(self._daemon, self._last, cursor="start"):
                    assert kind != "gap"
                    self._last = id_
                    if event is not None:
                        self.events.append(event)
            except (aiohttp.ClientError, ConnectionError):
                pass
            self.breaks += 1
            await asyncio.sleep(0.02)


async def write_events(running: Daemon, enough: Callable[[], bool]) -> None:
    """Makes events as fast as they are answered, also after a daemon that went away in between."""
    number = 0
    while not enough():
        number += 1
        try:
            async with running.control() as control:
                while not enough():
                    number += 1
                    method = control.put if number % 2 else control.delete
                    async with method("/v1/agents/a1/allow/ada"):
                        pass
        except (aiohttp.ClientError, ConnectionError):
            await asyncio.sleep(0.02)


async def followed_over_kills(home: Path, total: int, kills: int) -> None:
    async with daemon(home, "retention_events = 1000000\n") as running:
        follower = Follower(running)
        following = asyncio.create_task(follower.run())
        writing = asyncio.create_task(write_events(running, lambda: len(follower.events) >= total))
        for count in range(kills):
            await until(lambda goal=total * count // kills: len(follower.events) >= goal, "events", 120)  # type: ignore[misc]
            await running.kill()
            await running.start()
        await writing
        newest = (await running.events())[-1]["seq"]
        await until(lambda: follower.events[-1]["seq"] >= newest, "the last event")
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        assert [event["seq"] for event in follower.events] == list(range(1, len(follower.events) + 1))
        assert len({event["epoch"] for event in follower.events}) == 1
        assert follower.breaks >= kills
        # Each change of the list is one event: what is there now is what the last of them says.
        on = (await running.get("/v1/agents/a1/allow"))["people"] == ["ada"]
        assert (follower.events[-1]["type"] == "allow.added") == on


async def test_a_follower_misses_nothing_over_kills(tmp_path: Path) -> None:
    await followed_over_kills(tmp_path, total=200, kills=3)


@pytest.mark.long
async def test_a_follower_misses_nothing_over_10_000_events_and_50_kills(tmp_path: Path) -> None:
    await followed_over_kills(tmp_path, total=10_000, kills=50)


async def test_a_stream_of_what_is_wanted_goes_on_past_what_is_not(tmp_path: Path) -> None:
    async with daemon(tmp_path) as running:
        await running.call("PUT", "/v1/agents/a1/allow/ada")
        found: list[tuple[str, str | None, Any]] = []

        async def read() -> None:
            async for message in stream(running, None, cursor="start", type="allow.removed"):
                found.append(message)

        reading = asyncio.create_task(read())
        await until(lambda: found, "the stream's first id")
        assert found[0][1:] == (None, None), "an id alone, past what was not wanted"
        await running.call("DELETE", "/v1/agents/a1/allow/ada")
        await until(lambda: any(kind == "allow.removed" for _, kind, _ in found), "the event")
        await running.stop()
        await asyncio.wait_for(reading, 10)


async def test_a_stream_from_another_log_begins_with_the_state(tmp_path: Path) -> None:
    async with daemon(tmp_path) as running:
        messages = stream(running, "000000000000:1")
        _, kind, state = await anext(messages)
        assert (kind, [agent["agent_id"] for agent in state["agents"]]) == ("gap", ["a1"])
        id_, kind, nothing = await anext(messages)
        assert (kind, nothing) == (None, None)
        await messages.aclose()
        assert (await running.get("/v1/events", cursor=id_))["gap"] is False
        assert (await running.call("GET", "/v1/events", cursor="5"))[0] == 400


async def test_the_command_line_follows_over_a_restart(tmp_path: Path) -> None:
    async with daemon(tmp_path) as running:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "pacerelle_cli", "--store-root", str(running.root),
            "events", "-f", "--json", "--type", "allow.*",
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        await running.call("PUT", "/v1/agents/a1/allow/ada")
        first = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
        await running.kill()
        await running.start()
        await running.call("DELETE", "/v1/agents/a1/allow/ada")
        second = json.loads(await asyncio.wait_for(process.stdout.readline(), 30))
        process.kill()
        await process.wait()
        assert [first["type"], second["type"]] == ["allow.added", "allow.removed"]
