"""Webhooks against receivers of every kind: what is sent, how often, in which order, and when it stops."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult

from pacerelled.agent.event_log import EventLog
from pacerelled.agent.wanted import Wanted
from pacerelled.errors import InvalidArgument, NotPossible, UnknownWebhook
from pacerelled.notify import posting
from pacerelled.notify import webhooks as webhooks_module
from pacerelled.notify.addresses import PrivateOnly, checked_address, is_private
from pacerelled.notify.posting import Poster
from pacerelled.notify.webhooks import Webhooks
from pacerelled.store import events, webhooks
from pacerelled.store.database import Store
from tests.notify.receiver import Receiver
from tests.notify.rig import daemon, until

DOCS = Path(__file__).parents[2] / "docs" / "webhooks.md"
ALL = Wanted()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(posting, "BACKOFF", (0.01,) * 5)
    monkeypatch.setattr(webhooks_module, "SKIP_EVERY", 0.01)


@pytest.fixture
async def hooks(store: Store, log: EventLog) -> AsyncIterator[Webhooks]:
    running = Webhooks(store, log)
    await running.start()
    yield running
    await running.stop()


async def happen(store: Store, *types: str, **data: Any) -> None:
    for each in types:
        await store.run(lambda tx, each=each: events.add(tx, "a1", each, **data))  # type: ignore[misc]


async def ended(hooks: Webhooks, webhook_id: str, count: int = 1) -> list[dict[str, Any]]:
    """The deliveries, once so many have come to an end."""

    async def look() -> list[dict[str, Any]]:
        found = [each for each in await hooks.deliveries(webhook_id, 100) if each["state"] != "pending"]
        return found if len(found) >= count else []

    return list(await until(look, "deliveries"))


async def test_a_delivery_is_signed_and_names_itself(store: Store, hooks: Webhooks, hook: Receiver) -> None:
    shown, secret = await hooks.add(hook.url, ALL)
    await happen(store, "message.received", message_id="m1")
    (delivery,) = await ended(hooks, shown["id"])
    (got,) = hook.got
    assert got.signed_with(secret)
    assert not got.signed_with(secret + "x")
    assert abs(time.time() - int(re.findall(r"t=(\d+)", got.headers["Pacerelle-Signature"])[0])) < 60
    assert got.headers["Pacerelle-Delivery"] == got.delivery["delivery_id"] == delivery["id"]
    assert got.headers["Pacerelle-Event-Id"] == got.events[0]["id"] == delivery["event_id"]
    assert set(got.delivery) == {"delivery_id", "sent_at", "events"}
    assert (delivery["state"], delivery["attempts"], delivery["code"]) == ("delivered", 1, 204)
    assert secret not in json.dumps([await hooks.select(), await hooks.deliveries(shown["id"], 10)])


@pytest.mark.parametrize(
    ("code", "attempts"),
    [
        (200, 1),
        (202, 1),
        (301, 1),
        (307, 1),
        (400, 1),
        (401, 1),
        (404, 1),
        (410, 1),
        (408, 6),
        (429, 6),
        (500, 6),
        (503, 6),
    ],
)
async def test_what_is_tried_again(store: Store, hooks: Webhooks, hook: Receiver, code: int, attempts: int) -> None:
    elsewhere = {"Location": hook.url + "/elsewhere"}
    hook.answer = lambda number: web.Response(status=code, headers=elsewhere)
    shown, _ = await hooks.add(hook.url, ALL)
    await happen(store, "x")
    (delivery,) = await ended(hooks, shown["id"])
    assert (delivery["state"], delivery["code"]) == ("delivered" if code < 300 else "failed", code)
    assert delivery["attempts"] == attempts == len(hook.got)
    assert len({got.headers["Pacerelle-Delivery"] for got in hook.got}) == 1
    assert len({json.dumps(got.events) for got in hook.got}) == 1


async def test_a_receiver_that_dies_or_is_slow_gets_it_again(
    store: Store, hooks: Webhooks, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(posting, "TIMEOUT", 0.3)
    hook.answer = lambda number: None if number == 0 else 204
    shown, _ = await hooks.add(hook.url, ALL)
    await happen(store, "x")
    (delivery,) = await ended(hooks, shown["id"])
    assert (delivery["state"], delivery["attempts"], delivery["error"]) == ("delivered", 2, None)
    hook.delay = 5.0
    await happen(store, "y")
    *_, slow = await ended(hooks, shown["id"], 2)
    assert (slow["state"], slow["attempts"], slow["code"], slow["error"]) == (
        "failed",
        6,
        None,
        "no answer within 0.3 s",
    )


async def test_nobody_listens(store: Store, hooks: Webhooks) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        shown, _ = await hooks.add(f"http://127.0.0.1:{taken.getsockname()[1]}/", ALL)
        await happen(store, "x")
        (delivery,) = await ended(hooks, shown["id"])
        assert (delivery["attempts"], delivery["code"]) == (6, None)
        assert "refused" in delivery["error"]
        assert not (await hooks.test(shown["id"]))["delivered"]


def test_pauses_grow_and_retry_after_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    failed = posting.Outcome(503)
    waits = [posting.pause(attempts, failed) or 0.0 for attempts in range(1, 6)]
    assert all(base <= wait <= base * 1.25 for base, wait in zip((1, 2, 4, 8, 16), waits, strict=True))
    assert posting.pause(6, failed) is None
    assert posting.pause(1, posting.Outcome(429, retry_after=30.0)) == 30.0
    assert posting.pause(1, posting.Outcome(204)) is None


async def test_order_holds_and_filters_do(store: Store, hooks: Webhooks, hook: Receiver) -> None:
    hook.answer = lambda number: 500 if number % 3 == 0 else 200
    await hooks.add(hook.url, Wanted(types=("reply.*",)))
    await happen(store, *(f"{'reply' if n % 2 else 'other'}.{n}" for n in range(20)))
    await until(lambda: hook.types[-1:] == ["reply.19"] and len(hook.got) > 10, "all")
    order = list(dict.fromkeys(hook.types))
    assert order == [f"reply.{n}" for n in range(1, 20, 2)]


async def test_what_comes_within_a_window_comes_together(store: Store, hooks: Webhooks, hook: Receiver) -> None:
    await hooks.add(hook.url, ALL, bundle_s=0.3)
    await happen(store, *"abc")
    await until(lambda: hook.got, "the delivery")
    assert hook.types == ["a", "b", "c"]
    assert hook.got[0].headers["Pacerelle-Event-Id"] == hook.got[0].events[-1]["id"]


async def test_five_failures_in_a_row_pause_it_and_what_it_misses_is_counted(
    store: Store, hooks: Webhooks, log: EventLog, hook: Receiver
) -> None:
    hook.answer = lambda number: 400
    shown, _ = await hooks.add(hook.url, Wanted(types=("x",)))
    await happen(store, *["x"] * 5)

    async def state() -> dict[str, Any]:
        return (await hooks.select())[0]

    async def paused() -> bool:
        return bool((await state())["state"] == "paused")

    await until(paused, "the pause")
    assert len(hook.got) == 5
    (told,) = (await log.last(10, Wanted(types=("webhook.paused",))))["events"]
    assert told["data"]["webhook_id"] == shown["id"]
    (warning,) = await hooks.warnings()
    assert f"Webhook {shown['id']} has paused: " in warning["message"]
    assert f"pacerelle webhook resume {shown['id']}" in warning["hint"]
    await happen(store, *["x", "y", "x", "x"])

    async def skipped() -> bool:
        return bool((await state())["skipped"] == 3)

    await until(skipped, "the count")
    hook.answer = lambda number: 200
    assert (await hooks.resume(shown["id"]))["state"] == "active"
    await happen(store, "x")
    await ended(hooks, shown["id"], 6)
    assert len(hook.got) == 6
    assert (await state())["failures"] == 0
    assert await hooks.warnings() == []


async def test_a_success_ends_the_row(store: Store, hooks: Webhooks, hook: Receiver) -> None:
    hook.answer = lambda number: 200 if number == 4 else 400
    shown, _ = await hooks.add(hook.url, ALL)
    await happen(store, *["x"] * 8)
    await ended(hooks, shown["id"], 8)
    assert (await hooks.select())[0]["state"] == "active"


async def test_pausing_by_hand_skips_and_resuming_goes_on(store: Store, hooks: Webhooks, hook: Receiver) -> None:
    shown, _ = await hooks.add(hook.url, ALL)
    assert (await hooks.pause(shown["id"]))["reason"] == "paused by hand"
    assert await hooks.warnings() == [], "it is meant"
    await happen(store, "a", "b")
    assert (await hooks.resume(shown["id"]))["skipped"] == 2
    await happen(store, "c")
    await until(lambda: hook.got, "the delivery")
    assert hook.types == ["c"]


async def test_a_delivery_under_way_outlives_a_restart(store: Store, log: EventLog, hook: Receiver) -> None:
    hook.answer = lambda number: 503
    first = Webhooks(store, log)
    shown, _ = await first.add(hook.url, ALL)
    await happen(store, "a", "b")
    await until(lambda: len(hook.got) >= 2, "two attempts")
    await first.stop()
    hook.answer = lambda number: 200
    second = Webhooks(store, log)
    await second.start()
    await ended(second, shown["id"], 2)
    await second.stop()
    ids = [got.headers["Pacerelle-Delivery"] for got in hook.got]
    assert hook.types == ["a"] * (len(ids) - 1) + ["b"]
    assert len(set(ids[:-1])) == 1


async def test_events_that_are_gone_are_said_to_be(store: Store, log: EventLog, hook: Receiver) -> None:
    first = Webhooks(store, log)
    await first.add(hook.url, ALL)
    await first.stop()
    await happen(store, *"abc")
    await store.run(lambda tx: tx.execute("DELETE FROM events WHERE seq < 3"))
    second = Webhooks(store, log)
    await second.start()
    await until(lambda: store.idle_for > 0.05, "a look")
    await happen(store, "d")
    await until(lambda: hook.got, "the delivery")
    await second.stop()
    assert (hook.types, hook.got[0].delivery["gap"]) == (["d"], True)


async def test_rotating_testing_removing(store: Store, hooks: Webhooks, hook: Receiver) -> None:
    shown, old = await hooks.add(hook.url, ALL)
    _, new = await hooks.rotate(shown["id"])
    found = await hooks.test(shown["id"])
    assert (found["delivered"], found["code"], hook.types) == (True, 204, ["webhook.test"])
    assert (hook.got[0].signed_with(new), hook.got[0].signed_with(old)) == (True, False)
    await hooks.remove(shown["id"])
    assert await hooks.select() == []
    assert await store.run(lambda tx: tx.one("SELECT count(*) FROM deliveries")[0]) == 0
    for call in (hooks.test, hooks.pause, hooks.resume, hooks.rotate, hooks.remove):
        with pytest.raises(UnknownWebhook):
            await call(shown["id"])


async def test_only_the_newest_deliveries_are_kept(
    store: Store, hooks: Webhooks, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhooks, "KEPT", 3)
    shown, _ = await hooks.add(hook.url, ALL)
    await happen(store, *"abcdef")
    await until(lambda: len(hook.got) == 6, "all")
    await until(lambda: store.idle_for > 0.05, "the last row")
    assert len(await hooks.deliveries(shown["id"], 100)) == 3


async def test_there_are_only_so_many(hooks: Webhooks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks_module, "MAX_WEBHOOKS", 1)
    await hooks.add("https://example.org/", ALL)
    with pytest.raises(NotPossible):
        await hooks.add("https://example.org/", ALL)


# Where they may go


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/a?b=c",
        "https://93.184.216.34:8443/",
        "http://127.0.0.1:1/",
        "http://[::1]:1/",
        "http://name/",
    ],
)
def test_addresses_that_are_taken(url: str) -> None:
    assert checked_address(url) == url


@pytest.mark.parametrize(
    "url",
    [
        "", "example.org", "ftp://example.org/", "http://", "https://ada:secret@example.org/", "https://ada@example.org/",
        "http://93.184.216.34/", "http://169.254.169.254/", "http://0.0.0.0/", "http://[2001:db8::1]/", "http://x:99999/",
        "https://example.org/#part", "https://example.org/a b", "https://" + "a" * 2000, "http://[::ffff:93.184.216.34]/",
    ],
)  # fmt: skip
def test_addresses_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        checked_address(url)
    assert caught.value.argument == "url"
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("address", "private"),
    [
        ("127.0.0.1", True), ("10.1.2.3", True), ("172.31.0.1", True), ("192.168.1.1", True), ("::1", True),
        ("fd00::1", True), ("::ffff:192.168.1.1", True), ("172.32.0.1", False), ("169.254.1.1", False),
        ("fe80::1", False), ("8.8.8.8", False), ("::", False), ("100.64.0.1", False), ("name", False),
    ],
)  # fmt: skip
def test_private_addresses(address: str, private: bool) -> None:
    assert is_private(address) is private


class Changing(AbstractResolver):
    """A name that leads somewhere else at each look-up."""

    looked_up = 0
    leads_to: tuple[tuple[str, ...], ...] = ()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        addresses = self.leads_to[min(Changing.looked_up, len(self.leads_to) - 1)]
        Changing.looked_up += 1
        return [
            ResolveResult(hostname=host, host=each, port=port, family=socket.AF_INET, proto=0, flags=0)
            for each in addresses
        ]

    async def close(self) -> None:
        pass


@pytest.mark.parametrize("second", [("93.184.216.34",), ("127.0.0.1", "93.184.216.34"), ("169.254.169.254",)])
async def test_a_name_that_leads_elsewhere_the_second_time_gets_nothing(
    store: Store, log: EventLog, hook: Receiver, second: tuple[str, ...]
) -> None:
    class Resolver(PrivateOnly):
        def __init__(self) -> None:
            super().__init__(Changing)

    Changing.looked_up, Changing.leads_to = 0, (("127.0.0.1",), second)
    hook.answer = lambda number: web.Response(status=200, headers={"Connection": "close"})
    hooks = Webhooks(store, log, Poster(Resolver))
    shown, _ = await hooks.add(hook.url.replace("127.0.0.1", "hook.example"), ALL)
    await happen(store, "a")
    await ended(hooks, shown["id"])
    await happen(store, "b")
    _, refused = await ended(hooks, shown["id"], 2)
    await hooks.stop()
    assert hook.types == ["a"]
    assert Changing.looked_up == 1 + refused["attempts"] == 7
    assert (refused["state"], refused["code"]) == ("failed", None)
    assert "private networks" in refused["error"]


# As a whole


async def test_the_command_line_and_a_daemon_that_is_killed(tmp_path: Path, hook: Receiver) -> None:
    async with daemon(tmp_path) as running:

        async def pacerelle(*arguments: str, code: int = 0) -> Any:
            command = [sys.executable, "-m", "pacerelle_cli", "--store-root", str(running.root), "--json", *arguments]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            out, _ = await asyncio.wait_for(process.communicate(), 60)
            assert process.returncode == code
            return json.loads(out)

        hook.answer = lambda number: 503
        made = await pacerelle("webhook", "add", hook.url, "--type", "allow.*", "--label", "x=y")
        assert made["webhook"]["wanted"]["labels"] == {"x": "y"}
        await pacerelle("webhook", "remove", made["webhook"]["id"])
        made = await pacerelle("webhook", "add", hook.url, "--type", "allow.*")
        await running.call("PUT", "/v1/agents/a1/allow/ada")
        await until(lambda: hook.got, "an attempt")
        await running.kill()
        hook.answer = lambda number: 200
        await running.start()

        async def delivered() -> bool:
            found = await running.get(f"/v1/webhooks/{made['webhook']['id']}/deliveries")
            return [each["state"] for each in found["deliveries"]] == ["delivered"]

        await until(delivered, "the delivery")
        assert {got.headers["Pacerelle-Delivery"] for got in hook.got} == {hook.got[0].headers["Pacerelle-Delivery"]}
        assert hook.got[-1].signed_with(made["secret"])
        assert (await pacerelle("webhook", "test", made["webhook"]["id"]))["delivered"]
        listed = json.dumps(await pacerelle("webhook", "list"))
        assert (made["webhook"]["id"] in listed, made["secret"] in listed) == (True, False)
        assert (await running.call("POST", "/v1/webhooks", {"url": "http://8.8.8.8/"}))[0] == 400
        assert (await running.call("POST", "/v1/webhooks/wh_0/test", {}))[0] == 404


async def test_the_receiver_in_the_docs(store: Store, hooks: Webhooks, tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL)
    (tmp_path / "receiver.py").write_text(code)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}/"
    shown, secret = await hooks.add(url, ALL)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", str(tmp_path / "receiver.py"),
        env={"SECRET": secret, "PORT": str(port), "PATH": os.environ["PATH"]}, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        assert b"listening" in await asyncio.wait_for(process.stdout.readline(), 30)
        await happen(store, "message.received", message_id="m1")
        assert await asyncio.wait_for(process.stdout.readline(), 30) == b"message.received {'message_id': 'm1'}\n"
        async with aiohttp.ClientSession() as stranger:
            for signature in ("", "t=1,v1=0", f"t={int(time.time())},v1={'0' * 64}"):
                async with stranger.post(url, data=b"{}", headers={"Pacerelle-Signature": signature}) as response:
                    assert response.status == 401
        await hooks.rotate(shown["id"])
        assert (await hooks.test(shown["id"]))["code"] == 401
    finally:
        process.kill()
        await process.communicate()
