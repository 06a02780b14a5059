"""How far something is, on a terminal; nothing elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

import click


class Progress:
    """`with Progress("Copying") as progress: progress(done, of_all)`, in whatever unit."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._shown = False

    def __enter__(self) -> Self:
        return self

    def __call__(self, done: int, whole: int) -> None:
        if sys.stderr.isatty():
            self._shown = True
            click.echo(f"\r{self._what}: {100 * done // max(whole, 1)} %", nl=False, err=True)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            click.echo(err=True)
