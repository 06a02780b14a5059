"""Entry point of `pacerelle`."""

from __future__ import annotations

from .root import root


def main() -> None:
    root(prog_name="pacerelle")


if __name__ == "__main__":
    main()
