"""`pacerelle …` as a process in a home, with a passphrase on standard input."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

PHRASE = "correct horse battery staple"
FROM_STDIN = ("--passphrase-file", "-")


async def pacerelle(home: Path, *args: str, stdin: str = PHRASE, limit: int = 0) -> tuple[int, dict[str, Any], str]:
    """Exit code, answer as JSON, and standard error. `limit`: no file may grow beyond so many KiB."""
    command = [sys.executable, "-m", "pacerelle_cli", *args, "--json"]
    if limit:
        command = ["/bin/bash", "-c", f'ulimit -f {limit}; exec "$@"', "bash", *command]
    process = await asyncio.create_subprocess_exec(
        *command,
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "PACERELLE_STORE_ROOT": str(home / "root"),
            "PYTHONWARNINGS": "error",
        },
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(f"{stdin}\n".encode()), 90)
    return process.returncode or 0, json.loads(out) if out.strip() else {}, err.decode()


async def done(home: Path, *args: str, **options: Any) -> dict[str, Any]:
    code, answer, err = await pacerelle(home, *args, **options)
    assert code == 0, (answer, err)
    return answer
