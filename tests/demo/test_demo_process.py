"""The demo as people run it, and what becomes of it when it is interrupted or something goes wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import psutil
import pytest

from tests.demo.running import DEADLINE, InTerminal, Place


def entry(output: str) -> dict[str, str]:
    """The host's entry in the output: the command and, beside it, its environment."""
    begin = output.index("\n{\n")
    pacerelle = json.loads(output[begin : output.index("\n}\n", begin) + 2])["mcpServers"]["pacerelle"]
    return {"command": pacerelle["command"], **pacerelle["env"]}


def printed(running: subprocess.Popen[str], text: str) -> None:
    """Reads its output up to the line with `text`."""
    assert running.stdout is not None
    assert any(text in line for line in running.stdout)


def test_everything_happens_and_nothing_stays(place: Place) -> None:
    running = place.start()
    output, errors = running.communicate(timeout=DEADLINE)
    assert (running.returncode, errors) == (0, "")
    assert "Terminal gets" in output
    assert "Editor gets" in output
    assert "none of the texts" in output
    assert f"\n{output.count('✓')} checks, and all of them passed." in output
    assert os.access(entry(output)["command"], os.X_OK)
    assert "\x1b" not in output


def test_a_long_path_of_the_home(place: Place) -> None:
    """The daemon's sockets are elsewhere then; they go away too."""
    long = place.temporary / ("x" * 80)
    long.mkdir()
    before = set(os.listdir("/tmp"))
    running = place.start(TMPDIR=str(long))
    output, errors = running.communicate(timeout=DEADLINE)
    assert (running.returncode, errors) == (0, "")
    made = {name for name in set(os.listdir("/tmp")) - before if name.startswith("pacerelled-")}
    assert not [name for name in made if not os.listdir(f"/tmp/{name}")], output
    long.rmdir()


def test_a_terminal_keeps_it_up_for_a_real_host_until_ctrl_c(place: Place) -> None:
    with InTerminal(place) as demo:
        output = demo.until("Ctrl-C ends it all")
        assert "\x1b[32m✓" in output
        env = entry(output)
        initialize = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "real", "version": "1"},
            },
        }
        command = env.pop("command")
        host = subprocess.run(
            [command], input=json.dumps(initialize) + "\n", env=env, capture_output=True, text=True, timeout=DEADLINE
        )
        assert json.loads(host.stdout)["result"]["serverInfo"]["name"] == "pacerelle"
        shown = next(line for line in output.splitlines() if "chat --home" in line).split()
        written = subprocess.run(
            [*shown, "--send", "hello"], env=place.env(), capture_output=True, text=True, timeout=DEADLINE
        )
        assert written.returncode == 0, written.stderr
        demo.press(b"\x03")
        assert demo.ended() == 0
        assert "the temporary home is gone" in demo.output.replace("\n    ", " ")


def test_a_terminal_without_colour_that_shall_not_wait(place: Place) -> None:
    with InTerminal(place, NO_COLOR="1", ONCE="1") as demo:
        assert demo.ended() == 0
        assert "all of them passed" in demo.output
        assert "\x1b" not in demo.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("moment", ["1. A relay", "A relay of our own", "Ada's phone"])
def test_a_signal_in_the_middle(place: Place, moment: str, number: signal.Signals) -> None:
    running = place.start()
    printed(running, moment)
    running.send_signal(number)
    _, errors = running.communicate(timeout=DEADLINE)
    assert (running.returncode, errors) == (130, "Interrupted. Everything is stopped and removed.\n")


def test_an_impatient_user_does_not_hinder_the_cleaning_up(place: Place) -> None:
    running = place.start()
    printed(running, "A relay of our own")
    relay = next(p for p in psutil.Process(running.pid).children() if "relay" in p.cmdline())
    relay.suspend()  # so that the cleaning up takes a while
    for _ in range(3):
        running.send_signal(signal.SIGINT)
        time.sleep(0.2)
    assert running.poll() is None
    relay.resume()
    _, errors = running.communicate(timeout=DEADLINE)
    assert (running.returncode, errors) == (130, "Interrupted. Everything is stopped and removed.\n")


def test_a_shim_that_dies(place: Place) -> None:
    running = place.start()
    printed(running, "Two MCP hosts")
    shims = [p for p in psutil.Process(running.pid).children() if "pacerelle_shim" in " ".join(p.cmdline())]
    assert len(shims) == 2
    shims[1].kill()
    output, errors = running.communicate(timeout=DEADLINE)
    assert running.returncode == 1
    assert "Error: The shim of Terminal has ended." in errors
    assert "--- pacerelled.log" in errors
    assert "all of them passed" not in output
