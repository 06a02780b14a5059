"""Fixtures: a home without a daemon, and a world with one."""

from __future__ import annotations

from tests.cli.world import home, world

__all__ = ["home", "world"]
