"""The last step before a command that was started outside of the daemon's service: becomes it, as standard input says.

A program of its own that needs nothing but the standard library; `outside.py` starts it.
"""

from __future__ import annotations

import json
import os
import sys


def main() -> None:
    with open(0, encoding="utf-8", closefd=False) as said:
        start = json.load(said)
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(start["cwd"])
        os.execve(start["argv"][0], start["argv"], start["env"])
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "it is no command"
        print(f"{start['argv'][0]} could not be started: {reason}", file=sys.stderr)
        sys.exit(127)


if __name__ == "__main__":
    main()
