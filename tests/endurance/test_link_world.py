"""What keeps the daemon from its relay in the world: it is ready all the same, says why, and heals by itself."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pacerelle_phone.device import Device
from pacerelle_phone.model import PairedAgent
from pacerelled.link import failures
from tests.daemon.process import Daemon
from tests.e2e.stack import Host, Stack, until
from tests.faults.proxy import FaultProxy

from .bent import World, bent_daemon, pacerelle, problems, restart
from .http_proxy import HttpProxy
from .tls import Authority, TlsFront

QUICK = "reconnect_max = 0.3\n"
HOST = "relay.test"


@pytest.fixture
async def person(machine: Stack) -> tuple[Device, PairedAgent]:
    machine.configure(QUICK)
    phone = await machine.phone("ada")
    return phone, await phone.create_agent("home")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    folder = tmp_path / "certificates"
    folder.mkdir()
    return Authority(folder)


@pytest.fixture
async def front(machine: Stack, authority: Authority) -> AsyncIterator[TlsFront]:
    """The relay behind TLS, as `https://relay.test`."""
    async with TlsFront(authority.certificate(HOST), machine.relay.port).running() as running:
        machine.agents_url = f"https://{HOST}:{running.port}"
        yield running


async def problem(daemon: Daemon, *words: str, code: str = "relay_offline") -> dict[str, Any]:
    """The daemon answers over its local sockets, and says this of the relay."""

    async def told() -> dict[str, Any] | None:
        found = problems(await daemon.status()).get(code)
        return found if found and all(word in found["message"] for word in words) else None

    found: dict[str, Any] = await until(told, f"a problem with {words}")
    return found


async def works(host: Host, person: tuple[Device, PairedAgent]) -> None:
    """A message goes there and back."""
    phone, agent = person
    await host.connected()
    sent = await phone.send(agent.agent_id, "hello")
    [request] = (await host.tool("wait_for_messages", timeoutMs=30_000))["messages"]
    await host.tool("send_message", text="re: hello", sourceMessageId=request["message_id"])
    await host.tool("mark_processed", messageId=request["message_id"])
    assert (await phone.wait_reply(sent, 30)).text == "re: hello"


async def queued(host: Host, person: tuple[Device, PairedAgent]) -> None:
    """The tools work meanwhile."""
    assert (await host.tool("get_status"))["connection"] in ("connecting", "reconnecting")
    assert (await host.tool("wait_for_messages", timeoutMs=0))["messages"] == []


# -- names and routes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dns", "words"),
    [("fail", ("its name is not found", "Temporary failure")), ("hang", ("no answer in time",))],
)
async def test_name_servers_that_fail_or_hang(
    machine: Stack, world: World, person: tuple[Device, PairedAgent], dns: str, words: tuple[str, ...]
) -> None:
    machine.agents_url = f"http://{HOST}:{machine.relay.port}"
    world.bend(
        dns=dns, set={"pacerelled.link.rest.TIMEOUT": {"total": 1.0}, "pacerelled.link.connection.OPEN_TIMEOUT": 1.0}
    )
    async with bent_daemon(machine, world) as daemon:
        host = await machine.host(person[1])
        await problem(daemon, *words)
        await queued(host, person)
        code, _ = await pacerelle(machine, "status")
        assert code == 5
        world.bend(dns="ok")
        await works(host, person)
        assert (await pacerelle(machine, "status"))[0] == 0
        # And once more while it is stopping: a thread that hangs in the resolver does not keep the process.
        world.bend(dns=dns)
        await restart(daemon, world)
        await machine.host(person[1])
        await asyncio.sleep(0.3)
        daemon.signal()
        assert await daemon.ended() == 0


def no_network() -> str | None:
    if shutil.which("unshare") is None:
        return "there is no unshare here"
    done = subprocess.run(["unshare", "-Urn", "true"], capture_output=True, timeout=30, check=False)
    return (done.stderr.decode() or "unshare makes no network here") if done.returncode else None


NO_NETWORK = no_network()


@pytest.mark.skipif(NO_NETWORK is not None, reason=str(NO_NETWORK))
async def test_no_route(machine: Stack, world: World, person: tuple[Device, PairedAgent]) -> None:
    async with bent_daemon(machine, world, before=("unshare", "-Urn")) as daemon:
        host = await machine.host(person[1])
        await problem(daemon, "Network is unreachable")
        await queued(host, person)


# -- TLS -------------------------------------------------------------------------------------------------------

LONG_AGO, YESTERDAY = datetime.now(UTC) - timedelta(days=900), datetime.now(UTC) - timedelta(days=1)
TOMORROW, LATER = datetime.now(UTC) + timedelta(days=1), datetime.now(UTC) + timedelta(days=900)


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        ({"host": HOST, "begin": LONG_AGO, "end": YESTERDAY}, ("certificate has expired", "clock")),
        ({"host": HOST, "begin": TOMORROW, "end": LATER}, ("certificate is not yet valid", "clock")),
        ({"host": "other.test"}, ("not accepted", "ostname mismatch")),
        (None, ("not accepted", "unable to get local issuer")),
    ],
    ids=["expired", "not yet valid", "of another host", "of nobody known"],
)
async def test_certificates_that_are_not_accepted(
    machine: Stack,
    world: World,
    person: tuple[Device, PairedAgent],
    front: TlsFront,
    authority: Authority,
    tmp_path: Path,
    certificate: dict[str, Any] | None,
    words: tuple[str, ...],
) -> None:
    good = authority.certificate(HOST)
    if certificate is None:
        (tmp_path / "other").mkdir()
        front.use(Authority(tmp_path / "other").certificate(HOST))
    else:
        front.use(authority.certificate(**certificate))
    async with bent_daemon(machine, world, env={"SSL_CERT_FILE": str(authority.path)}) as daemon:
        host = await machine.host(person[1])
        found = await problem(daemon, *words)
        assert "clock" in found["hint"]
        assert f"{datetime.now(UTC):%Y-%m-%d}" in found["hint"]
        await queued(host, person)
        front.use(good)
        await works(host, person)


async def test_a_relay_without_tls_where_tls_is_expected(
    machine: Stack, world: World, person: tuple[Device, PairedAgent]
) -> None:
    machine.agents_url = f"https://{HOST}:{machine.relay.port}"
    async with bent_daemon(machine, world) as daemon:
        await machine.host(person[1])
        await problem(daemon, "TLS failed")


# -- proxies ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "ALL_PROXY", pytest.param("https_proxy", marks=pytest.mark.long)])
async def test_all_traffic_goes_through_the_proxy(
    machine: Stack,
    world: World,
    person: tuple[Device, PairedAgent],
    front: TlsFront,
    authority: Authority,
    variable: str,
) -> None:
    world.bend(dns="fail")  # names are the proxy's business
    async with HttpProxy({HOST: front.port}, login="me:secret%").running() as proxy:
        env = {"SSL_CERT_FILE": str(authority.path), variable: f"http://me:secret%25@127.0.0.1:{proxy.port}"}
        async with bent_daemon(machine, world, env=env) as daemon:
            host = await machine.host(person[1])
            await works(host, person)
            assert set(proxy.asked) == {f"{HOST}:{front.port}"}
            assert len(proxy.asked) >= 3, "two calls for the prekeys, and the WebSocket"
            daemon.signal()
            await daemon.ended()
            assert "secret" not in await daemon.errors()


async def test_no_proxy_where_the_environment_says_so(
    machine: Stack, world: World, person: tuple[Device, PairedAgent], front: TlsFront, authority: Authority
) -> None:
    async with HttpProxy({}).running() as proxy:
        env = {
            "SSL_CERT_FILE": str(authority.path),
            "HTTPS_PROXY": f"http://127.0.0.1:{proxy.port}",
            "NO_PROXY": "example.org,.test",
        }
        async with bent_daemon(machine, world, env=env):
            await works(await machine.host(person[1]), person)
        assert proxy.asked == []


@pytest.mark.parametrize(
    ("address", "code", "words"),
    [
        ("http://127.0.0.1:{port}", "relay_offline", ("proxy wants a name and a password",)),
        ("http://127.0.0.1:1", "relay_offline", ("proxy does not answer", "refused")),
        ("socks5://127.0.0.1:{port}", "relay_offline", ("speaks socks5, which is not supported",)),
        ("http://:99999", "relay_offline", ("proxy that the environment names is no address",)),
    ],
)
async def test_a_proxy_that_cannot_be_used_is_named(
    machine: Stack,
    world: World,
    person: tuple[Device, PairedAgent],
    front: TlsFront,
    authority: Authority,
    address: str,
    code: str,
    words: tuple[str, ...],
) -> None:
    async with HttpProxy({HOST: front.port}, login="me:secret").running() as proxy:
        env = {"SSL_CERT_FILE": str(authority.path), "HTTPS_PROXY": address.format(port=proxy.port)}
        async with bent_daemon(machine, world, env=env) as daemon:
            host = await machine.host(person[1])
            found = await problem(daemon, *words, code=code)
            assert "PROXY" in found["hint"]
            assert (await host.tool("get_status"))["login"] == "ok", "a proxy's refusal is not the relay's"


# -- logins ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["command line", "host", "keyring"])
async def test_a_refused_token_ends_the_attempts_until_there_is_a_new_one(
    machine: Stack, world: World, person: tuple[Device, PairedAgent], way: str
) -> None:
    _, agent = person
    world.bend(set={"pacerelled.agent.logins.LOOK": 0.1})
    env = {"DBUS_SESSION_BUS_ADDRESS": "unix:path=/nowhere", "PACERELLED_KEYRING": "on"}
    async with FaultProxy(machine.relay_url) as relay:
        machine.agents_url = relay.url
        async with bent_daemon(machine, world, env=env) as daemon:
            code, answer = await pacerelle(
                machine, "agent", "add", agent.agent_id, "--token-stdin", "--base-url", relay.url, stdin=b"wrong\n"
            )
            assert code == 4, answer
            await problem(daemon, "refused the token", code="token_refused")
            code, status = await pacerelle(machine, "status")
            assert (code, status["agents"][0]["login"]) == (4, "refused")
            attempts = relay.accepted
            await asyncio.sleep(1.0)  # of 0.3 at most between attempts
            assert relay.accepted == attempts
            if way == "command line":
                token = f"{agent.agent_token}\n".encode()
                assert (await pacerelle(machine, "agent", "token", agent.agent_id, "--token-stdin", stdin=token))[
                    0
                ] == 0
            elif way == "keyring":
                world.bend(keyring={f"pacerelled token:{agent.agent_id}": agent.agent_token})
            else:
                await machine.host(agent)

            async def well() -> bool:
                return bool((await daemon.status())["agents"][0]["connection"] == "connected")

            await until(well, "the connection")
            assert (await pacerelle(machine, "status"))[0] == 0
            await works(machine.hosts[0] if machine.hosts else await machine.host(agent), person)


# -- words -----------------------------------------------------------------------------------------------------


def test_an_error_nobody_thought_of_is_named_without_its_text(caplog: pytest.LogCaptureFixture) -> None:
    found = failures.unreachable(ZeroDivisionError("wss://relay/?token=secret"))
    assert found.message == "The relay cannot be reached: ZeroDivisionError"
    assert "secret" not in caplog.text
    assert "ZeroDivisionError" in caplog.text
