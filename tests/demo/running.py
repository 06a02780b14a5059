"""`pacerelle demo` as a process, with pipes or in a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

DEADLINE = 60.0  # seconds; generous, since the machine may be busy
COMMAND = [sys.executable, "-m", "pacerelle_cli", "demo"]
# A terminal sends Ctrl-C to those whose own it is, which only a process in a new session can make it.
OWN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


@dataclass
class Place:
    """`home` is the user's, `temporary` what the demo takes for its own home."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home.mkdir()
        self.temporary.mkdir()

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def temporary(self) -> Path:
        return self.folder / "t"

    def env(self, **more: str) -> dict[str, str]:
        base = {"HOME": str(self.home), "TMPDIR": str(self.temporary), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        return base | {"COLUMNS": "100", "PYTHONWARNINGS": "error"} | more

    def processes(self) -> list[psutil.Process]:
        """Every process that has this place in its command line."""
        return [p for p in psutil.process_iter(["cmdline"]) if str(self.folder) in " ".join(p.info["cmdline"] or [])]

    def leftovers(self) -> list[str]:
        files = [str(path) for path in self.folder.rglob("*") if path not in (self.home, self.temporary)]
        return files + [str(process) for process in self.processes()]

    def kill_leftovers(self) -> None:
        for demo in self.started:
            demo.kill()
            demo.communicate()
        for process in self.processes():
            process.kill()

    def start(self, *arguments: str, **env: str) -> subprocess.Popen[str]:
        demo = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self.env(**env),
        )
        self.started.append(demo)
        return demo


class InTerminal:
    """The demo on a terminal of its own."""

    def __init__(self, place: Place, **env: str) -> None:
        self.output = ""
        self._terminal, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *COMMAND],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=place.env(TERM="xterm", **env),
            start_new_session=True,
        )
        os.close(theirs)
        os.set_blocking(self._terminal, False)

    def __enter__(self) -> InTerminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(DEADLINE)
        os.close(self._terminal)

    def press(self, key: bytes) -> None:
        os.write(self._terminal, key)

    def until(self, text: str) -> str:
        """All that it has printed, once `text` is in it."""
        end = time.monotonic() + DEADLINE
        while text not in self.output:
            assert time.monotonic() < end, self.output
            assert self.process.poll() is None, self.output
            self._read()
        return self.output

    def ended(self) -> int:
        """Its exit code."""
        end = time.monotonic() + DEADLINE
        while self.process.poll() is None:
            assert time.monotonic() < end, self.output
            self._read()
        self._read()
        return self.process.returncode

    def _read(self) -> None:
        try:
            self.output += os.read(self._terminal, 1 << 16).decode().replace("\r\n", "\n")
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # how Linux says that nobody has the other side any more
            time.sleep(0.02)
