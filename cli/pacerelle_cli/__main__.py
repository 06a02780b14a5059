"""Entry point of `pacerelle`."""

from __future__ import annotations

import sys

from .quick import COMMAND_LINES, status


def main() -> None:
    if sys.argv[1:] in COMMAND_LINES:
        sys.exit(status(json="--json" in sys.argv))
    from .root import root

    root(prog_name="pacerelle")


if __name__ == "__main__":
    main()
