"""`pacerelle host test`: what a host would meet when it starts its entry."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from pacerelle_cli.hosts import trial
from pacerelle_cli.hosts.catalogue import HOSTS
from pacerelle_cli.hosts.errors import HostFailed
from tests.hosts.host_world import HostHome

SERVER = """
import json, os, sys, time
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    match message["method"]:
        case "initialize":
            print(json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {}}))
            answer = {"serverInfo": {"name": "env", "version": ",".join(sorted(os.environ))}}
        case "tools/list" if "cursor" not in message["params"]:
            answer = {"tools": [{"name": os.environ.get("A", "-")}], "nextCursor": "2"}
        case _:
            answer = {"tools": [{"name": os.getcwd()}]}
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answer}), flush=True)
"""


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


def install_by_hand(home: HostHome, key: str, command: str, args: list[str], **fields: Any) -> None:
    file = home.file(HOSTS[key])
    file.parent.mkdir(parents=True, exist_ok=True)
    entry = {"command": command, "args": args, **fields}
    file.write_text(json.dumps({HOSTS[key].servers: {"pacerelle": entry}}))


@pytest.mark.parametrize("key", ["codex", "claude-desktop", "goose"])
async def test_what_install_wrote_works(home: HostHome, key: str) -> None:
    assert (await home.run("host", "install", key)).code == 0
    try:
        result = await home.run("host", "test", key)
        assert result.code == 0, result
        assert result.out.startswith("pacerelle 0.1.0 answered after ")
        assert "\nwait_for_messages " in result.out
        answer = home.host_json("test", key)
        assert {"get_status", "send_message", "mark_processed"} <= set(answer["tools"])
        assert 0 < answer["initialize_s"] <= answer["tools_list_s"]
    finally:
        assert (await home.run("stop")).code == 0


def test_the_server_gets_only_what_the_host_hands_on(home: HostHome) -> None:
    install_by_hand(home, "cursor", *[sys.executable, ["-c", SERVER]], env={"A": "from the entry"})
    answer = home.host_json("test", "cursor", XDG_RUNTIME_DIR="/run/x", SECRET="s", TERM="xterm", LANG="C")
    given = set(answer["server"]["version"].split(","))
    assert given - {"LC_CTYPE"} == {"A", "HOME", "PATH", "TERM"}
    assert answer["tools"] == ["from the entry", str(home.path)]


def test_desktops_and_codex_hand_on_what_they_do() -> None:
    env = dict.fromkeys(["HOME", "PATH", "LANG", "TZ", "XDG_RUNTIME_DIR", "SSH_AUTH_SOCK"], "x")
    assert HOSTS["codex"].environment(env) == {"HOME": "x", "PATH": "x", "LANG": "x", "TZ": "x"}
    assert HOSTS["zed"].environment(env) == {"HOME": "x", "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
    assert HOSTS["claude-code"].environment(env) == {"HOME": "x", "PATH": "x"}


def test_no_entry_is_no_test(home: HostHome) -> None:
    result = home.host("test", "zed")
    assert result.code == 1
    assert "has no entry" in result.err
    assert "pacerelle host install zed" in result.err
    home.file(HOSTS["zed"]).parent.mkdir(parents=True)
    home.file(HOSTS["zed"]).write_text('{"context_servers": {"pacerelle": {"url": "http://127.0.0.1:1"}}}')
    assert "no entry that runs a command" in home.host("test", "zed").err


def test_a_command_that_is_gone_is_named(home: HostHome) -> None:
    install_by_hand(home, "gemini", "/gone/python", [])
    answer = home.host_json("test", "gemini")
    assert answer["error"]["code"] == "host_failed"
    assert "/gone/python" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (
            "import sys; print('first\\nlast words', file=sys.stderr); sys.exit(3)",
            "exit code 3 .*Its last words: first last",
        ),
        ("print('hello'); input()", "no MCP server: it wrote “hello”"),
        ("print('[]'); input()", "no MCP server"),
        (
            "import json; print(json.dumps({'id': 1, 'error': {'code': -32010, 'message': 'do this'}})); input()",
            "refused `initialize`: do this",
        ),
        ("import os; os.close(0); os.close(1); import time; time.sleep(60)", "closed its output"),
    ],
)
def test_a_server_that_fails_says_how(program: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_GOODBYE", 0.2)
    with pytest.raises(HostFailed, match=what):
        trial.run(python(program), {"PATH": os.environ["PATH"]})


def test_a_server_that_is_silent_and_stubborn_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "DEADLINE", 1.0)
    monkeypatch.setattr(trial, "_GOODBYE", 0.2)
    note = tmp_path / "pid"
    program = (
        "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        f"open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    )
    with pytest.raises(HostFailed, match="did not answer `initialize` within 1 seconds"):
        trial.run(python(program), {})
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), signal.SIG_DFL)
