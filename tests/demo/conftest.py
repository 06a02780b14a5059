from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.running import Place


@pytest.fixture
def place() -> Iterator[Place]:
    """A home and a folder for temporary files; the test fails if the demo leaves anything in them, or a process."""
    # Not below tmp_path: its length would decide where the daemon's sockets are.
    folder = Path(tempfile.mkdtemp(prefix="pd-"))
    made = Place(folder)
    try:
        yield made
        assert made.leftovers() == []
    finally:
        made.kill_leftovers()
        shutil.rmtree(folder)
