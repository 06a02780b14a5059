"""`pacerelled --foreground`: keeps a daemon running where no service manager does it (containers, WSL without systemd).

A small service manager for one daemon: starts it as a child, reads what it says on `$NOTIFY_SOCKET`, starts it again
when it fails, after a pause that grows, and ends one whose watchdog is no longer fed. Time is counted only while both
run: sleep of the machine, or Ctrl-Z, is no hang. While it runs it holds `start.lock`, so that hosts wait for its daemon
instead of starting their own.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pacerelle_protocol.local import LocalPaths

from .activation import SUPERVISOR
from .errors import AlreadyRunning, ConfigError
from .sd_notify import AGAIN, notify

log = logging.getLogger(__name__)

WATCHDOG = 180.0  # seconds without a sign of life, as in systemd/pacerelled.service
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0  # seconds before the next start
STEADY = 60.0  # seconds of service after which a failure counts as the first again
STOP_LIMIT = 10.0  # seconds for the daemon to end; it takes under 5
ABORT_LIMIT = 5.0  # seconds for a daemon that hangs to say where, before SIGKILL
_TICK = 1.0  # seconds; what a longer wait is over it, nobody ran
_PATIENCE = 30.0  # seconds for somebody else's start of the daemon to be over
_ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def supervise(paths: LocalPaths, options: Sequence[str]) -> int:
    """Runs daemons with these options until one ends as asked or SIGTERM, SIGINT or SIGHUP comes. The exit code.

    A daemon that ends before any has served ends this too, with its exit code. Raises AlreadyRunning, ConfigError.
    """
    lock = _take_start_lock(paths.start_lock)
    try:
        with tempfile.TemporaryDirectory(prefix="pacerelled-") as folder:
            return Supervisor([sys.executable, "-I", "-m", "pacerelled", *options], Path(folder) / "notify").run()
    finally:
        os.close(lock)


class Supervisor:
    """One daemon after the other. `listen_at` is where it says how it is."""

    def __init__(self, command: Sequence[str], listen_at: Path) -> None:
        self._command = list(command)
        self._listen_at = listen_at
        self._pid: int | None = None
        self._stopped = False  # by SIGSTOP or the terminal
        self._ready = self._served = False  # this daemon; any
        self._ran = self._silent = 0.0  # seconds awake: since it was ready, since its last sign of life
        self._pause = FIRST_PAUSE
        self._wait = 0.0  # seconds to the next start
        self._kill_in: float | None = None  # seconds
        self._asked_to_end = False
        self._again = False  # this daemon ends to be started as another version
        self._exit_code: int | None = None

    def run(self) -> int:
        """Until there is an exit code."""
        wakeup, waker = socket.socketpair()
        ears = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        with wakeup, waker, ears:
            for sock in (wakeup, waker, ears):
                sock.setblocking(False)
            ears.bind(str(self._listen_at))
            signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
            for number in _ENDING:
                signal.signal(number, self._ask_to_end)
            signal.signal(signal.SIGCHLD, lambda *_: None)  # so that it wakes us
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
            last = time.monotonic()
            while self._exit_code is None:
                if self._pid is None and self._wait <= 0 and not self._asked_to_end:
                    self._start()
                select.select([wakeup, ears], [], [], _TICK if self._pid else min(_TICK, self._wait))
                with suppress(BlockingIOError):
                    wakeup.recv(4096)
                now = time.monotonic()
                self._pass(min(now - last, 2 * _TICK))
                last = now
                self._listen(ears)
                self._reap()
                if self._asked_to_end:
                    self._stop()
            signal.set_wakeup_fd(-1)
        return self._exit_code

    def _start(self) -> None:
        env = {name: value for name, value in os.environ.items() if not name.startswith("LISTEN_")}
        env |= {"NOTIFY_SOCKET": str(self._listen_at), "WATCHDOG_USEC": str(int(WATCHDOG * 1e6))}
        env[SUPERVISOR] = str(os.getpid())
        env.pop("WATCHDOG_PID", None)
        self._stopped = self._ready = self._again = False
        self._ran = self._silent = 0.0
        self._pid = os.posix_spawn(sys.executable, self._command, env, setsigmask=(), setsigdef=_ENDING)
        log.info("Started the daemon (pid %d)", self._pid)

    def _ask_to_end(self, *_: object) -> None:
        self._asked_to_end = True

    def _stop(self) -> None:
        if self._pid is None:
            self._exit_code = 0
        elif self._kill_in is None:
            notify("STOPPING=1", os.environ)
            self._kill_in = STOP_LIMIT
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)

    def _pass(self, seconds: float) -> None:
        """So much time has passed in which we ran."""
        self._wait -= seconds
        if self._pid is None or self._stopped:
            return
        if self._kill_in is not None:
            self._kill_in -= seconds
            if self._kill_in <= 0:
                self._signal(signal.SIGKILL)
        elif self._ready:
            self._ran += seconds
            self._silent += seconds
            if self._silent > WATCHDOG:
                log.error("The daemon (pid %d) hangs: nothing heard for %.0f s; ending it", self._pid, self._silent)
                self._kill_in = ABORT_LIMIT
                self._signal(signal.SIGABRT)

    def _listen(self, ears: socket.socket) -> None:
        with suppress(BlockingIOError):
            while True:
                for word in ears.recv(4096).decode(errors="replace").splitlines():
                    if word == "READY=1":
                        self._ready = self._served = True
                        notify("READY=1", os.environ)  # for whoever supervises us
                    if word == AGAIN:
                        self._again = True
                    if word in ("READY=1", "WATCHDOG=1"):
                        self._silent = 0.0

    def _reap(self) -> None:
        """Also what is not ours: as the first process of a container, we get everybody's orphans."""
        with suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
                if pid == 0:
                    return
                if pid == self._pid and os.WIFSTOPPED(status):
                    self._stopped = True
                elif pid == self._pid and os.WIFCONTINUED(status):
                    self._stopped = False
                elif pid == self._pid:
                    self._ended(pid, os.waitstatus_to_exitcode(status))

    def _ended(self, pid: int, code: int) -> None:
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        self._pid = self._kill_in = None
        if code == 0 and self._again and not self._asked_to_end:
            log.info("The daemon (pid %d) has ended, to be started as another version", pid)
        elif self._asked_to_end or code == 0:
            log.info("The daemon (pid %d) has ended (%s)", pid, how)
            self._exit_code = 0
        elif not self._served and code > 0:
            self._exit_code = code  # it has said why
        else:
            self._pause = FIRST_PAUSE if self._ran >= STEADY else self._pause
            log.warning("The daemon (pid %d) failed (%s); starting it again in %g s", pid, how, self._pause)
            self._wait, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)

    def _signal(self, number: signal.Signals) -> None:
        if self._pid is not None:
            os.kill(self._pid, number)  # it is our child, not yet waited for: its pid is nobody else's


def _take_start_lock(path: Path) -> int:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be opened: {error.strerror}", hint="Move what lies there away.") from error
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() > until:
                os.close(fd)
                raise AlreadyRunning(
                    "Somebody else is starting pacerelled, or `pacerelled --foreground` runs already",
                    pid=None,
                    hint="See `pacerelle status`.",
                ) from None
            time.sleep(0.1)
