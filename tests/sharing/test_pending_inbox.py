"""inbox://pending: what waits and who works on it, and being told of every change, in both eras."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import mcp_types
import pytest
from mcp.client.subscriptions import ResourceUpdated, listen

from mcp import Client
from tests.daemon.polling import until

from .machine import ERAS, Machine, call

URI = "inbox://pending"
both_eras = pytest.mark.parametrize("era", ERAS)


async def inbox(host: Client) -> list[tuple[str, str | None, bool]]:
    """Message id, who works on it, and whether that is this session."""
    (content,) = (await host.read_resource(URI)).contents
    assert isinstance(content, mcp_types.TextResourceContents)
    parsed = json.loads(content.text)
    assert parsed["notice"]
    rows = [(row["message_id"], row["claim"]) for row in parsed["requests"]]
    return [(name, claim["label"] if claim else None, bool(claim and claim["mine"])) for name, claim in rows]


@asynccontextmanager
async def subscribed(machine: Machine, era: str) -> AsyncIterator[tuple[Client, Callable[[], int]]]:
    """A host, and how often it was told."""
    told: list[str] = []

    async def note(message: Any) -> None:
        if isinstance(message, mcp_types.ResourceUpdatedNotification):
            told.append(str(message.params.uri))

    async with machine.client(era, machine.hello(cwd="/a"), message_handler=note) as host:
        if era == "legacy":
            await host.subscribe_resource(URI)
            yield host, lambda: len(told)
            return
        async with listen(host.session, resource_subscriptions=[URI]) as changes:

            async def follow() -> None:
                async for change in changes:
                    assert change == ResourceUpdated(URI)
                    told.append(URI)

            task = asyncio.create_task(follow())
            yield host, lambda: len(told)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
    assert set(told) <= {URI}


@pytest.mark.filterwarnings("ignore:resources/:mcp.MCPDeprecationWarning")
@both_eras
async def test_every_change_is_told(machine: Machine, era: str) -> None:
    async with subscribed(machine, era) as (host, told), machine.client(era, machine.hello(cwd="/b")) as other:

        async def changed(count: int) -> None:
            await until(lambda: told() > count, "being told")

        async def after(what: Any) -> list[tuple[str, str | None, bool]]:
            count = told()
            await what
            await changed(count)
            return await inbox(host)

        a, b = "codex 0.171 (/a)", "codex 0.171 (/b)"
        assert await inbox(host) == []
        assert await after(machine.ask("m")) == [("m", None, False)]
        assert await after(call(other, "wait_for_messages")) == [("m", b, False)]
        assert await after(call(other, "wait_for_messages", timeoutMs=0, release=["m"])) == [("m", None, False)]
        assert await after(call(host, "wait_for_messages")) == [("m", a, True)]
        take = call(other, "save_checkpoint", sourceMessageId="m", summary="s", nextAction="n", takeOver=True)
        assert await after(take) == [("m", b, False)]
        assert await after(machine.agent.release("m")) == [("m", None, False)]
        assert await after(machine.agent.mark_processed(machine.core.session(), "m")) == []


@pytest.mark.filterwarnings("ignore:resources/:mcp.MCPDeprecationWarning")
@both_eras
async def test_claims_that_end_by_themselves_are_told_too(machine: Machine, era: str) -> None:
    async with subscribed(machine, era) as (host, told):
        await machine.ask("m")
        gone = machine.core.session(pid=2**22 + 1)  # no such process
        await machine.take(gone)
        await until(lambda: told() >= 1, "being told")
        machine.core.hub.close_session(gone)
        await until(lambda: _is_free(host), "the end of the claim")


async def _is_free(host: Client) -> bool:
    return await inbox(host) == [("m", None, False)]


@both_eras
async def test_what_is_not_authorized_is_not_in_it(machine: Machine, era: str) -> None:
    await machine.ask("m")
    async with machine.client(era) as host:
        await machine.agent.allow_list.add("somebody else")
        assert await inbox(host) == []
        await machine.agent.allow_list.add("ada")
        assert [name for name, _, _ in await inbox(host)] == ["m"]


@both_eras
async def test_hosts_are_promised_to_be_told_of_other_lists(machine: Machine, era: str) -> None:
    async with machine.client("legacy" if era == "legacy" else "auto") as host:
        assert (host.protocol_version == ERAS[1]) == (era == ERAS[1])
        able = host.server_capabilities
        assert able.resources is not None
        assert able.tools is not None
        assert able.prompts is not None
        assert able.resources.subscribe
        if era == "legacy":
            assert able.resources.list_changed
            assert able.tools.list_changed
            assert able.prompts.list_changed
