"""`python -m pacerelled`: exit codes, what it says, and what it leaves alone."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest

from .disk import contents, mode
from .polling import until
from .process import Daemon, daemon

STORE, RUNNING, CONFIG = 74, 75, 78


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


async def complaint(program: Daemon, code: int) -> str:
    """It ends with `code` and two lines: what is wrong, and what to do."""
    got, said = await program.run()
    assert got == code, said
    lines = said.rstrip().splitlines()
    assert len(lines) == 2, said
    assert lines[0].startswith("pacerelled: ")
    assert lines[1].startswith("  ")
    return said


async def test_version_and_usage(home: Path) -> None:
    program = Daemon(home)
    program.arguments = ["--version"]
    assert (await program.run())[0] == 0
    program.arguments = ["--nonsense"]
    code, said = await program.run()
    assert code == 2
    assert "usage" in said


async def test_bad_settings(home: Path) -> None:
    program = Daemon(home, "--log-level", "loud")
    assert "`log_level` in the command line" in await complaint(program, CONFIG)
    program = Daemon(home, env={"PACERELLED_CLAIM_LEASE": "long"})
    assert "`claim_lease` in the environment" in await complaint(program, CONFIG)
    program = Daemon(home)
    program.paths.config.write_text("log_levle = 1\n")
    assert "log_level" in await complaint(program, CONFIG)


async def test_everything_it_makes_is_private_and_an_open_folder_is_closed(home: Path) -> None:
    state = home / "root" / "pacerelled"
    state.mkdir(parents=True, mode=0o755)
    async with daemon(home):
        assert mode(state) == 0o700
        files = {p.name: mode(p) for p in state.iterdir()}
        assert set(files) >= {"lock", "store.db", "store.json", "store.key", "mcp.sock", "control.sock"}
        assert set(files.values()) == {0o600}


async def test_a_second_daemon_is_refused_with_the_pid_of_the_first_also_a_stopped_one(home: Path) -> None:
    async with daemon(home) as first:
        before = contents(first.paths.state)
        for number in (signal.SIGCONT, signal.SIGSTOP):
            first.signal(number)
            assert f"pid {first.process.pid}" in await complaint(Daemon(home), RUNNING)
        assert contents(first.paths.state) == before
        first.signal(signal.SIGCONT)
        assert (await first.status())["daemon"]["pid"] == first.process.pid


async def test_of_many_that_start_at_once_one_stays(home: Path) -> None:
    programs = [await Daemon(home).start() for _ in range(6)]
    try:
        await until(lambda: sum(p.process.returncode is not None for p in programs) == 5)
        assert sorted(p.process.returncode or 0 for p in programs) == [0] + [RUNNING] * 5
        (left,) = (p for p in programs if p.process.returncode is None)
        await left.serving()
    finally:
        for program in programs:
            await program.kill()


@pytest.mark.parametrize(
    ("name", "kind"), [("mcp.sock", "file"), ("control.sock", "symlink"), ("control.sock", "directory")]
)
async def test_what_lies_at_a_socket_s_place_is_left_alone(home: Path, name: str, kind: str) -> None:
    program = Daemon(home)
    state = program.paths.state
    state.mkdir(parents=True)
    place, target = state / name, home / "precious"
    target.write_text("precious")
    if kind == "file":
        place.write_text("precious")
    elif kind == "symlink":
        place.symlink_to(target)
    else:
        place.mkdir()
    said = await complaint(program, CONFIG)
    assert str(place) in said
    assert target.read_text() == "precious"
    assert place.is_symlink() == (kind == "symlink")
    assert place.is_dir() == (kind == "directory")
    # Nothing of a store was begun, and the other socket did not stay.
    assert {p.name for p in state.iterdir()} == {name, "lock"}


async def test_a_socket_path_that_is_too_long(home: Path) -> None:
    said = await complaint(Daemon(home, "--socket", str(home / ("x" * 120) / "s")), CONFIG)
    assert "103" in said
    said = await complaint(Daemon(home, "--socket", str(home / "control.sock")), CONFIG)
    assert "--socket" in said


async def test_a_long_store_root_has_its_sockets_elsewhere(home: Path) -> None:
    root = home / ("r" * 60) / ("s" * 60)
    async with daemon(home, root=root) as running:
        folder = running.paths.mcp_sock.parent
        assert folder != running.paths.state
        assert mode(folder) == 0o700
        running.signal()
        assert await running.ended() == 0
        assert list(folder.iterdir()) == []
    folder.rmdir()


async def test_home_unset_is_looked_up_and_a_stale_socket_replaced(home: Path) -> None:
    program = Daemon(home)
    del program.env["HOME"]
    program.paths.state.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(program.paths.mcp_sock))
    await program.start()
    try:
        await program.serving()
    finally:
        await program.kill()


async def test_a_home_that_cannot_be_made(home: Path) -> None:
    program = Daemon(home, env={"HOME": "/proc/nobody"})
    program.arguments = []
    said = await complaint(program, CONFIG)
    assert "/proc/nobody" in said
    assert "PACERELLE_STORE_ROOT" in said


@pytest.mark.parametrize("what", ["file", "below a file", "dangling link"])
async def test_a_store_root_that_is_no_folder(home: Path, what: str) -> None:
    (home / "file").write_text("x")
    (home / "link").symlink_to(home / "nowhere" / "at" / "all")
    root = {"file": home / "file", "below a file": home / "file" / "deep" / "er", "dangling link": home / "link"}[what]
    assert str(root) in await complaint(Daemon(home, root=root), CONFIG)
    assert (home / "file").read_text() == "x"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write everywhere")
async def test_a_read_only_store_root(home: Path) -> None:
    (home / "root").mkdir(mode=0o500)
    assert "root" in await complaint(Daemon(home), CONFIG)


async def test_a_read_only_file_system(home: Path) -> None:
    assert "/sys/kernel" in await complaint(Daemon(home, root=Path("/sys/kernel/pacerelled-test")), CONFIG)


async def test_a_lock_that_is_something_else(home: Path) -> None:
    program = Daemon(home)
    program.paths.state.mkdir(parents=True)
    (home / "target").write_text("x")
    program.paths.lock.symlink_to(home / "target")
    assert str(program.paths.lock) in await complaint(program, CONFIG)
    assert (home / "target").read_text() == "x"
    program.paths.lock.unlink()
    program.paths.lock.mkdir()
    await complaint(program, CONFIG)


async def test_after_a_crash_a_damaged_store_is_refused_untouched_and_a_good_one_taken_over(home: Path) -> None:
    async with daemon(home) as first:
        await first.kill()
    paths = first.paths
    assert paths.lock.read_text().strip() == str(first.process.pid)
    assert paths.mcp_sock.exists()
    key, store = paths.key_file.read_bytes(), paths.store.read_bytes()
    for path, data, problem in ((paths.key_file, b"A" * 43 + b"=\n", "not the key"), (paths.store, b"", "is empty")):
        good = path.read_bytes()
        path.write_bytes(data)
        before = {name: seen for name, seen in contents(paths.state).items() if name != "lock"}
        assert problem in await complaint(Daemon(home), STORE)
        assert {name: seen for name, seen in contents(paths.state).items() if name != "lock"} == before
        path.write_bytes(good)
    assert (paths.key_file.read_bytes(), paths.store.read_bytes()) == (key, store)
    async with daemon(home) as second:
        assert paths.lock.read_text().strip() == str(second.process.pid)


async def test_a_signal_in_the_first_moments_ends_it_well(home: Path) -> None:
    for delay in (0.15, 0.6):
        program = await Daemon(home).start()
        try:
            await asyncio.sleep(delay)
            program.signal()
            code = await program.ended()
        finally:
            await program.kill()
        said = await program.errors()
        # Before Python runs our code nobody can catch it; afterwards it is a stop like any other.
        assert code in (0, -signal.SIGTERM), said
        assert "Traceback" not in said
        if code == -signal.SIGTERM:
            assert not program.paths.store.exists()
