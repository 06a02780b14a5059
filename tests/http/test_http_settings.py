"""Where HTTP listens: the settings, what they refuse, and addresses of both kinds."""

from __future__ import annotations

import socket
from pathlib import Path

import aiohttp
import pytest

from pacerelled.config import Settings, load_settings
from pacerelled.errors import ConfigError
from pacerelled.servers.http.server import HttpServer
from tests.daemon.polling import until

from .served import Served


def test_it_is_off_and_on_this_machine_only_unless_set(tmp_path: Path) -> None:
    assert (Settings().http, Settings().http_host, Settings().http_names) == (False, "127.0.0.1", ())
    file = tmp_path / "config.toml"
    file.write_text('http = true\nhttp_host = "0.0.0.0"\nhttp_port = 9000\nhttp_names = ["MyBox.example.org"]\n')
    found = load_settings(file, {}, {})
    assert (found.http, found.http_host, found.http_port, found.http_names) == (
        True, "0.0.0.0", 9000, ("mybox.example.org",),
    )  # fmt: skip
    env = {
        "PACERELLED_HTTP": "off",
        "PACERELLED_HTTP_HOST": "::1",
        "PACERELLED_HTTP_PORT": "0",
        "PACERELLED_HTTP_NAMES": "a, b.example",
    }
    found = load_settings(file, env, {})
    assert (found.http, found.http_host, found.http_port, found.http_names) == (False, "::1", 0, ("a", "b.example"))


@pytest.mark.parametrize(
    "line",
    [
        'http = "perhaps"',
        'http_host = "localhost"',
        'http_host = "0.0.0.0:80"',
        "http_port = 65536",
        "http_port = -1",
        'http_names = "mybox"',
        'http_names = ["mybox:8790"]',
        'http_names = ["http://mybox"]',
        "http_names = [1]",
    ],
)
def test_what_cannot_be_is_refused_by_name(tmp_path: Path, line: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(line)
    with pytest.raises(ConfigError) as refused:
        load_settings(file, {}, {})
    assert line.split()[0] in refused.value.message
    assert refused.value.hint


async def test_the_other_kind_of_address(served: Served) -> None:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    await served.server.stop()
    hub = served.core.hub
    served.server = HttpServer(hub, host="::1", port=0, names=(), idle=1.0)
    served.server.start()
    await until(lambda: hub.http is not None and hub.http.url, "the port")
    assert hub.http is not None
    assert hub.http.warning is None
    assert str(hub.http.url).startswith("http://[::1]:")
    async with aiohttp.ClientSession() as http, http.get(str(hub.http.url)) as response:
        assert response.status == 401


async def test_an_answer_is_not_held_back(served: Served) -> None:
    """Without TCP_NODELAY each answer in two writes takes 40 ms."""
    async with served.raw(await served.token()) as raw:
        await raw.initialize()
        assert served.server._listener is not None
        (connection,) = served.server._listener._server.server_state.connections
        sock = connection.transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
