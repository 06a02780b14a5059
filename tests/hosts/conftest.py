"""A home whose path has blanks, quotes and letters of all kinds; the command line as a process in it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.world import Home, world
from tests.hosts.host_world import HostHome

__all__ = ["home", "world"]


@pytest.fixture
def home() -> Iterator[Home]:
    folder = Path(tempfile.mkdtemp(prefix="pc-"))
    path = folder / "Ada's “hö me”"
    path.mkdir()
    yield HostHome(path)
    shutil.rmtree(folder)
