"""A wake command under systemd runs in a unit of its own. systemd is played here; tests/vm has the real one."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from pacerelled.notify import command, outside
from pacerelled.notify.command import Ended
from tests.notify.rig import until

# Starts what is behind `--` as a user manager would: with an environment and in a session of its own.
SYSTEMD_RUN = """
import json, os, subprocess, sys
words = sys.argv[1:sys.argv.index("--")]
with open("{folder}/calls", "a") as file:
    print(json.dumps([words, sorted(os.environ)]), file=file)
if os.path.exists("{folder}/refuse"):
    sys.exit("Failed to connect to bus")
assert {{"--user", "--pipe", "--wait", "--collect", "--service-type=exec"}} <= set(words)
env = {{"PATH": "/manager/bin", "OF_THE_MANAGER": "1"}}
child = subprocess.Popen(sys.argv[sys.argv.index("--") + 1:], env=env, cwd="/", start_new_session=True)
(name,) = [word.partition("=")[2] for word in words if word.startswith("--unit=")]
with open("{folder}/" + name, "w") as file:
    file.write(str(child.pid))
code = child.wait()
sys.exit(code if code >= 0 else 255)
"""
SYSTEMCTL = """
import os, signal, sys
assert sys.argv[1:-1] == ["--user", "--quiet", "--no-block", "stop"]
os.killpg(int(open("{folder}/" + sys.argv[-1]).read()), signal.SIGTERM)
"""


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """Of a daemon that the user's systemd has started."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in (("systemd-run", SYSTEMD_RUN), ("systemctl", SYSTEMCTL)):
        (programs / name).write_text(f"#!{sys.executable} -I\n{text.format(folder=tmp_path)}")
        (programs / name).chmod(0o755)
    more = {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": "/run/user/1", "PACERELLE_AGENT_TOKEN": "secret"}
    return {"PATH": str(programs), "LISTEN_PID": str(os.getpid()), "MANAGERPID": "1", **more}


async def run(
    tmp_path: Path,
    env: Mapping[str, str],
    argv: list[str],
    *,
    limit: float = 30.0,
    stop: asyncio.Event | None = None,
    cwd: str | None = None,
) -> tuple[Ended, str]:
    output = tmp_path / "output.log"
    ended = await command.run(
        argv,
        env=command.environment(env, "/its/bin", {command.MARK: str(tmp_path)}),
        cwd=cwd or str(tmp_path),
        output=output,
        limit=limit,
        stop=stop or asyncio.Event(),
        unit=outside.unit(env, "pacerelle-run_1"),
    )
    return ended, output.read_text()


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-c", code]


async def test_it_has_the_environment_the_folder_and_the_input_that_it_has_without_systemd(
    tmp_path: Path, env: dict[str, str]
) -> None:
    code = "import os, sys; print(sorted(os.environ.items()), repr(sys.stdin.read()), os.getcwd()); sys.exit(3)"
    ended, said = await run(tmp_path, env, python(code))
    assert (ended.how, ended.exit_code, ended.signal) == ("exited", 3, None), said
    kept = command.environment(env, "/its/bin", {command.MARK: str(tmp_path)})
    kept["LC_CTYPE"] = "C.UTF-8"  # Python's own doing
    assert said in (f"{sorted(kept.items())} '' {tmp_path}\n", f"{sorted(kept.items())[:-1]} '' {tmp_path}\n")
    words, names = json.loads((tmp_path / "calls").read_text())
    assert "--unit=pacerelle-run_1.service" in words
    assert {"--property=KillMode=control-group", "--property=RuntimeMaxSec=35"} <= set(words)
    assert set(names) - {"LC_CTYPE"} == {"HOME", "PATH", "XDG_RUNTIME_DIR"}, "systemd-run gets no more than it needs"


async def test_descriptors_do_not_leak(tmp_path: Path, env: dict[str, str]) -> None:
    code = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    _, said = await run(tmp_path, env, python(code))
    assert said == "['0', '1', '2', '3']\n", "3 is what lists them"


async def test_one_that_hangs_is_ended_by_systemd(tmp_path: Path, env: dict[str, str]) -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit('asked')); time.sleep(600)"
    ended, said = await run(tmp_path, env, python(code), limit=1.5)
    assert (ended.how, ended.exit_code, said) == ("timeout", 1, "asked\n")


@pytest.mark.parametrize("ends", ["stop", "limit"])
async def test_one_that_systemd_cannot_end_in_time_is_ended(
    tmp_path: Path, env: dict[str, str], ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PATIENCE", 1.0)
    stop = asyncio.Event()
    code = "import os, signal, time; signal.signal(15, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"
    running = asyncio.create_task(run(tmp_path, env, python(code), stop=stop, limit=2.0 if ends == "limit" else 600.0))
    output = tmp_path / "output.log"
    await until(lambda: output.exists() and output.read_text(), "its start")
    pid = int(output.read_text())
    if ends == "stop":
        stop.set()
    ended, _ = await asyncio.wait_for(running, 30)
    assert ended.how == ("stopped" if ends == "stop" else "timeout")
    await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE, "its end")


async def test_what_cannot_be_started_is_said(tmp_path: Path, env: dict[str, str]) -> None:
    for argv, cwd in ((["/no/such/program"], None), ([str(tmp_path)], None), (python(""), str(tmp_path / "gone"))):
        ended, said = await run(tmp_path, env, argv, cwd=cwd)
        assert (ended.how, ended.exit_code) == ("exited", 127)
        assert said.startswith(f"{argv[0]} could not be started: ")
    (tmp_path / "refuse").touch()
    ended, said = await run(tmp_path, env, python(""))
    assert (ended.exit_code, said) == (1, "Failed to connect to bus\n")


def test_where_there_is_none(env: dict[str, str], tmp_path: Path) -> None:
    assert outside.unit(env, "a") is not None
    assert outside.unit({**env, "LISTEN_PID": "1"}, "a") is None, "started by a host"
    assert outside.unit({k: v for k, v in env.items() if k != "MANAGERPID"}, "a") is None, "by the system's systemd"
    (tmp_path / "programs" / "systemd-run").unlink()
    assert outside.unit(env, "a") is None
