"""A user's service under a real systemd: everything in `scenario.py`, in a machine of its own for each version."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from . import machine

REPOSITORY = Path(__file__).parents[2]
SOURCES = ("protocol", "daemon", "shim", "cli", "relay", "phone", "systemd", "launchd")
STEPS = (
    "prepare", "install", "rights", "woken", "stop", "first_call", "kill", "crash_loop", "watchdog", "logs", "upgrade",
    "logged_out", "logged_in_again", "install_lingering", "lingering", "rebooted", "uninstall", "credentials",
)  # fmt: skip
WITHIN = 1800.0  # seconds for all of them

pytestmark = pytest.mark.vm


def build_wheel(target: Path, version: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        for folder in SOURCES:
            shutil.copytree(REPOSITORY / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for file in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(REPOSITORY / file, tree)
        for file in (tree / "pyproject.toml", tree / "daemon/pacerelled/__init__.py"):
            file.write_text(file.read_text().replace('version = "0.1.0"', f'version = "{version}"', 1)
                            .replace('__version__ = "0.1.0"', f'__version__ = "{version}"'))  # fmt: skip
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(target)]
        subprocess.run(command, cwd=tree, check=True, capture_output=True)


def python_disk(target: Path) -> None:
    """This Python, without its tests. It goes to the same place, since its library is looked for there."""
    with tempfile.TemporaryDirectory() as tree:
        base = Path(sys.base_prefix)
        shutil.copytree(base / "bin", Path(tree, "bin"), symlinks=True)
        unwanted = shutil.ignore_patterns("test", "idlelib", "config-*", "*.a", "site-packages")
        shutil.copytree(base / "lib", Path(tree, "lib"), symlinks=True, ignore=unwanted)
        machine.pack(Path(tree), target, "python")


def dependencies_disk(target: Path) -> None:
    """What we need, without ourselves."""
    with tempfile.TemporaryDirectory() as tree:
        (found,) = Path(sys.prefix, "lib").glob("python*/site-packages")
        ours = shutil.ignore_patterns("pacerelled-*", "_pacerelled.pth", "pacerelle_*", "mypy", "ruff")
        shutil.copytree(found, Path(tree, "all"), ignore=ours)
        machine.pack(Path(tree, "all"), target, "dependencies")


@pytest.fixture(scope="module")
def disks() -> Iterator[list[Path]]:
    if Path(sys.base_prefix) == Path("/usr"):
        pytest.skip("this Python is the system's, and cannot be taken into another one")
    with tempfile.TemporaryDirectory(prefix="pacerelled-vm-") as name:
        folder = Path(name)
        payload = folder / "payload"
        payload.mkdir()
        shutil.copy(Path(__file__).with_name("scenario.py"), payload)
        build_wheel(payload / "old", "0.1.0")
        build_wheel(payload / "new", "0.1.1")
        (payload / "start").write_text(
            f'mkdir -p "{sys.base_prefix}" /opt/lib/python3.12/site-packages\n'
            f'folder="{sys.base_prefix}"; while [ "$folder" != / ]; do chmod a+rx "$folder";'
            ' folder=$(dirname "$folder"); done\n'
            f'mount -o ro LABEL=python "{sys.base_prefix}"\n'
            "mount -o ro LABEL=dependencies /opt/lib/python3.12/site-packages\n"
            f'exec "{sys.base_prefix}/bin/python3.12" -I /payload/scenario.py\n'
        )
        made = [folder / f"{name}.ext4" for name in ("payload", "python", "dependencies")]
        machine.pack(payload, made[0], "payload")
        python_disk(made[1])
        dependencies_disk(made[2])
        yield made


@pytest.fixture(scope="module", params=machine.SUITES)
def results(request: pytest.FixtureRequest, disks: list[Path]) -> dict[str, Any]:
    """Step → what it found."""
    try:
        image = machine.image(request.param)
    except machine.NoMachine as error:
        pytest.skip(str(error))
    said = machine.run(image, disks, within=WITHIN)
    print(said)
    lines = [json.loads(line) for line in said.splitlines() if line.startswith('{"step"')]
    found = {line["step"]: line for line in lines}
    if found["prepare"]["ok"]:
        assert int(found["prepare"]["seen"]) == machine.SUITES[request.param]
    return found


@pytest.mark.parametrize("step", STEPS)
def test_step(results: dict[str, Any], step: str) -> None:
    assert results[step]["ok"], results[step]["seen"]
