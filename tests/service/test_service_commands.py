"""`pacerelle service …` with a stand-in for the service manager: what is written, asked for and said."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pacerelle_cli.root import root
from pacerelle_cli.service import launchd, manager, record, systemd
from pacerelle_cli.service.asking import start_service
from tests.daemon.process import daemon

STAND_IN = Path(__file__).with_name("stand_in.py")
USER = pwd.getpwuid(os.getuid()).pw_name


@dataclass
class Place:
    """A user's home, with a service manager that is none."""

    home: Path

    @property
    def units(self) -> Path:
        return self.home / ".config" / "systemd" / "user"

    @property
    def state(self) -> Path:
        return self.home / "store" / "pacerelled"

    @property
    def lingering(self) -> Path:
        return self.home / "linger" / USER

    def run(self, *words: str, root_folder: str = "store") -> Result:
        return CliRunner().invoke(root, ["--store-root", str(self.home / root_folder), *words])

    def json(self, *words: str, code: int = 0) -> dict[str, Any]:
        result = self.run(*words, "--json")
        assert result.exit_code == code, result.output
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    def calls(self) -> list[str]:
        """Those that change something, since the last time."""
        file = self.home / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        file.unlink(missing_ok=True)
        return [line.replace("--user ", "").replace("--quiet ", "") for line in lines if " show " not in line]

    def refuse(self, *verbs: str) -> None:
        (self.home / "fail").write_text(" ".join(verbs))


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    home = Path(tempfile.mkdtemp(prefix="ps-"))
    for folder in ("bin", "linger", "run/systemd"):
        (home / folder).mkdir(parents=True)
    (home / "run/systemd/private").touch()
    for name in ("systemctl", "loginctl", "launchctl"):
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{STAND_IN}" "$@"\n')
        program.chmod(0o755)
    for name in [name for name in os.environ if name.upper().endswith("_PROXY") or name.startswith("PACERELLED_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PLAY", str(home))
    monkeypatch.setenv("LINGERING", str(home / "linger"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    monkeypatch.setattr(systemd, "_BOOTED", home)
    monkeypatch.setattr(systemd, "_LINGERING", home / "linger")
    yield Place(home)
    shutil.rmtree(home)


BOTH = "pacerelled.socket pacerelled.service"


def test_installing_writes_starts_and_says_what_lingering_is(place: Place) -> None:
    result = place.run("service", "install")
    assert result.exit_code == 0
    assert "running" in result.output
    assert "loginctl enable-linger" in result.output
    assert place.calls() == ["daemon-reload", f"enable {BOTH}", f"stop {BOTH}", f"start {BOTH}"]
    assert {path.name for path in place.units.iterdir()} == {"pacerelled.service", "pacerelled.socket"}
    assert f'--store-root "{place.home}/store"' in (place.units / "pacerelled.service").read_text()
    assert {oct(path.stat().st_mode & 0o777) for path in place.units.iterdir()} == {"0o600"}
    assert not place.lingering.exists()
    known = record.load(place.state)
    assert known is not None
    assert known.start[-4:] == [str(place.home / "bin/systemctl"), "--user", "start", "pacerelled.socket"]
    assert os.path.isabs(known.start[0])


def test_installing_again_leaves_alone_what_is_right(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://ada:secret@proxy:3128")
    assert place.json("service", "install")["changed"]
    before = {path: path.stat().st_ino for path in place.units.iterdir()}
    place.calls()
    again = place.json("service", "install")
    assert not again["changed"]
    assert again["service"]["state"] == "running"
    assert not any(call.startswith("stop") for call in place.calls())
    assert {path: path.stat().st_ino for path in place.units.iterdir()} == before
    monkeypatch.delenv("HTTPS_PROXY")
    assert place.json("service", "status")["service"]["current"]  # whatever terminal asks
    (place.units / "pacerelled.service").write_text("[Service]\n")
    assert not place.json("service", "status")["service"]["current"]
    assert place.json("service", "install")["changed"]


async def test_a_daemon_that_runs_gives_way(place: Place) -> None:
    async with daemon(place.home, root=place.home / "store") as running:
        result = place.run("service", "install")
        assert result.exit_code == 0, result.output
        assert await running.ended() == 0
        assert place.calls()[-1] == f"start {BOTH}"


def test_uninstalling_leaves_nothing_and_may_be_repeated(place: Place) -> None:
    place.run("service", "install")
    place.calls()
    assert place.json("service", "uninstall")["uninstalled"]
    assert place.calls() == [f"stop {BOTH}", f"disable {BOTH}", "daemon-reload", f"reset-failed {BOTH}"]
    assert list(place.units.iterdir()) == []
    assert record.load(place.state) is None
    assert not place.json("service", "uninstall")["uninstalled"]
    assert place.calls() == []


def test_what_could_not_be_uninstalled_is_still_known(place: Place) -> None:
    place.run("service", "install", "--linger")
    place.refuse("disable")
    result = place.run("service", "uninstall")
    assert result.exit_code == 1
    assert "Transport endpoint" in result.output
    known = record.load(place.state)
    assert known is not None
    assert known.linger_set


def test_lingering_is_undone_only_by_who_began_it(place: Place) -> None:
    assert place.json("service", "install", "--linger")["service"]["linger"] is True
    place.json("service", "install")
    place.json("service", "uninstall")
    assert not place.lingering.exists()
    place.lingering.touch()
    place.json("service", "install", "--linger")
    place.json("service", "uninstall")
    assert place.lingering.exists()


def test_lingering_that_stays_is_no_reason_to_stay_installed(place: Place) -> None:
    place.run("service", "install", "--linger")
    place.refuse("disable-linger")
    result = place.run("service", "uninstall")
    assert result.exit_code == 1
    assert "The service is uninstalled." in result.output
    assert f"sudo loginctl disable-linger {USER}" in result.output
    assert list(place.units.iterdir()) == []
    assert record.load(place.state) is None


def test_lingering_that_is_refused_names_the_command(place: Place) -> None:
    place.refuse("enable-linger")
    result = place.run("service", "install", "--linger")
    assert result.exit_code == 1
    assert f"sudo loginctl enable-linger {USER}" in result.output


def test_another_store_is_refused(place: Place) -> None:
    place.run("service", "install")
    for verb in ("install", "uninstall", "start", "status"):
        result = place.run("service", verb, root_folder="other")
        assert result.exit_code == 1
        assert "another store" in result.output
    assert place.json("service", "status")["service"]["state"] == "running"


def test_start_stop_and_status(place: Place) -> None:
    assert place.run("service", "status").exit_code == 1
    assert "pacerelle service install" in place.run("service", "start").output
    place.run("service", "install")
    place.calls()
    assert place.json("service", "stop")["service"]["state"] == "stopped"
    assert place.run("service", "status").exit_code == 3
    assert place.json("service", "start")["service"]["state"] == "running"
    assert place.run("service", "status").exit_code == 0
    place.json("service", "restart")
    assert place.calls() == [f"stop {BOTH}", f"start {BOTH}", "restart pacerelled.service"]
    assert "was not running" in place.run("stop").output
    assert place.calls() == [f"stop {BOTH}"]


def test_the_manager_s_words_are_passed_on(place: Place) -> None:
    place.refuse("start")
    result = place.run("service", "install")
    assert result.exit_code == 1
    assert "Transport endpoint is not connected" in result.output
    assert "pacerelle service logs" in result.output


def test_without_a_manager_there_is_another_way(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    (place.home / "run/systemd/private").unlink()
    assert f"sudo loginctl enable-linger {USER}" in place.run("service", "install").output
    monkeypatch.setattr(systemd, "_BOOTED", place.home / "no")
    result = place.run("service", "install")
    assert result.exit_code == 1
    assert "pacerelled --foreground" in result.output
    body = place.json("service", "install", code=1)
    assert body["error"]["code"] == "no_service_manager"
    assert not place.units.exists()


def test_the_log_of_a_daemon_without_a_service(place: Place, capfd: pytest.CaptureFixture[str]) -> None:
    assert "no log yet" in place.run("service", "logs").output
    place.state.mkdir(parents=True)
    (place.state / "pacerelled.log").write_text("one\ntwo\nthree\n")
    assert place.run("service", "logs", "--lines", "2").exit_code == 0
    assert capfd.readouterr().out == "two\nthree\n"


def test_launchd_is_asked_in_its_own_words(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager.sys, "platform", "darwin")
    result = place.json("service", "install")
    file = place.home / "Library/LaunchAgents/pacerelled.plist"
    assert result["service"]["files"] == [str(file)]
    assert result["service"]["manager"] == "launchd"
    domain = f"gui/{os.getuid()}"
    assert place.calls() == [
        f"enable {domain}/pacerelled",
        f"bootout {domain}/pacerelled",
        f"bootstrap {domain} {file}",
        f"print {domain}/pacerelled",
    ]
    place.json("service", "restart")
    assert f"kickstart -k {domain}/pacerelled" in place.calls()
    place.json("service", "uninstall")
    assert not file.exists()
    assert launchd.LABEL == "pacerelled"


def test_a_service_that_cannot_be_asked_is_no_hindrance(tmp_path: Path) -> None:
    assert not start_service(tmp_path)
    for command, done in ((["/bin/true"], True), (["/bin/false"], False), (["/no/such"], False)):
        record.save(tmp_path, record.Record("systemd", command))
        assert start_service(tmp_path) is done
    (tmp_path / record.FILE).write_text("[]")
    assert not start_service(tmp_path)
