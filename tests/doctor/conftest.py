from __future__ import annotations

from tests.e2e.conftest import machine

__all__ = ["machine"]
