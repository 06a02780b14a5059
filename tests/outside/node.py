"""Node, and programs from npm, for tests that use them: in a folder of this user's cache, installed once."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs

INSTALL_TIME = 600  # seconds; the largest has 400 MB


class Unavailable(Exception):
    """Why there is no such program here."""


def node() -> str:
    """The Node that is installed. Raises Unavailable."""
    found = shutil.which("node")
    if found is None:
        raise Unavailable("Node is not installed")
    return found


@functools.cache
def node_22() -> str:
    """A Node of version 22, from npm. Raises Unavailable."""
    folder = packages("node@22", scripts=True)
    program = folder / "node_modules" / "node" / "bin" / "node"
    if not program.exists():
        raise Unavailable("npm's package node@22 brought no Node for this machine")
    return str(program)


def packages(*specs: str, scripts: bool = False) -> Path:
    """A folder that has these packages (`name@version`) in its node_modules.

    Their install scripts run only with `scripts`. Raises Unavailable.
    """
    cache = platformdirs.user_cache_path("pacerelled-tests")
    folder = cache / "+".join(spec.replace("/", "_").lstrip("@") for spec in specs)
    if all(has(folder, spec) for spec in specs):
        return folder
    npm = shutil.which("npm")
    if npm is None:
        raise Unavailable("npm is not installed")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as made:
        options = ["--no-audit", "--no-fund", *([] if scripts else ["--ignore-scripts"])]
        try:
            result = subprocess.run(
                [npm, "install", *options, *specs],
                cwd=made,
                capture_output=True,
                text=True,
                timeout=INSTALL_TIME,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Unavailable(f"npm did not install {', '.join(specs)} within {INSTALL_TIME} s") from None
        if result.returncode:
            raise Unavailable(f"npm could not install {', '.join(specs)}: {result.stderr.strip()[-300:]}")
        with contextlib.suppress(OSError):  # another test was faster
            os.rename(made, folder)
            os.mkdir(made)
    if not all(has(folder, spec) for spec in specs):
        raise Unavailable(f"npm installed something else than {', '.join(specs)}")
    return folder


def has(folder: Path, spec: str) -> bool:
    """Whether `folder` has the package, in its version or one that begins with it."""
    name, _, version = spec.rpartition("@")
    try:
        manifest = json.loads((folder / "node_modules" / name / "package.json").read_text())
    except (OSError, ValueError):
        return False
    return f"{manifest['version']}.".startswith(f"{version}.")


def this_platform() -> str:
    """As npm's packages call it: `linux-x64`, `darwin-arm64`."""
    machine = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    return f"{sys.platform}-{machine}"
