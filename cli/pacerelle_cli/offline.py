"""What only the daemon's own program can do with the store while no daemon runs: it is started, and listened to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from .context import Cli
from .errors import CliError, refused
from .progress import Progress


def offline(
    cli: Cli,
    verb: str,
    *arguments: str,
    passphrase: str | None = None,
    progress: Progress | None = None,
    pass_fds: Sequence[int] = (),
    on_waiting: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """The result of `python -m pacerelled.offline VERB …`. Raises CliError.

    `on_waiting` is called when it waits for a daemon to end.
    """
    root = os.fspath(cli.paths.state.parent)
    process = subprocess.Popen(
        [sys.executable, "-I", "-m", "pacerelled.offline", "--store-root", root, verb, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=pass_fds,
    )
    said: dict[str, Any] = {}
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdin.write(f"{passphrase or ''}\n".encode("utf-8", "surrogatepass"))
            process.stdin.close()
            for line in process.stdout:
                said = json.loads(line)
                if "done" in said and progress is not None:
                    progress(said["done"], said["all"])
                elif "waiting" in said and on_waiting is not None:
                    on_waiting()
            words = process.stderr.read().decode(errors="replace").strip().splitlines()
        except BaseException:
            process.terminate()
            raise
    if error := said.get("error"):
        raise refused(error["code"], error["message"], hint=error["hint"])
    if "result" not in said:
        raise CliError(f"The store could not be used: {words[-1] if words else 'it ended without a word'}")
    result: dict[str, Any] = said["result"]
    return result
