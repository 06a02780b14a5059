"""`pacerelle status` with no other option than `--json`, past click: scripts and prompts ask it all the time."""

from __future__ import annotations

import os
import sys

from . import overview, show
from .cli import Cli
from .errors import FAILED, CliError

COMMAND_LINES = (["status"], ["status", "--json"], ["--json", "status"])


def status(*, json: bool) -> int:
    """The exit code, with all that the command in `status` would print."""
    show.forgive()
    try:
        try:
            code = overview.status(Cli(json=json))
        except CliError as error:
            code = error.exit_code
            if json:
                show.as_json({"error": error.as_dict()})
            error.show()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads what is left, not even at the end
        code = FAILED
    except KeyboardInterrupt:
        print("Aborted!", file=sys.stderr)
        code = FAILED
    return code
