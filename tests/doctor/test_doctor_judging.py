"""Each check on its own: what it is given, and what it makes of it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from pacerelle_cli.doctor import around, daemon, local
from pacerelle_cli.doctor.check import FAILED, NOTE, OK, SKIPPED, Check
from pacerelle_cli.errors import NotAnswering, NotRunning
from pacerelle_protocol.local import LocalPaths, local_paths

UID = os.getuid()


def brief(checks: list[Check]) -> list[tuple[str, str]]:
    return [(check.check, check.state) for check in checks]


@pytest.fixture
def paths() -> Any:
    with TemporaryDirectory() as folder:
        found = local_paths(folder, env={}, uid=UID)
        found.state.mkdir(mode=0o700)
        yield found


def bind(path: Path, mode: int = 0o600) -> None:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    sock.close()
    path.chmod(mode)


def test_python() -> None:
    assert local.python().state == OK
    assert local.python((3, 13, 1), "/usr/bin/python3") == Check(
        "python", FAILED, "3.13.1, /usr/bin/python3", "Install pacerelled with CPython 3.12."
    )


def test_versions() -> None:
    assert local.versions("2", "2", ["2", "2"]) == Check("version", OK, "2")
    assert local.versions("2", None, []).state == OK
    older = local.versions("2", "1", ["1"])
    assert (older.state, older.message) == (NOTE, "2 is installed, the daemon is 1")
    assert "pacerelle stop" in older.remedy
    shims = local.versions("2", "2", ["2", "1", "1", "0.9"])
    assert (shims.state, shims.message) == (NOTE, "2; hosts run other shims: 1 of 0.9, 2 of 1")


def test_the_folder(paths: LocalPaths) -> None:
    assert local.folder(paths.state, UID).state == OK
    assert local.folder(paths.state / "not there", UID).state == NOTE
    (paths.state / "store.key").write_text("k")
    (paths.state / "store.key").chmod(0o644)
    found = local.folder(paths.state, UID)
    assert (found.state, found.message.endswith("others could read: store.key")) == (NOTE, True)
    paths.state.chmod(0o755)
    assert local.folder(paths.state, UID).remedy == f"chmod 700 {paths.state}"
    assert "another user" in local.folder(paths.state, UID + 1).message


def test_the_lock(paths: LocalPaths) -> None:
    assert local.lock(None, paths.lock).message == "none yet"
    paths.lock.write_text("1")
    assert local.lock(None, paths.lock).message == "free"
    assert local.lock(77, paths.lock).message == "held by pid 77"


def test_sockets(paths: LocalPaths) -> None:
    def states(running: bool) -> list[str]:
        return [check.state for check in local.sockets(paths, UID, running=running)]

    assert states(False) == [OK, OK]
    assert states(True) == [FAILED, FAILED], "a daemon whose socket's file is gone serves nobody new"
    for path in (paths.mcp_sock, paths.control_sock):
        bind(path)
    assert states(True) == states(False) == [OK, OK]
    paths.mcp_sock.chmod(0o666)
    assert states(True) == [FAILED, OK]
    paths.mcp_sock.unlink()
    paths.mcp_sock.write_text("no socket")
    assert states(True) == [FAILED, OK]
    assert all("another user" in c.message for c in local.sockets(paths, UID + 1, running=True)[1:])


def test_a_path_that_is_too_long_is_said_before_anything_else(paths: LocalPaths) -> None:
    deep = LocalPaths(**{n: getattr(paths, n) for n in LocalPaths.__slots__} | {"mcp_sock": Path("/" + "x" * 120)})
    assert local.sockets(deep, UID, running=False)[0].message == "its path has 121 bytes, more than 103"


def status(**more: Any) -> dict[str, Any]:
    base = {"daemon": {"version": "1", "pid": 7, "uptime_s": 61}, "health": {"ok": True, "problems": []}}
    return base | more


def test_the_daemon() -> None:
    assert daemon.daemon(status(), None) == Check("daemon", OK, "1, pid 7, up 1 min")
    assert daemon.daemon(None, NotRunning("It does not run.", hint="h")).state == NOTE
    assert daemon.daemon(None, NotAnswering("It hangs.", hint="h")) == Check("daemon", FAILED, "It hangs.", "h")


def test_health_leaves_out_what_has_a_line_of_its_own() -> None:
    problems = [
        {"code": "token_refused", "message": "t", "hint": ""},
        {"code": "relay_offline", "message": "away", "hint": "wait", "agent_id": "agent-abcd"},
    ]
    warnings = [{"code": "restart_due", "message": "r", "hint": ""}, {"code": "x", "message": "w", "hint": ""}]
    found = daemon.health(status(health={"problems": problems, "warnings": warnings}))
    assert found == [Check("health", FAILED, "away", "wait", "…abcd"), Check("health", NOTE, "w")]
    assert daemon.health(status()) == [Check("health", OK, "no problem")]
    new = {"code": "no_agent", "message": "none yet", "hint": "add one"}
    assert daemon.health(status(health={"problems": [new]})) == [Check("health", NOTE, "none yet", "add one")]


def test_http() -> None:
    assert daemon.http(status()).message == "off"
    assert daemon.http(status(http={"on": True, "url": "http://127.0.0.1:8790/mcp"})).state == OK
    assert daemon.http(status(http={"on": True, "problem": "taken"})).state == FAILED
    assert daemon.http(status(http={"on": True, "url": "u", "warning": "open"})).state == NOTE


def test_webhooks_are_named_by_their_host_only() -> None:
    def hook(**more: Any) -> dict[str, Any]:
        return {"id": "w1", "url": "https://u:p@hooks.example.org/T0/secret", "state": "active", "failures": 0} | more

    assert daemon.judge_webhooks([]) == [Check("webhook", OK, "none")]
    assert daemon.judge_webhooks([hook()]) == [Check("webhook", OK, "1 take what is sent")]
    found = daemon.judge_webhooks([hook(failures=3), hook(state="paused")])
    assert brief(found) == [("webhook", FAILED), ("webhook", NOTE)]
    assert {check.about for check in found} == {"hooks.example.org"}


def test_the_service() -> None:
    def judge(**more: Any) -> list[tuple[str, str]]:
        base = {"manager": "systemd", "state": "running", "enabled": True, "current": True, "linger": True}
        return brief(around.judge_service(base | more))

    assert judge() == [("service", OK), ("service files", OK), ("linger", OK)]
    assert judge(state="failed")[0] == ("service", FAILED)
    assert judge(enabled=False)[0] == ("service", NOTE)
    assert judge(current=False)[1] == ("service files", NOTE)
    assert judge(linger=False)[2] == ("linger", NOTE)
    assert len(judge(linger=None)) == 2


def test_hosts() -> None:
    def row(host: str, state: str) -> dict[str, Any]:
        return {"host": host, "state": state, "file": "/f", "installed": True, "reason": "line 3: what?"}

    assert brief(around.judge_hosts([row("zed", "absent")])) == [("host", NOTE)]
    states = ("current", "outdated", "other command", "unreadable", "absent")
    found = around.judge_hosts([row(f"h{number}", state) for number, state in enumerate(states)])
    assert [check.state for check in found] == [OK, NOTE, NOTE, FAILED]
    assert found[1].remedy == "pacerelle host install h1"


def test_a_check_that_was_skipped_says_why() -> None:
    (found,) = daemon.checkup(None, None, NotAnswering("It hangs."))  # type: ignore[arg-type]
    assert (found.state, "does not answer" in found.message) == (SKIPPED, True)
