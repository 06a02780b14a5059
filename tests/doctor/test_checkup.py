"""What the daemon's own program looks at: the way to a relay, and a store that nobody uses."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path

import pytest

from pacerelle_protocol.local import LocalPaths, local_paths
from pacerelled.checkup.finding import Finding
from pacerelled.checkup.network import clock, way_to
from pacerelled.checkup.runtime import runtime
from pacerelled.checkup.store import closed_store, open_store, sizes
from pacerelled.store.custody import store_created
from pacerelled.store.database import Store
from pacerelled.store.keyring import Keyring
from pacerelled.store.rekey import store_key
from tests.endurance.tls import Authority, TlsFront


def states(found: list[Finding]) -> dict[str, str]:
    return {finding.check: finding.state for finding in found}


@asynccontextmanager
async def answering(head: str) -> AsyncIterator[int]:
    """A server that answers everything with this head."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n{head}\r\n".encode())
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def date(**off: float) -> str:
    return f"Date: {format_datetime(datetime.now(UTC) + timedelta(**off), usegmt=True)}\r\n"


async def test_all_is_well_with_a_relay_that_answers_whatever() -> None:
    async with answering(date()) as port:
        found = await way_to(f"http://127.0.0.1:{port}")
    assert states(found) == {"proxy": "ok", "dns": "ok", "tls": "ok", "clock": "ok"}
    assert {finding.about for finding in found} == {f"127.0.0.1:{port}"}


async def test_a_name_that_nobody_knows_ends_it() -> None:
    found = await way_to("https://relay.invalid")
    assert states(found) == {"proxy": "ok", "dns": "failed"}
    assert "its name is not found" in found[-1].message


async def test_a_port_where_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        found = await way_to(f"http://127.0.0.1:{taken.getsockname()[1]}")
    assert states(found)["relay"] == "failed"
    assert found[-1].hint


@pytest.mark.parametrize(
    ("proxy", "state", "words"),
    [
        ("socks5://name:hunter2@127.0.0.1:9", "failed", "not supported"),
        ("http://name:hunter2@127.0.0.1:1", "ok", "through 127.0.0.1:1"),
    ],
)
async def test_a_proxy_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch, proxy: str, state: str, words: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    found = await way_to("https://relay.invalid")
    assert (found[0].check, found[0].state, words in found[0].message) == ("proxy", state, True)
    assert found[-1].state == "failed"
    assert "hunter2" not in str(found)


async def test_a_certificate_that_is_not_accepted_and_one_that_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    async with answering(date()) as port, TlsFront(authority.certificate("localhost"), port).running() as front:
        found = await way_to(f"https://localhost:{front.port}")
        assert states(found) == {"proxy": "ok", "dns": "ok", "tls": "failed"}
        assert "certificate is not accepted" in found[-1].message
        # The daemon's HTTP library makes its context once in a process: as its own program, it finds the file.
        program = (
            "import asyncio, sys\nfrom pacerelled.checkup.network import way_to\n"
            "print([(f.check, f.state, f.message) for f in asyncio.run(way_to(sys.argv[1]))])"
        )
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", program, f"https://localhost:{front.port}"),
            env={"PATH": os.environ["PATH"], "SSL_CERT_FILE": str(authority.path)},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await asyncio.wait_for(child.communicate(), 30)
    assert "('tls', 'ok', 'the certificate is accepted')" in out.decode()


def test_clocks() -> None:
    now = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)
    stamp = format_datetime(now, usegmt=True)
    for off, state in ((0.9, "ok"), (-30, "ok"), (90, "note"), (-90, "note"), (4000, "failed"), (-4000, "failed")):
        assert clock(stamp, now.timestamp() + off, "r").state == state
    assert clock(stamp, now.timestamp() + 4000.5, "r").message == "4000 s ahead of the relay's"
    for nonsense in (None, "", "yesterday"):
        assert clock(nonsense, 0.0, "r").state == "skipped"


def test_the_libraries_load() -> None:
    found = runtime()
    assert (found.state, found.message.startswith("Python 3.12.")) == ("ok", True)


@pytest.fixture
def paths(tmp_path: Path) -> LocalPaths:
    found = local_paths(str(tmp_path), env={}, uid=os.getuid())
    found.state.mkdir(mode=0o700)
    return found


async def look(paths: LocalPaths) -> tuple[list[Finding], list[str]]:
    return await closed_store(paths, Keyring(False, {}), {})


async def make(paths: LocalPaths) -> Store:
    key = await store_key(paths, keyring=Keyring(False, {}), env={})
    store = await Store.open(paths.store, key.raw, new=key.new)
    store_created(paths.state, key)
    await store.run(
        lambda tx: tx.execute(
            "INSERT INTO agents (agent_id, base_url, e2ee, created_at) VALUES ('a', 'http://r', 1, '')"
        )
    )
    return store


async def test_a_store_that_is_not_there_yet(paths: LocalPaths) -> None:
    assert states((await look(paths))[0]) == {"store": "note"}
    assert list(paths.state.iterdir()) == []


async def test_a_store_that_is_well_in_use_and_not(paths: LocalPaths) -> None:
    store = await make(paths)
    assert states(await open_store(store)) == {"store": "ok", "store log": "ok", "disk": "ok"}
    await store.close()
    before = {path.name: path.read_bytes() for path in paths.state.iterdir()}
    found, relays = await look(paths)
    assert (states(found), relays) == ({"store": "ok", "store log": "ok", "disk": "ok"}, ["http://r"])
    assert before == {path.name: path.read_bytes() for path in paths.state.iterdir()}, "nothing is changed"


async def test_a_damaged_store_and_a_lost_key(paths: LocalPaths) -> None:
    await (await make(paths)).close()
    whole = paths.store.read_bytes()
    paths.store.write_bytes(whole[:5000] + secrets.token_bytes(3000) + whole[8000:])
    found, _ = await look(paths)
    assert states(found)["store"] == "failed"
    assert found[0].hint
    paths.store.write_bytes(whole)
    paths.key_file.unlink()
    found, _ = await look(paths)
    assert states(found)["store"] == "failed"
    assert "key" in found[0].message


async def test_a_log_that_is_not_folded_in(paths: LocalPaths) -> None:
    paths.store.write_bytes(b"x")
    with paths.store.with_name("store.db-wal").open("wb") as log:
        log.truncate(100 * 1024 * 1024)
    assert states(sizes(paths.store))["store log"] == "failed"
