from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pacerelle_protocol.local import MAX_SOCKET_PATH
from pacerelled.errors import ConfigError, SocketPathError
from pacerelled.servers.sockets import bind_unix, inherited_sockets, peer_uid, unlink_own


@pytest.fixture
def place() -> Iterator[Path]:
    """A short private directory: pytest's own can be too long for a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_bound_socket_is_private_listens_and_does_not_block(place: Path) -> None:
    path = place / "deep" / "er" / "mcp.sock"
    before = os.umask(0)
    os.umask(before)
    with bind_unix(path) as sock, socket.socket(socket.AF_UNIX) as client:
        assert mode(path) == 0o600
        assert mode(path.parent) == mode(path.parent.parent) == 0o700
        assert not sock.getblocking()
        client.connect(str(path))
        accepted, _ = sock.accept()
        with accepted:
            assert peer_uid(accepted) == os.geteuid()
            assert peer_uid(client) == os.geteuid()
    after = os.umask(before)
    assert after == before


def test_a_stale_socket_is_replaced(place: Path) -> None:
    path = place / "mcp.sock"
    bind_unix(path).close()
    assert path.is_socket()
    with bind_unix(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


@pytest.mark.parametrize("kind", ["file", "directory", "symlink", "symlink to a socket", "dangling symlink", "fifo"])
def test_what_is_no_socket_is_left_alone(place: Path, kind: str) -> None:
    path = place / "mcp.sock"
    target = place / "target"
    match kind:
        case "file":
            path.write_text("precious")
        case "directory":
            path.mkdir()
        case "symlink":
            target.write_text("precious")
            path.symlink_to(target)
        case "symlink to a socket":
            bind_unix(target).close()
            path.symlink_to(target)
        case "dangling symlink":
            path.symlink_to(target)
        case _:
            os.mkfifo(path)
    before = path.lstat()
    with pytest.raises(SocketPathError) as caught:
        bind_unix(path)
    assert path.lstat() == before
    assert str(path) in caught.value.message
    assert caught.value.hint


def test_a_socket_of_somebody_else_is_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = place / "sub" / "mcp.sock"
    bind_unix(path).close()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(SocketPathError):
        bind_unix(path)
    assert path.is_socket()


def test_the_path_may_have_as_many_bytes_as_the_system_takes(place: Path) -> None:
    room = MAX_SOCKET_PATH - len(os.fsencode(place)) - 1
    bind_unix(place / ("x" * room)).close()
    with pytest.raises(SocketPathError, match="at most 103"):
        bind_unix(place / ("x" * (room + 1)))
    with pytest.raises(SocketPathError):
        bind_unix(place / ("é" * (room // 2 + 1)))


@pytest.mark.parametrize("kind", ["symlink", "open to others", "not ours", "a file"])
def test_a_directory_planted_where_everybody_may_write_is_refused(
    place: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.chmod(0o1777)
    directory = place / "pacerelled-0-0123456789abcdef"
    match kind:
        case "symlink":
            (place / "elsewhere").mkdir(mode=0o700)
            directory.symlink_to(place / "elsewhere")
        case "open to others":
            directory.mkdir()
            directory.chmod(0o777)
        case "not ours":
            directory.mkdir(mode=0o700)
            monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        case _:
            directory.write_text("precious")
    with pytest.raises(SocketPathError):
        bind_unix(directory / "mcp.sock")
    assert list(place.rglob("mcp.sock")) == []


def test_a_private_directory_where_everybody_may_write_is_made_or_taken(place: Path) -> None:
    place.chmod(0o1777)
    directory = place / "pacerelled-0-0123456789abcdef"
    for _ in range(2):
        with bind_unix(directory / "mcp.sock"):
            assert mode(directory) == 0o700


def test_a_directory_that_cannot_be_made_is_named(place: Path) -> None:
    (place / "file").write_text("")
    with pytest.raises(SocketPathError) as caught:
        bind_unix(place / "file" / "mcp.sock")
    assert str(place / "file") in caught.value.message


def test_only_the_file_of_our_own_socket_is_removed(place: Path) -> None:
    path = place / "mcp.sock"
    first = bind_unix(path)
    second = bind_unix(path)
    unlink_own(path, first)  # the path has another socket's file by now
    assert path.is_socket()
    second.close()
    unlink_own(path, second)
    assert not path.exists()
    unlink_own(path, second)
    first.close()
    with socket.socket(socket.AF_UNIX) as inherited:
        inherited.bind(str(path))
        unlink_own(path, inherited)
    assert path.is_socket()


CHILD = """
import os, sys
from pacerelled.errors import PacerelledError
from pacerelled.servers.sockets import inherited_sockets
os.environ["LISTEN_PID"] = sys.argv[1] or str(os.getpid())
try:
    got = inherited_sockets(os.environ)
except PacerelledError as error:
    print(type(error).__name__, error.message)
else:
    print({name: os.path.basename(sock.getsockname()) for name, sock in sorted(got.items())})
    assert all(not s.getblocking() and not s.get_inheritable() for s in got.values())
"""


def inherit(*given: socket.socket | int, names: str | None, count: str | None = None, pid: str = "") -> str:
    """What a fresh process takes over, started with `given` as descriptors 3, 4, …"""
    moves = "".join(f"os.dup2({g if isinstance(g, int) else g.fileno()}, {100 + i});" for i, g in enumerate(given))
    back = "".join(f"os.dup2({100 + i}, {3 + i});" for i in range(len(given)))
    start = f"import os, sys;{moves}{back}exec(sys.argv.pop(1))"
    env = {**os.environ, "LISTEN_FDS": str(len(given)) if count is None else count}
    if names is not None:
        env["LISTEN_FDNAMES"] = names
    keep = [g if isinstance(g, int) else g.fileno() for g in given]
    done = subprocess.run(
        [sys.executable, "-c", start, CHILD, pid], env=env, pass_fds=keep, capture_output=True, text=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("names", "got"),
    [
        (None, "{'control': 'second', 'mcp': 'first'}"),
        ("", "{'control': 'second', 'mcp': 'first'}"),
        ("control:mcp", "{'control': 'first', 'mcp': 'second'}"),
        ("pacerelled.socket:pacerelled.socket", "{'control': 'second', 'mcp': 'first'}"),
        ("other:mcp", "{'mcp': 'second'}"),
    ],
)
def test_sockets_are_taken_over_by_name_or_in_order(place: Path, names: str | None, got: str) -> None:
    with bind_unix(place / "first") as first, bind_unix(place / "second") as second:
        assert inherit(first, second, names=names) == got


def test_nothing_is_taken_over_that_was_not_given_to_this_process(place: Path) -> None:
    assert inherited_sockets({}) == {}
    assert inherited_sockets({"LISTEN_PID": str(os.getpid() + 1), "LISTEN_FDS": "2"}) == {}
    with bind_unix(place / "first") as first:
        assert inherit(first, names="mcp", pid="1") == "{}"


def test_descriptors_that_are_not_what_they_should_be_are_named(place: Path) -> None:
    with pytest.raises(ConfigError, match="LISTEN_FDS"):
        inherited_sockets({"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "two"})
    with open(os.devnull) as file, socket.socket(socket.AF_UNIX) as unbound, socket.socket() as inet:
        assert inherit(file.fileno(), names="mcp").startswith("ConfigError descriptor 3, handed over as 'mcp', is not")
        assert "not a listening Unix" in inherit(unbound, names="mcp")
        inet.bind(("127.0.0.1", 0))
        inet.listen()
        assert "not a listening Unix" in inherit(inet, names="mcp")
