"""Whether what the daemon stands on is there: Python, the Signal runtime, SQLCipher."""

from __future__ import annotations

import platform
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version

from .finding import Finding


def runtime() -> Finding:
    """The libraries are loaded, not only looked up: a wheel for another system is found out only so."""
    try:
        import_module("pacerelle_protocol.signal")
        cipher = import_module("sqlcipher3.dbapi2").connect(":memory:").execute("PRAGMA cipher_version").fetchone()
        signal = version("pacerelle")
    except (ImportError, OSError, PackageNotFoundError) as error:
        why = f"a library does not load ({type(error).__name__})"
        return Finding("runtime", "failed", why, "Install pacerelled again, with CPython 3.12.")
    parts = f"Python {platform.python_version()}, Signal runtime {signal}, SQLCipher {cipher[0].split()[0]}"
    return Finding("runtime", "ok", parts)
