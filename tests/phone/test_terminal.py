"""`pacerelle chat` as a person sees it: a real process on a real pseudo-terminal."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from phone_world import COMMAND, DEADLINE, StartAgent

from pacerelle_phone.model import PairedAgent
from pacerelle_relay.server import Relay


class Screen:
    """The person at the terminal. `seen` is everything that was written to it."""

    def __init__(self, home: Path, *args: str) -> None:
        self.seen = ""
        self._read_to = 0
        self._master, slave = pty.openpty()
        env = os.environ | {"PACERELLE_PHONE_HOME": str(home), "TERM": "xterm", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [*COMMAND, *args], stdin=slave, stdout=slave, stderr=slave, env=env, cwd=home.parent, start_new_session=True
        )
        os.close(slave)
        os.set_blocking(self._master, False)

    async def expect(self, pattern: str) -> re.Match[str]:
        """Waits for new output that matches; what came before the match is used up."""
        try:
            async with asyncio.timeout(DEADLINE):
                while (found := re.compile(pattern).search(self.seen, self._read_to)) is None:
                    await self._more()
        except TimeoutError:
            raise AssertionError(f"no {pattern!r} in {self.seen[self._read_to :]!r}") from None
        self._read_to = found.end()
        return found

    async def _more(self) -> None:
        try:
            data = os.read(self._master, 65536)
        except BlockingIOError:
            await asyncio.sleep(0.02)
            return
        except OSError:
            data = b""
        if not data:
            raise AssertionError(f"the program ended after: {self.seen[self._read_to :]!r}")
        self.seen += data.decode()

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    async def ended(self) -> int:
        async with asyncio.timeout(DEADLINE):
            while (code := self.process.poll()) is None:
                with contextlib.suppress(AssertionError):  # all output has been read, and the process is about to end
                    await self._more()
                await asyncio.sleep(0.01)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def start(*args: str) -> Screen:
        opened.append(Screen(tmp_path / "phone", *args))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


async def first_talk(screen: Callable[..., Screen], relay: Relay, start_agent: StartAgent) -> Screen:
    s = screen("--relay", relay.url)
    await s.expect(r"Relay \[http.*\]: ")
    s.type("\n")
    await s.expect("Your name: ")
    s.type("Ann\n")
    await s.expect("name for the first one: ")
    s.type("Echo\n")
    agent_id = (await s.expect(r"PACERELLE_AGENT_ID=(\S+)"))[1]
    token = (await s.expect(r"PACERELLE_AGENT_TOKEN=(\S+)"))[1]
    await s.expect("/help shows the commands")
    await start_agent(PairedAgent(agent_id, token, ""))
    return s


async def test_a_whole_first_conversation(
    screen: Callable[..., Screen], relay: Relay, start_agent: StartAgent, tmp_path: Path
) -> None:
    s = await first_talk(screen, relay, start_agent)
    s.type("hello wörld\r")
    await s.expect("You: hello wörld")
    await s.expect("Echo: Received: hello wörld")

    s.type("ask confirm\r")
    await s.expect(r"Echo asks: Deploy now\?")
    await s.expect("yes / no")
    s.type("yes\r")
    await s.expect("widget confirm-1: True")

    s.type("ask choice\r")
    await s.expect("2. CSV")
    s.type("2\r")
    await s.expect("widget choice-1: 'csv'")

    s.type("ask form\r")
    await s.expect("Fill it in with /answer")
    s.type("not an answer\r")
    await s.expect("Received: not an answer")
    s.type("/answer\r")
    await s.expect(r"Email \(needed\): ")
    s.type("\r")
    await s.expect("! Email is needed")
    s.type("ann@example.org\r")
    await s.expect("widget form-1: {'email': 'ann@example.org'}")

    s.type("send file\r")
    await s.expect(r"file report.txt \(14 bytes\)")
    s.type("/files\r")
    await s.expect("1. report.txt")
    s.type("/save 1\r")
    await s.expect("Saved as .*report.txt")
    assert (tmp_path / "report.txt").read_bytes() == b"private report"

    s.type("/code\r")
    await s.expect("Agent:       [0-9A-F]{4} ")
    s.type("/nonsense\r")
    await s.expect("! There is no command /nonsense")
    s.type("/quit\r")
    assert await s.ended() == 0
    assert "\x07" not in s.seen


async def test_what_comes_in_leaves_the_line_being_typed_in_place(
    screen: Callable[..., Screen], relay: Relay, start_agent: StartAgent
) -> None:
    s = await first_talk(screen, relay, start_agent)
    s.type("colours\rhalf a sent")
    shown = await s.expect(r"Echo: red \\x1b\[31m\\x07 end\r\n([^\n]*)Echo> half a sent")
    assert "\n" not in shown[1]
    s.type("ence\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x1b[Dxy\x7f\x7f\r")
    await s.expect("Echo: Received: half a sentence")

    s.type("\x1b[A")
    await s.expect("Echo> half a sentence")
    s.type("\x15\x04")
    assert await s.ended() == 0

    again = screen()
    await again.expect("You: half a sentence")
    await again.expect("/help shows the commands")
    again.process.send_signal(signal.SIGTERM)
    assert await again.ended() == 128 + signal.SIGTERM


async def test_ctrl_c_ends_it(screen: Callable[..., Screen], relay: Relay, start_agent: StartAgent) -> None:
    s = await first_talk(screen, relay, start_agent)
    s.process.send_signal(signal.SIGINT)
    assert await s.ended() != 0
    assert "Traceback" not in s.seen
