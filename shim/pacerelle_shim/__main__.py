"""Runs the shim: `python -m pacerelle_shim`, or `python -I -S …/pacerelle_shim/__main__.py`, the fastest start."""

import sys

if not __package__:  # run by path: nothing has put the package where imports look
    sys.path.append(__file__.rpartition("/")[0].rpartition("/")[0] or "..")

from pacerelle_shim import main

sys.exit(main())
