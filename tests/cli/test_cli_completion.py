"""Completion as the shells ask for it."""

from __future__ import annotations

import asyncio
import contextlib
import os
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


@pytest.fixture
def installed(home: Home) -> dict[str, str]:
    """`pacerelle` is on the path of this environment."""
    (home.path / "bin").mkdir()
    program = home.path / "bin" / "pacerelle"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m pacerelle_cli "$@"\n')
    program.chmod(0o755)
    return home.env(PATH=f"{program.parent}:{home.env()['PATH']}")


def shell_here(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"there is no {name} here")
    return found


async def said_by(*command: str, cwd: Path, env: dict[str, str]) -> list[str]:
    """The lines that it prints; it must have nothing to complain of."""
    child = await asyncio.create_subprocess_exec(
        *command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(child.communicate(), 30)
    assert err == b""
    return out.decode().splitlines()


async def test_bash_takes_it(home: Home, installed: dict[str, str]) -> None:
    bash = shell_here("bash")
    (home.path / "script").write_text((await home.run("completion", "bash")).out)
    lines = (
        "source ./script; complete -p pacerelle; COMP_WORDS=(pacerelle log lev); COMP_CWORD=2; COMPREPLY=()\n"
        "_pacerelle_completion pacerelle; printf '%s\\n' \"${COMPREPLY[@]}\""
    )
    assert (await said_by(bash, "--norc", "-c", lines, cwd=home.path, env=installed))[-1] == "level"


async def test_fish_takes_it(home: Home, installed: dict[str, str]) -> None:
    fish = shell_here("fish")
    (home.path / "script").write_text((await home.run("completion", "fish")).out)
    lines = "source ./script; complete -C 'pacerelle log lev'; complete -C 'pacerelle host install cl'"
    found = await said_by(fish, "--no-config", "-c", lines, cwd=home.path, env=installed)
    assert [line.partition("\t")[0] for line in found] == ["level", "claude-code", "claude-desktop"]


async def test_zsh_takes_it(home: Home, installed: dict[str, str]) -> None:
    """It completes at a terminal only."""
    zsh = shell_here("zsh")
    (home.path / "functions").mkdir()
    (home.path / "functions" / "_pacerelle").write_text((await home.run("completion", "zsh")).out)
    ours, its = os.openpty()
    child = await asyncio.create_subprocess_exec(
        *(zsh, "-f", "-i"),
        cwd=home.path,
        env=installed | {"TERM": "dumb"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    os.set_blocking(ours, False)
    said = b""

    async def says(what: bytes) -> None:
        nonlocal said
        async with asyncio.timeout(30):
            while what not in said:
                with contextlib.suppress(BlockingIOError):
                    said += os.read(ours, 65536)
                await asyncio.sleep(0.02)

    try:
        os.write(ours, b"fpath=($PWD/functions $fpath); autoload -U compinit; compinit -u -D; PS1=READ''Y\n")
        await says(b"READY")
        os.write(ours, b"pacerelle log lev\t")
        await says(b"pacerelle log level")
    finally:
        child.kill()
        await child.wait()
        os.close(ours)
