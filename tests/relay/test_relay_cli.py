"""`pacerelle relay` as people start it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

import aiohttp
import pytest
from relay_people import Caller

RUN = "from pacerelle_relay.cli import relay; relay()"


async def start(*arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", RUN, *arguments), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )


async def stop(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """What it printed on both channels while it ended."""
    process.send_signal(signal.SIGTERM)
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == 0
    return out.decode(), err.decode()


async def test_it_says_where_it_is_and_what_to_do_next(data: Path, http: aiohttp.ClientSession) -> None:
    process = await start("--data", str(data), "--port", "0")
    assert process.stdout is not None
    first = (await process.stdout.readline()).decode()
    url = first.split()[2].rstrip(",")
    assert str(data) in first
    await Caller(http, f"{url}/human/v1").ok("POST", "/accounts", {"name": "Ann"})
    out, err = await stop(process)
    assert f"pacerelle chat pair --relay {url} --name" in out
    assert f"PACERELLE_BASE_URL={url}" in out
    assert "Warning" not in out
    assert "Invite" not in out
    assert err == ""


async def test_beyond_this_machine_it_warns_and_wants_an_invite(data: Path, http: aiohttp.ClientSession) -> None:
    process = await start("--data", str(data), "--host", "0.0.0.0", "--port", "0")
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).decode() for _ in range(3)]
    assert "without TLS" in lines[1]
    invite = lines[2].split()[-1]
    port = lines[0].split()[2].rstrip(",").rsplit(":", 1)[1]
    anybody = Caller(http, f"http://127.0.0.1:{port}/human/v1")
    await anybody.refused(403, "invite", "POST", "/accounts", {"name": "Ann"})
    await anybody.ok("POST", "/accounts", {"name": "Ann", "invite": invite})
    await stop(process)


@pytest.mark.parametrize("problem", ["port taken", "directory in use", "no directory"])
async def test_what_is_in_its_way_is_said_in_one_line(data: Path, problem: str) -> None:
    holder = None
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        arguments = ["--data", str(data), "--port", "0"]
        if problem == "port taken":
            arguments[3] = str(taken.getsockname()[1])
        elif problem == "directory in use":
            holder = await start(*arguments)
            assert holder.stdout is not None
            await holder.stdout.readline()
        else:
            data.write_text("a file")
        process = await start(*arguments)
        out, err = await asyncio.wait_for(process.communicate(), 20)
    if holder is not None:
        await stop(holder)
    assert process.returncode == 1
    assert out == b""
    assert err.decode().startswith("Error: ")
    assert len(err.decode().splitlines()) == 1
    assert os.fsdecode(data) in err.decode() or problem == "port taken"
