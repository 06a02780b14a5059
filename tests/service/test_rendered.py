"""The files for systemd and launchd: as they should be, with paths of any kind, and as their programs read them."""

from __future__ import annotations

import os
import plistlib
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from pacerelle_cli.errors import CliError
from pacerelle_cli.service.render import Daemon, launchd_file, systemd_files
from pacerelled.activation import LAUNCHD_LABEL

GOLDEN = Path(__file__).with_name("golden")
ROOT = Path(__file__).parents[2]
ODD = '/home/ada/50% of "$HOME" \\ & <more>'
PLAIN = Daemon(
    command=["/home/ada/venv/bin/python", "-I", "-m", "pacerelled", "--store-root", "/home/ada/.pacerelle/mcp"],
    mcp_sock=Path("/home/ada/.pacerelle/mcp/pacerelled/mcp.sock"),
    control_sock=Path("/home/ada/.pacerelle/mcp/pacerelled/control.sock"),
    log=Path("/home/ada/.pacerelle/mcp/pacerelled/pacerelled.log"),
)
STRANGE = Daemon(
    command=["/home/ada/50% of $HOME & <more>/bin/python", "-I", "-m", "pacerelled", "--store-root", ODD],
    mcp_sock=Path(f"{ODD}/pacerelled/mcp.sock"),
    control_sock=Path(f"{ODD}/pacerelled/control.sock"),
    log=Path(f"{ODD}/pacerelled/pacerelled.log"),
    environment={"HTTPS_PROXY": 'http://ada:100%$"@proxy:3128', "PACERELLED_LOG_LEVEL": "debug"},
)
UNKNOWN_TO_OLD = ("RestartSteps", "RestartMaxDelaySec")


def rendered() -> dict[str, str]:
    found = {}
    for name, daemon in (("plain", PLAIN), ("strange", STRANGE)):
        found |= {f"{name}-{unit}": text for unit, text in systemd_files(daemon).items()}
        found[f"{name}-pacerelled.plist"] = launchd_file(daemon)
    return found


@pytest.mark.parametrize("name", sorted(rendered()))
def test_it_is_as_written_down(name: str) -> None:
    """After a change on purpose: `python -m tests.service.test_rendered` writes them down anew."""
    assert rendered()[name] == (GOLDEN / name).read_text()


def test_nothing_is_left_to_fill_in() -> None:
    for text in rendered().values():
        assert not re.search(r"@[A-Z_]+@", text)


@pytest.mark.parametrize("daemon", [PLAIN, STRANGE])
def test_launchd_reads_what_was_meant(daemon: Daemon) -> None:
    read: dict[str, Any] = plistlib.loads(launchd_file(daemon).encode())
    assert read["Label"] == LAUNCHD_LABEL
    assert read["ProgramArguments"] == list(daemon.command)
    assert read["EnvironmentVariables"] == dict(daemon.environment)
    assert read["Sockets"]["mcp"]["SockPathName"] == str(daemon.mcp_sock)
    assert read["Sockets"]["control"] == {
        "SockFamily": "Unix",
        "SockPathName": str(daemon.control_sock),
        "SockPathMode": 0o600,
    }
    assert read["RunAtLoad"] is read["KeepAlive"] is True
    assert read["Umask"] == 0o077
    assert read["StandardErrorPath"] == str(daemon.log)


@pytest.mark.parametrize("path", ["/home/a\nb", "/home/a\x1bb", "/home/\udcff"])
def test_what_no_file_can_hold_is_refused(path: str) -> None:
    daemon = Daemon(["/bin/python"], Path(path, "mcp.sock"), Path(path, "control.sock"), Path(path, "log"))
    for render in (systemd_files, launchd_file):
        with pytest.raises(CliError) as caught:
            render(daemon)
        assert "store-root" in caught.value.hint


@pytest.mark.parametrize("mark", ["'", '"', "\\"])
def test_a_program_that_systemd_would_not_start_is_refused(mark: str) -> None:
    daemon = Daemon([f"/home/a{mark}b/python"], PLAIN.mcp_sock, PLAIN.control_sock, PLAIN.log)
    with pytest.raises(CliError, match="quote or a backslash"):
        systemd_files(daemon)


def analyze(folder: Path, *words: str) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze here")
    env = {**os.environ, "XDG_RUNTIME_DIR": str(folder), "SYSTEMD_COLORS": "0"}
    done = subprocess.run([program, *words], capture_output=True, text=True, env=env, check=False, timeout=60)
    return done.stdout + done.stderr


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Units whose program exists."""
    folder = tmp_path / "a 100% $HOME"
    folder.mkdir()
    (folder / "python").symlink_to(sys.executable)
    daemon = Daemon(
        [str(folder / "python"), *STRANGE.command[1:]], STRANGE.mcp_sock, STRANGE.control_sock, STRANGE.log,
        STRANGE.environment,
    )  # fmt: skip
    for name, text in systemd_files(daemon).items():
        (tmp_path / name).write_text(text)
    return tmp_path


def test_systemd_finds_nothing_wrong(units: Path) -> None:
    said = analyze(units, "--user", "verify", str(units / "pacerelled.service"), str(units / "pacerelled.socket"))
    assert [line for line in said.splitlines() if not any(f"'{key}'" in line for key in UNKNOWN_TO_OLD)] == []


def test_its_exposure_is_the_documented_one(units: Path) -> None:
    if not analyze(units, "--version").startswith("systemd 252 "):
        pytest.skip("each version of systemd counts differently")
    said = analyze(units, "--user", "security", "--offline=yes", str(units / "pacerelled.service"))
    (score,) = re.findall(r"exposure level for pacerelled.service: ([0-9.]+)", said)
    assert f"**{score}**" in (ROOT / "docs" / "service.md").read_text()


def test_the_wheel_has_the_templates(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=120)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        for name in ("systemd/pacerelled.service", "systemd/pacerelled.socket", "launchd/pacerelled.plist"):
            assert archive.read(f"pacerelle_cli/service/templates/{name}") == (ROOT / name).read_bytes()


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for name, text in rendered().items():
        (GOLDEN / name).write_text(text)
