"""The Secret Service itself: GNOME Keyring on a session bus of its own, as Debian ships both."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MISSING = [name for name in ("dbus-run-session", "gnome-keyring-daemon") if shutil.which(name) is None]

# A session bus that starts nothing by itself.
BUS = """
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>session</type>
  <listen>unix:tmpdir=/tmp</listen>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>
"""


@pytest.mark.outside
@pytest.mark.skipif(bool(MISSING), reason=f"{' and '.join(MISSING)} is not installed (Debian: gnome-keyring, dbus)")
def test_absent_unlocked_and_locked(tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    config = tmp_path / "bus.conf"
    config.write_text(BUS)
    done = subprocess.run(
        [
            "dbus-run-session",
            "--config-file",
            str(config),
            "--",
            sys.executable,
            "-m",
            "tests.keys.secret_service",
            str(tmp_path),
        ],
        cwd=Path(__file__).parents[2],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(runtime), "LANG": "C.UTF-8"},
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    out = json.loads(done.stdout.splitlines()[-1])
    refused = out.pop("key wanted")
    assert out == {
        "without": "absent",
        "unlocked": "ready",
        "made": "keyring",
        "rekeyed": "keyring",
        "changed": True,
        "token": [True, "t"],
        "deleted": True,
        "locked": "locked",
        "left alone": True,
    }
    assert refused.startswith("StoreKeyError")
    assert "keyring" in refused
    assert not (tmp_path / "root" / "pacerelled" / "store.key").exists()
