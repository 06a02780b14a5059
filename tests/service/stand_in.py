"""Stands in for systemctl and loginctl: writes down how it was called, and plays a user manager with one service.

`$PLAY` is the folder of its state: `calls`, `enabled`, `active` (there if so), and `fail` with the verbs to refuse.
"""

from __future__ import annotations

import os
import pwd
import sys
from pathlib import Path

PLAY = Path(os.environ["PLAY"])


def main(words: list[str]) -> int:
    with (PLAY / "calls").open("a") as file:
        file.write(" ".join(words) + "\n")
    verb, *rest = [word for word in words if not word.startswith("-")]
    units = [word for word in rest if word.startswith("pacerelled.")]
    if (PLAY / "fail").exists() and verb in (PLAY / "fail").read_text().split():
        print(f"Failed to {verb}: Transport endpoint is not connected", file=sys.stderr)
        return 1
    if verb in ("start", "restart"):
        (PLAY / "active").touch()
    elif verb == "stop":
        (PLAY / "active").unlink(missing_ok=True)
    elif verb == "enable":
        (PLAY / "enabled").touch()
    elif verb == "disable":
        (PLAY / "enabled").unlink(missing_ok=True)
    elif verb in ("enable-linger", "disable-linger"):
        mark = Path(os.environ["LINGERING"]) / pwd.getpwuid(os.getuid()).pw_name
        mark.touch() if verb == "enable-linger" else mark.unlink()
    elif verb == "show" and units:
        active = (PLAY / "active").exists()
        print(f"ActiveState={'active' if active else 'inactive'}\nSubState={'running' if active else 'dead'}")
        print(f"MainPID={os.getppid() if active else 0}\nNRestarts=0")
        print(f"UnitFileState={'enabled' if (PLAY / 'enabled').exists() else 'disabled'}")
    return 0


sys.exit(main(sys.argv[1:]))
