from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wild import HOSTILE_BYTES, any_text, nearly, written

from pacerelle_protocol.errors import LocalProtocolError
from pacerelle_protocol.hello import PROTOCOL_VERSION, Hello, encode_hello, parse_hello, refused_line, welcome_line
from pacerelle_protocol.local import MAX_SOCKET_PATH, local_paths

HELLO = Hello(
    session="0123456789abcdef" * 2,
    shim="0.1.0",
    pid=123,
    host="claude",
    cwd="/home/é",
    agent_id="a1",
    token="very-secret",
    base_url="https://example.org",
    ws_url=None,
    e2ee=False,
    in_flight={"7": 1.5},
)


class TestPaths:
    def test_default(self) -> None:
        paths = local_paths(None, env={"HOME": "/home/me"}, uid=1000)
        state = Path("/home/me/.pacerelle/mcp/pacerelled")
        assert paths.state == state
        assert paths.mcp_sock == state / "mcp.sock"
        assert paths.control_sock == state / "control.sock"
        assert {paths.lock.name, paths.start_lock.name, paths.store.name} == {"lock", "start.lock", "store.db"}
        assert {paths.key_file.name, paths.config.name, paths.log.name} == {
            "store.key",
            "config.toml",
            "pacerelled.log",
        }

    def test_which_store_root(self) -> None:
        env = {"HOME": "/home/me", "PACERELLE_STORE_ROOT": "~/env", "XDG_RUNTIME_DIR": "/run/user/1"}
        assert local_paths("~/flag", env=env, uid=1).state == Path("/home/me/flag/pacerelled")
        assert local_paths("~", env=env, uid=1).state == Path("/home/me/pacerelled")
        assert local_paths(None, env=env, uid=1).state == Path("/home/me/env/pacerelled")
        assert local_paths("", env=env, uid=1).state == Path("/home/me/env/pacerelled")
        assert local_paths("~other", env=env, uid=1).state == Path.cwd() / "~other" / "pacerelled"

    @pytest.mark.parametrize("env", [{}, {"HOME": ""}])
    def test_without_home_the_password_database_tells(self, env: dict[str, str]) -> None:
        import pwd

        expected = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".pacerelle/mcp/pacerelled"
        assert local_paths(None, env=env, uid=os.getuid()).state == expected

    def test_without_home_and_entry(self) -> None:
        with pytest.raises(LocalProtocolError) as caught:
            local_paths(None, env={}, uid=2**31 - 7)
        assert caught.value.reason == "no_home"
        assert local_paths("/x", env={}, uid=2**31 - 7).state == Path("/x/pacerelled")

    def test_symlinks_stay(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        assert local_paths(str(tmp_path / "x/../link"), env={}, uid=1).state == tmp_path / "link" / "pacerelled"

    @pytest.mark.parametrize("letter", ["x", "é"])
    def test_long_paths_move_to_tmp_together(self, letter: str) -> None:
        width = len(letter.encode())
        fits = "/r" + letter * ((MAX_SOCKET_PATH - len("/r/pacerelled/control.sock")) // width)
        assert local_paths(fits, env={}, uid=7).control_sock == Path(fits) / "pacerelled" / "control.sock"
        paths = local_paths(fits + letter, env={}, uid=7)
        digest = hashlib.sha256((fits + letter + "/pacerelled").encode()).hexdigest()[:16]
        assert paths.mcp_sock == Path(f"/tmp/pacerelled-7-{digest}/mcp.sock")
        assert paths.control_sock == Path(f"/tmp/pacerelled-7-{digest}/control.sock")
        assert paths.lock == Path(fits + letter) / "pacerelled" / "lock"

    def test_another_socket(self) -> None:
        paths = local_paths("/root", "~/s/my.sock", env={"HOME": "/h"}, uid=1)
        assert (paths.mcp_sock, paths.control_sock) == (Path("/h/s/my.sock"), Path("/h/s/control.sock"))
        assert paths.lock == Path("/root/pacerelled/lock")

    @pytest.mark.parametrize("socket", ["/s/control.sock", "/" + "x" * 103, "/" + "x" * 91 + "/m"])
    def test_a_socket_that_cannot_be(self, socket: str) -> None:
        with pytest.raises(LocalProtocolError) as caught:
            local_paths("/root", socket, env={}, uid=1)
        assert caught.value.reason == "socket_path"

    @pytest.mark.parametrize("root", ["/a\0b", "/\ud800"])
    def test_what_no_file_can_be_named(self, root: str) -> None:
        with pytest.raises(LocalProtocolError) as caught:
            local_paths(root, env={}, uid=1)
        assert caught.value.reason == "bad_path"

    def test_a_working_directory_that_is_gone(self, tmp_path: Path) -> None:
        code = (
            "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
            "from pacerelle_protocol.local import local_paths\n"
            "from pacerelle_protocol.errors import LocalProtocolError\n"
            "try: local_paths('relative', env={}, uid=1)\n"
            "except LocalProtocolError as error: print(error.reason)\n"
        )
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout == "no_cwd\n"


class TestHandshake:
    def test_a_hello_comes_back(self) -> None:
        line = encode_hello(HELLO)
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        assert parse_hello(line) == HELLO
        assert json.loads(line)["v"] == 1

    def test_the_least(self) -> None:
        line = json.dumps(
            {"pacerelle": "hello", "v": 1, "session": "f" * 32, "shim": "1", "pid": 1, "new": []}
        ).encode()
        assert parse_hello(line) == Hello("f" * 32, "1", 1)

    def test_the_token_is_not_shown(self) -> None:
        assert "very-secret" not in repr(HELLO)

    @pytest.mark.parametrize(
        "change",
        [
            {"pacerelle": "hi"},
            {"v": "1"},
            {"session": "F" * 32},
            {"session": "f" * 31},
            {"session": "f" * 32 + "\n"},
            {"pid": -1},
            {"pid": "1"},
            {"shim": None},
            {"host": 3},
            {"cwd": "x" * 5000},
            {"token": ["very-secret"]},
            {"e2ee": "yes"},
        ],
    )
    def test_a_bad_hello(self, change: dict[str, Any]) -> None:
        line = json.dumps(json.loads(encode_hello(HELLO)) | change).encode()
        with pytest.raises(LocalProtocolError) as caught:
            parse_hello(line)
        assert caught.value.reason == "bad_hello"
        assert "very-secret" not in str(caught.value)

    @pytest.mark.parametrize("version", [PROTOCOL_VERSION - 1, PROTOCOL_VERSION + 1])
    def test_the_next_versions_are_understood(self, version: int) -> None:
        assert parse_hello(json.dumps(json.loads(encode_hello(HELLO)) | {"v": version, "new": [1]}).encode()) == HELLO

    @pytest.mark.parametrize(("step", "side"), [(-2, "pacerelle-mcp"), (2, "the daemon"), (99, "the daemon")])
    def test_a_version_further_away_names_the_side_to_upgrade(self, step: int, side: str) -> None:
        line = json.dumps(json.loads(encode_hello(HELLO)) | {"v": PROTOCOL_VERSION + step}).encode()
        with pytest.raises(LocalProtocolError, match=f"{side} is too old") as caught:
            parse_hello(line)
        assert caught.value.reason == ("daemon_too_old" if step > 0 else "shim_too_old")

    @pytest.mark.parametrize("line", HOSTILE_BYTES, ids=range(len(HOSTILE_BYTES)))
    def test_hostile_lines(self, line: bytes) -> None:
        with pytest.raises(LocalProtocolError):
            parse_hello(line)

    @given(
        nearly(
            {
                "pacerelle": st.just("hello"),
                "v": st.just(1),
                "session": st.just("a" * 32),
                "shim": any_text,
                "pid": st.integers(),
                "host": any_text,
                "cwd": any_text,
                "agent_id": any_text,
                "token": any_text,
                "e2ee": st.booleans(),
                "offers": any_text,
                "in_flight": st.none() | st.dictionaries(any_text, st.floats()),
            }
        )
    )
    def test_any_hello_is_read_or_refused(self, obj: dict[str, Any]) -> None:
        try:
            hello = parse_hello(written(obj).encode())
        except LocalProtocolError:
            return
        assert parse_hello(encode_hello(hello)) == hello

    def test_the_daemons_lines(self) -> None:
        assert json.loads(welcome_line(daemon="0.1.0", session="f" * 32, offers="x")) == {
            "pacerelle": "welcome",
            "v": 1,
            "daemon": "0.1.0",
            "session": "f" * 32,
            "offers": "x",
        }
        line = refused_line(code="stopping", message="m", hint="h\n", retry=True)
        assert line.count(b"\n") == 1
        assert json.loads(line) == {
            "pacerelle": "refused",
            "v": 1,
            "code": "stopping",
            "message": "m",
            "hint": "h\n",
            "retry": True,
        }


def test_the_import_is_light() -> None:
    code = (
        "import sys, pacerelle_protocol.local\n"
        "heavy = {'ctypes', 'cryptography', 'agent_gateway_sdk', 'pacerelle', 'asyncio', 'sqlite3'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
