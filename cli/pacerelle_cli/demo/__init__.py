"""`pacerelle demo`: the whole way of a message, on this machine alone, in a temporary home.

Relay, daemon, shims and phone are the real ones. The demo runs them as processes, looks at what they answer and at the
relay's database, and imports none of them.
"""

from __future__ import annotations

from .command import demo

__all__ = ["demo"]
