"""Runs the measurements named on the command line, or all of them."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
from pathlib import Path


def main() -> int:
    found = sorted(path.stem.removeprefix("bench_") for path in Path(__file__).parent.glob("bench_*.py"))
    parser = argparse.ArgumentParser(prog="python -m bench", description=f"Measurements: {', '.join(found)}.")
    parser.add_argument("names", nargs="*", metavar="name", help="which; all by default")
    parser.add_argument("--json", action="store_true", help="numbers to stdout, tables to stderr")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(found)
    if unknown:
        parser.error(f"no measurement is called {', '.join(sorted(unknown))}; there are: {', '.join(found)}")
    results = {}
    for name in arguments.names or found:
        with contextlib.redirect_stdout(sys.stderr if arguments.json else sys.stdout):
            print(f"== {name}", flush=True)
            results[name] = importlib.import_module(f"bench.bench_{name}").main()
            print(flush=True)
    if arguments.json:
        print(json.dumps(results, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
