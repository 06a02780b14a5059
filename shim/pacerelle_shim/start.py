"""Where the daemon is, and how it is started: by whoever holds start.lock; everybody else waits for the socket.

Shims share the content of start.lock: after a start that failed it says why, for those who waited.
"""

import fcntl
import os
import sys
from _socket import AF_UNIX, SOCK_STREAM, SOL_SOCKET, socket
from select import select
from time import time

from pacerelle_shim.lines import parse

CHUNK = 1 << 16  # bytes read at a time
ENDED = "it ended without a word."
INSIST = 15.0  # seconds to go on starting a daemon that ends without saying why: something kills it
PASSED_ON = "HOME PATH LANG TMPDIR USER LOGNAME TZ DBUS_SESSION_BUS_ADDRESS XDG_RUNTIME_DIR SSL_CERT_FILE SSL_CERT_DIR"
PASSED_ON += " HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY"  # to the daemon, with LC_… and PACERELLED_…


class ShimError(Exception):
    """Why there is no daemon to talk to, and what to do about it."""


def absolute(path: str) -> str:
    """`~` expanded, made absolute; symlinks stay. Raises ShimError."""
    try:
        if path.split("/")[0] == "~":
            import pwd

            path = (os.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir) + path[1:]
        return os.path.abspath(path)
    except (KeyError, OSError):
        raise ShimError("There is no home or no working directory: give --store-root an absolute path.") from None


def try_lock(path: str) -> int:
    """A descriptor that holds the lock; -1 if somebody else does. Raises OSError."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return -1
    return fd


class Daemon:
    """One store's daemon, as a shim sees it from outside."""

    def __init__(self, options: dict[str, str]) -> None:
        """Raises ShimError."""
        root, self.token = absolute(options.get("store_root", "~/.pacerelle/mcp")), options.get("token", "\0")
        home = os.path.abspath(f"{__file__}/../../../../..")  # of the virtual environment this is installed in, if any
        python = f"{home}/bin/python" if os.path.exists(f"{home}/pyvenv.cfg") else sys.executable
        self.command = [python, "-I", "-m", "pacerelled", "--store-root", root]
        self.state, self.log, self.log_start = f"{root}/pacerelled", f"{root}/pacerelled/pacerelled.log", 0
        self.ways: list[list[str]] = []  # to start it, the best first: commands
        self.lock = self.pipe = -1  # the pipe is at its end when what was started has ended
        self.first = 0.0
        self.path = f"{self.state}/mcp.sock"
        if "socket" in options:
            self.path = absolute(options["socket"])
            self.command += ["--socket", self.path]
        elif len(os.fsencode(f"{self.state}/control.sock")) > 103:  # docs/local-protocol.md
            from hashlib import sha256

            digest = sha256(os.fsencode(self.state)).hexdigest()[:16]
            self.path = f"/tmp/pacerelled-{os.getuid()}-{digest}/mcp.sock"

    def reach(self, *, wanted: bool) -> socket | None:
        """A non-blocking connection, or None and the next step towards one: a daemon is started if it is wanted or has
        crashed. Raises OSError, ShimError: there is no hope, for now."""
        try:
            sock = socket(AF_UNIX, SOCK_STREAM)
            sock.setblocking(False)
            sock.connect(self.path)
        except BlockingIOError:  # too many wait for it to accept them, so it lives
            return None
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if wanted or self.lock >= 0 or isinstance(error, ConnectionRefusedError):
                self._start()
            return None
        level, option = (0, 1) if sys.platform == "darwin" else (SOL_SOCKET, 17)  # LOCAL_PEERCRED, SO_PEERCRED
        owner = int.from_bytes(sock.getsockopt(level, option, 128)[4:8], sys.byteorder)
        if owner not in (os.geteuid(), 0 if sys.platform == "darwin" else -1):  # there, launchd opens it for the daemon
            raise ShimError(f"The socket {self.path} belongs to another user: choose another with --socket.")
        return sock

    def release(self) -> None:
        """The daemon is there, or cannot be: lets the next one try."""
        for fd in {self.lock, self.pipe} - {-1}:
            os.close(fd)
        self.lock = self.pipe = -1
        self.first = 0.0

    def _start(self) -> None:
        if self.lock < 0:
            os.makedirs(self.state, 0o700, exist_ok=True)
            self.lock = try_lock(f"{self.state}/start.lock")  # and connect again: somebody may just have started it
            reason = os.pread(self.lock, 4096, 0).decode() if self.lock >= 0 else ""
            if reason and time() - os.fstat(self.lock).st_mtime < 2.0:  # those who waited share the failure
                raise ShimError(reason)
            self.ways = [*self._service(), self.command]
        elif self.pipe < 0:
            self._spawn(self.ways[0])
        elif not select([self.pipe], [], [], 0)[0]:
            return
        elif len(self.ways) > 1:  # the service manager has opened the socket, or cannot
            del self.ways[0]
            os.close(self.pipe)
            self.pipe = -1
        else:
            owner = try_lock(f"{self.state}/lock")
            if owner >= 0:  # else there is another daemon, which has yet to open its socket
                os.close(owner)
                words, self.first = self._last_words(), self.first or time()
                complains = "pacerelled: " in words and "pacerelled: Another" not in words
                ended = not complains and (words == ENDED or "pacerelled: Another" in words or " INFO " in words)
                if ended and time() - self.first < INSIST:  # killed, or it gave way to one that has ended since
                    os.close(self.pipe)
                    self.pipe = -1
                    return
                reason = f"The Pacerelle daemon cannot be started: {words} Its log: {self.log}"
                os.ftruncate(self.lock, 0)
                os.pwrite(self.lock, reason.encode(), 0)
                raise ShimError(reason)

    def _service(self) -> list[list[str]]:
        """The command that has the service manager start the daemon, where it is a service (docs/local-protocol.md)."""
        try:
            with open(f"{self.state}/service.json", "rb") as file:
                command = parse(file.read(CHUNK)).get("start")
        except OSError:
            return []
        return [list(map(str, command))] if isinstance(command, list) and command else []

    def place_of_log(self) -> str:
        """For people."""
        return "`pacerelle service logs`" if self._service() else self.log

    def _spawn(self, command: list[str]) -> None:
        """A process of its own session, no child of ours, holding nothing of the host's."""
        passed_on, prefixes = PASSED_ON.split(), ("LC_", "PACERELLED_")
        env = {k: v for k, v in os.environ.items() if k.upper() in passed_on or k.startswith(prefixes)}
        log = os.open(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        self.log_start = os.fstat(log).st_size
        self.pipe, theirs = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.setsid()
                if os.fork():
                    os._exit(0)
                for fd, wanted in ((os.open(os.devnull, os.O_RDONLY), 0), (log, 1), (log, 2), (theirs, 3)):
                    os.dup2(fd, wanted)
                os.set_inheritable(3, True)
                os.closerange(4, CHUNK)
                os.chdir("/")
                os.execve(command[0], command, env)
            except OSError as error:
                os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            finally:
                os._exit(127)
        os.close(theirs)
        os.close(log)
        os.waitpid(child, 0)

    def _last_words(self) -> str:
        with open(self.log, "rb") as log:
            log.seek(self.log_start)
            text = log.read(CHUNK).decode(errors="replace").replace(self.token, "…").strip()
        return " ".join(line.strip() for line in text.split("\n")[-4:])[-600:] or ENDED
