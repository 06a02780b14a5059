"""Completion as the shells ask for it."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pacerelle_cli.root import COMMANDS
from tests.cli.world import Home, home

__all__ = ["home"]

HEAVY = {"aiohttp", "asyncio", "cryptography", "email", "mcp", "pacerelled", "rich", "sqlcipher3", "ssl"}


async def completed(home: Home, *words: str) -> tuple[list[str], set[str]]:
    """What click answers bash when the last of the words is to be completed, and what was imported for it."""
    program = (
        "import atexit, sys\n"
        "atexit.register(lambda: print('imported', *{m.partition('.')[0] for m in sys.modules}, file=sys.stderr))\n"
        "from pacerelle_cli.root import root\n"
        "root(prog_name='pacerelle')"
    )
    asked = {"COMP_WORDS": " ".join(("pacerelle", *words)), "COMP_CWORD": str(len(words))}
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program),
        env=home.env(_PACERELLE_COMPLETE="bash_complete", **asked),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(child.communicate(), 30)
    assert child.returncode == 0, err
    imported = set(err.decode().rpartition("imported ")[2].split())
    return [line.partition(",")[2] for line in out.decode().splitlines()], imported


async def test_commands_are_completed_without_importing_any(home: Home) -> None:
    everything, imported = await completed(home, "")
    assert everything == list(COMMANDS)
    assert imported & HEAVY == set()
    assert (await completed(home, "st"))[0] == [name for name in COMMANDS if name.startswith("st")]
    assert "--store-root" in (await completed(home, "--"))[0]


@pytest.mark.parametrize(
    ("words", "some"),
    [
        (["host", "in"], "install"),
        (["host", "install", "cl"], "claude-code"),
        (["status", "--"], "--json"),
        (["log", "level", "d"], "debug"),
        (["completion", "f"], "fish"),
        (["doctor", "--r"], "--report"),
    ],
)
async def test_what_follows_a_command_is_completed_quickly(home: Home, words: list[str], some: str) -> None:
    found, imported = await completed(home, *words)
    assert some in found
    assert imported & HEAVY == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
async def test_the_script_is_for_this_shell(home: Home, shell: str) -> None:
    result = await home.run("completion", shell)
    assert (result.code, f"_PACERELLE_COMPLETE={shell}_complete" in result.out) == (0, True)
    assert (await home.run("completion", "tcsh")).code == 2


async def test_bash_takes_it(home: Home) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    (home.path / "script").write_text((await home.run("completion", "bash")).out)
    (home.path / "bin").mkdir()
    program = home.path / "bin" / "pacerelle"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pacerelle_cli "$@"\n')
    program.chmod(0o755)
    lines = (
        "source ./script; complete -p pacerelle; COMP_WORDS=(pacerelle log lev); COMP_CWORD=2; COMPREPLY=()\n"
        "_pacerelle_completion pacerelle; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    child = await asyncio.create_subprocess_exec(
        *(bash, "--norc", "-c", lines),
        cwd=home.path,
        env=home.env(PATH=f"{Path(program).parent}:{home.env()['PATH']}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(child.communicate(), 30)
    assert (out.decode().splitlines()[-1], err) == ("level", b"")
