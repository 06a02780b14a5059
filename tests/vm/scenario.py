"""Runs in the machine, as root, with the standard library alone: a user installs the service, and everything happens.

Prints one JSON object a line for each step: {"step", "ok", "seen"}. After the reboot it goes on where it was.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pwd
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

PAYLOAD = Path("/payload")
PHASE = Path("/var/lib/phase")
ADA = pwd.getpwnam("ada")
HOME = Path(ADA.pw_dir)
APP = HOME / "My Apps 100% $HOME" / "venv"
PYTHON = APP / "bin" / "python"
PACKAGES = APP / "lib" / "python3.12" / "site-packages"
ROOT = HOME / "a store 50% $USER"
RUNTIME = Path(f"/run/user/{ADA.pw_uid}")
ENV = {"HOME": str(HOME), "USER": "ada", "LOGNAME": "ada", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
DROP_IN = HOME / ".config/systemd/user/pacerelled.service.d/own.conf"
DEADLINE = 120.0  # seconds; the machine is emulated
UNITS = ("pacerelled.socket", "pacerelled.service")


def until(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + DEADLINE
    while not (value := condition()):
        assert time.monotonic() < end, f"timed out waiting for {what}"
        time.sleep(0.1)
    return value


def ada(*command: str | Path, check: bool = True) -> str:
    """A command of the user's, in no session of its own. What it prints."""
    env = ENV | {"XDG_RUNTIME_DIR": str(RUNTIME)}
    done = subprocess.run(
        list(map(str, command)), env=env, user="ada", group="ada", extra_groups=[], cwd=HOME, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    assert not check or done.returncode == 0, f"{command}: {done.returncode} {done.stdout}"
    return done.stdout


def pacerelle(*words: str, root: Path = ROOT, check: bool = True) -> str:
    return ada(PYTHON, "-I", "-m", "pacerelle_cli", "--store-root", root, *words, check=check)


def in_session(*words: str) -> str:
    """The same in a session: logind lets nobody else change lingering without a password."""
    line = shlex.join(map(str, [PYTHON, "-I", "-m", "pacerelle_cli", "--store-root", ROOT, *words]))
    done = subprocess.run(["su", "-l", "ada", "-c", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def systemctl(*words: str) -> str:
    return ada("systemctl", "--user", *words).strip()


def main_pid() -> int:
    """Of the service's daemon; 0 without one."""
    return int(systemctl("show", "--value", "--property=MainPID", UNITS[1]))


def owner(root: Path = ROOT) -> int:
    """Of the daemon that has the store; 0 without one."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((root / "pacerelled" / "lock").read_text())
        os.kill(pid, 0)
        return pid
    return 0


def serves(*, instead_of: int = 0) -> int:
    """The pid of the service's daemon, once it serves."""

    def look() -> int:
        pid = main_pid()
        ready = pid not in (0, instead_of) and systemctl("show", "--value", "--property=ActiveState", UNITS[1])
        return pid if ready == "active" else 0

    return int(until(look, "the service"))


CALL = """
import http.client, json, socket, sys
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX)
connection.sock.connect(sys.argv[1])
connection.request(sys.argv[2], sys.argv[3], body=sys.argv[4])
print(connection.getresponse().read().decode())
"""


def control(method: str, path: str, body: Any = None, root: Path = ROOT) -> Any:
    """A call of control.sock, which answers nobody but the user."""
    place = root / "pacerelled" / "control.sock"
    return json.loads(ada(sys.executable, "-I", "-c", CALL, place, method, path, json.dumps(body) if body else ""))


class Login:
    """A session of the user's, as at a terminal."""

    def __enter__(self) -> Login:
        self._shell = subprocess.Popen(
            ["su", "-l", "ada", "-c", "exec sleep infinity"], stdin=subprocess.DEVNULL, start_new_session=True
        )
        until((RUNTIME / "systemd" / "private").exists, "the user's systemd")
        return self

    def __exit__(self, *_: object) -> None:
        os.killpg(self._shell.pid, signal.SIGTERM)
        self._shell.wait()


# With ten times the patience, for a machine that is ten times as slow as those that hosts have their limits for.
SHIM = f"""
import sys
sys.path.append({str(PACKAGES)!r})
import pacerelle_shim
pacerelle_shim.START_WAIT *= 10
pacerelle_shim.CALL_WAIT *= 10
sys.exit(pacerelle_shim.main())
"""


class Host:
    """An MCP host with a shim, in no session, with the little environment that hosts give. Keeps count of errors."""

    def __init__(self) -> None:
        settings = {"AGENT_ID": "a1", "AGENT_TOKEN": "t", "BASE_URL": "http://127.0.0.1:9", "STORE_ROOT": str(ROOT)}
        env = ENV | {f"PACERELLE_{name}": value for name, value in settings.items()}
        self._process = subprocess.Popen(
            [str(PYTHON), "-I", "-S", "-c", SHIM], env=env, user="ada", group="ada", extra_groups=[],
            cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.calls, self.errors, self.longest = 0, list[str](), 0.0
        self._busy = threading.Event()
        client = {"name": "host", "version": "1"}
        self.call("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client})
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()

    def call(self, method: str, params: dict[str, Any]) -> Any:
        assert self._process.stdout is not None
        self.calls += 1
        started = time.monotonic()
        self._write({"jsonrpc": "2.0", "id": self.calls, "method": method, "params": params})
        while (message := json.loads(self._process.stdout.readline())).get("id") != self.calls:
            pass
        self.longest = max(self.longest, time.monotonic() - started)
        if "error" in message or message["result"].get("isError"):
            self.errors.append(json.dumps(message)[:500])
        return message.get("result")

    def status(self) -> Any:
        return self.call("tools/call", {"name": "get_status", "arguments": {}})

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Calls one after the other meanwhile."""
        self._busy.set()

        def work() -> None:
            while self._busy.is_set():
                self.status()
                time.sleep(0.1)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            self._busy.clear()
            thread.join()

    def well(self) -> dict[str, Any]:
        """Asks once more; nothing that it ever asked has failed."""
        self.status()
        errors, self.errors = self.errors, []
        assert not errors, errors
        return {"calls": self.calls, "longest": round(self.longest, 1)}

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def report(name: str, step: Callable[[], Any]) -> None:
    started = time.monotonic()
    try:
        seen, ok = step(), True
    except Exception:
        seen, ok = traceback.format_exc()[-3000:], False
    print(json.dumps({"step": name, "ok": ok, "seen": seen, "s": round(time.monotonic() - started, 1)}), flush=True)


def install_wheel(name: str) -> None:
    (wheel,) = (PAYLOAD / name).glob("*.whl")
    ada(PYTHON, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-warn-script-location", wheel)


def drop_in(text: str) -> None:
    DROP_IN.parent.mkdir(parents=True, exist_ok=True)
    DROP_IN.write_text(text)
    systemctl("daemon-reload")


def journal() -> str:
    return ada("journalctl", "--user", "--unit=pacerelled.service", "--no-pager", "--output=cat")


# Steps before the reboot. Each begins where the one before has ended.


def prepare() -> Any:
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    (APP.parent).mkdir()
    os.chown(APP.parent, ADA.pw_uid, ADA.pw_gid)
    ada(sys.executable, "-m", "venv", "--without-pip", APP)
    (PACKAGES / "dependencies.pth").write_text("/opt/lib/python3.12/site-packages\n")
    install_wheel("old")
    return subprocess.run(["systemctl", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]


def install(hosts: list[Host]) -> Any:
    """A host has started a daemon before; it gives way."""
    hosts += [Host(), Host()]
    before = owner()
    assert before
    with hosts[0].load():
        said = pacerelle("service", "install")
    assert "running" in said, said
    pid = serves(instead_of=before)
    again = json.loads(pacerelle("service", "install", "--json"))
    assert again["changed"] is False
    assert again["service"]["pid"] == pid
    assert (again["service"]["enabled"], again["service"]["linger"]) == (True, False)
    return hosts[0].well()


def rights() -> Any:
    pid = main_pid()
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    limits = Path(f"/proc/{pid}/limits").read_text()
    assert "Max core file size        0" in limits
    for name in ("mcp.sock", "control.sock"):
        assert (ROOT / "pacerelled" / name).stat().st_mode & 0o777 == 0o600
    return journal()[-300:]


def woken() -> Any:
    """What the daemon starts for its user has none of the service's bounds, and systemd ends all of it."""

    def test(*command: str, wait: str = "60") -> Any:
        pacerelle("wake", "set", "--max", "10", "--", *command)
        return json.loads(pacerelle("wake", "test", "--json", "--wait", wait, check=False))["run"]

    def units() -> str:
        return systemctl("list-units", "--all", "--plain", "--no-legend", "pacerelle-run_*")

    code = "print(open('/proc/self/status').read(), open('/proc/self/cgroup').read(), sorted(__import__('os').environ))"
    run = test(sys.executable, "-I", "-c", code)
    assert (run["state"], run["exit_code"]) == ("exited", 0), run
    assert "Seccomp:\t0" in run["output"]
    assert "NoNewPrivs:\t0" in run["output"]
    assert f"/pacerelle-{run['id']}.service" in run["output"]
    assert "MANAGERPID" not in run["output"]
    until(lambda: units() == "", "the end of its unit")
    hidden = "env -i setsid tail -f /dev/null & tail -f /dev/null"  # the first looks like nobody's
    run = test("/bin/sh", "-c", hidden)
    assert run["state"] == "timeout", run
    until(lambda: units() == "" and ada("pgrep", "-x", "tail", check=False) == "", "the end of all of it")
    pacerelle("wake", "remove")
    return run["duration_s"]


def stop(hosts: list[Host]) -> Any:
    started = time.monotonic()
    systemctl("stop", *UNITS)
    took = time.monotonic() - started
    assert took < 2.0, took
    time.sleep(3)  # idle hosts leave it stopped
    assert (main_pid(), owner()) == (0, 0)
    assert not (ROOT / "pacerelled" / "mcp.sock").exists()
    return {"s": round(took, 2)}


def first_call(hosts: list[Host]) -> Any:
    """With closed sockets the shim asks for them; open ones start the service by themselves."""
    hosts[0].status()
    pid = serves()
    hosts[1].status()
    pacerelle("stop")
    assert (main_pid(), owner()) == (0, 0)
    systemctl("start", UNITS[0])
    hosts[1].status()
    serves(instead_of=pid)
    return hosts[0].well(), hosts[1].well()


def kill(hosts: list[Host]) -> Any:
    before = int(systemctl("show", "--value", "--property=NRestarts", UNITS[1]))
    with hosts[0].load(), hosts[1].load():
        for _ in range(3):
            pid = serves()
            time.sleep(1)
            os.kill(pid, signal.SIGKILL)
            serves(instead_of=pid)
    assert int(systemctl("show", "--value", "--property=NRestarts", UNITS[1])) == before + 3
    return hosts[0].well(), hosts[1].well()


def crash_loop(hosts: list[Host]) -> Any:
    """A daemon that cannot start does not take the sockets down, and who waits is answered when it can."""
    config = ROOT / "pacerelled" / "config.toml"
    config.write_text("nonsense = 1\n")
    os.kill(serves(), signal.SIGKILL)
    before = int(systemctl("show", "--value", "--property=NRestarts", UNITS[1]))
    with hosts[0].load():
        until(lambda: int(systemctl("show", "--value", "--property=NRestarts", UNITS[1])) >= before + 2, "two failures")
        assert systemctl("is-active", UNITS[0]) == "active"
        config.unlink()
    serves()
    assert "Unknown setting" in journal()
    return hosts[0].well()


def watchdog(hosts: list[Host]) -> Any:
    drop_in("[Service]\nWatchdogSec=15\nTimeoutAbortSec=2\n")
    systemctl("restart", UNITS[1])
    pid = serves()
    time.sleep(20)  # it is fed: nothing happens
    assert main_pid() == pid
    with hosts[0].load():
        os.kill(pid, signal.SIGSTOP)
        serves(instead_of=pid)
    assert "Watchdog timeout" in journal()
    DROP_IN.unlink()
    systemctl("daemon-reload")
    systemctl("restart", UNITS[1])
    return hosts[0].well()


def logs() -> Any:
    shown = pacerelle("service", "logs", "--lines", "5")
    assert "pacerelled[" in shown
    return shown[-300:]


def upgrade(hosts: list[Host]) -> Any:
    assert control("GET", "/v1/status")["daemon"]["version"] == "0.1.0"
    with hosts[0].load():
        install_wheel("new")
        pacerelle("service", "restart")
    assert control("GET", "/v1/status")["daemon"]["version"] == "0.1.1"
    return hosts[0].well()


def logged_out(hosts: list[Host]) -> Any:
    """Without lingering the service is gone; a host that goes on helps itself."""
    until(lambda: not (RUNTIME / "systemd").exists(), "the end of the user's systemd")
    assert owner() == 0
    hosts[0].status()
    return owner() or 1 / 0


def logged_in_again(hosts: list[Host], own: int) -> Any:
    pid = serves()
    assert pid != own
    until(lambda: not Path(f"/proc/{own}").exists(), "the end of the host's daemon")
    return hosts[0].well(), hosts[1].well()


def install_lingering() -> Any:
    said = in_session("service", "install", "--linger")
    assert "starts at boot" in said
    return said


def lingering(hosts: list[Host], before: int) -> Any:
    """Logged out, and it is still there."""
    time.sleep(20)
    assert main_pid() == before == owner()
    return hosts[0].well()


def before_the_reboot() -> None:
    hosts: list[Host] = []
    with Login():
        report("prepare", prepare)
        for step in (install, rights, woken, stop, first_call, kill, crash_loop, watchdog, logs, upgrade):
            report(step.__name__, (lambda s=step: s(hosts) if s.__code__.co_argcount else s()))  # type: ignore[misc]
    own = 0

    def log_out() -> Any:
        nonlocal own
        own = logged_out(hosts)
        return own

    report("logged_out", log_out)
    with Login():
        report("logged_in_again", lambda: logged_in_again(hosts, own))
        report("install_lingering", install_lingering)
        pid = main_pid()
    report("lingering", lambda: lingering(hosts, pid))
    for host in hosts:
        host.close()


# And after it.


def rebooted() -> Any:
    """Nobody has logged in."""
    until((RUNTIME / "systemd" / "private").exists, "the user's systemd")
    serves()
    host = Host()
    seen = host.well()
    host.close()
    return seen


def uninstall() -> Any:
    in_session("service", "uninstall")
    assert not Path("/var/lib/systemd/linger/ada").exists()
    assert list((HOME / ".config/systemd/user").rglob("pacerelled.*")) in ([], [DROP_IN.parent])
    assert owner() == 0
    host = Host()
    assert owner()
    host.well()
    host.close()
    return pacerelle("stop")


def credentials() -> Any:
    secrets, root = HOME / "secrets", HOME / "second"
    secrets.mkdir(mode=0o700)
    for name, text in (("key", base64.b64encode(os.urandom(32)).decode()), ("token", "hidden")):
        (secrets / name).write_text(text)
        os.chown(secrets / name, ADA.pw_uid, ADA.pw_gid)
    os.chown(secrets, ADA.pw_uid, ADA.pw_gid)
    drop_in(
        "[Service]\nLoadCredential=pacerelled-store-key:%h/secrets/key\n"
        "LoadCredential=pacerelled-token-a2:%h/secrets/token\n"
    )
    pacerelle("service", "install", root=root)
    state = root / "pacerelled"
    assert json.loads((state / "store.json").read_text())["key_source"] == "credential"
    assert not (state / "store.key").exists()
    added = control("POST", "/v1/agents", {"agent_id": "a2", "base_url": "http://127.0.0.1:9"}, root=root)
    assert added["login"] == "ok", added
    pacerelle("service", "restart", root=root)
    pacerelle("service", "uninstall", root=root)
    return added["login"]


def after_the_reboot() -> None:
    report("rebooted", rebooted)
    with Login():
        report("uninstall", uninstall)
        report("credentials", credentials)


def main() -> None:
    if not PHASE.exists():
        PHASE.write_text("rebooting")
        before_the_reboot()
        subprocess.run(["systemctl", "reboot"], check=True)
    else:
        after_the_reboot()
        subprocess.run(["systemctl", "poweroff"], check=True)


main()
