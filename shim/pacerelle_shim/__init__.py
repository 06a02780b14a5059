"""`pacerelle-mcp`, what an MCP host starts: it copies JSON-RPC lines between the host and the daemon (docs/shim.md).

Standard library only, and little of it, since every host starts one. One thread, one poll loop. The lines of unanswered
calls are kept, so that a call outlives the daemon that got it. Only whole lines of JSON go to stdout.
"""

import os
import sys
from _socket import socket
from select import PIPE_BUF, POLLIN, POLLOUT, poll
from time import monotonic

from pacerelle_shim.lines import as_key, parse, quoted, take_lines
from pacerelle_shim.start import Daemon, ShimError

VERSION = "0.1.0"
PROTOCOL = 1  # of mcp.sock; a daemon of the version before or after will do
MAX_LINE = 16 << 20  # bytes, its end included
CHUNK = 1 << 16  # bytes read at a time
ROOM = 1 << 20  # bytes that may wait for a slow reader before their source is no longer read
KEEP = 32 << 20  # bytes of unanswered calls, before the host is no longer read
START_WAIT, CALL_WAIT = 20.0, 50.0  # seconds a call waits for the first daemon, for a lost one's return
LINGER = 1.0  # seconds for answers in flight once the host has closed stdin
UNAVAILABLE = -32010  # in JSON-RPC's range for servers, unused by MCP
NEVER = float("inf")
REPEATED = "initialize", "notifications/initialized", "resources/subscribe"  # what a new daemon is told first
OPTIONS = "agent_id", "token", "base_url", "ws_url", "store_root", "socket"
HELP = """pacerelle-mcp: an MCP server over stdio, which starts the daemon if none runs. Every option may be left out.
--agent-id ID, --token TOKEN, --base-url URL, --ws-url URL, --store-root DIR, or in the environment PACERELLE_AGENT_ID,
_AGENT_TOKEN, _BASE_URL, _WS_URL, _STORE_ROOT; --socket PATH, --channel, --no-e2ee, --version, --help"""
VISIBLE = b"pacerelle-mcp: others on this machine can see --token. Set PACERELLE_AGENT_TOKEN in the host's settings.\n"


def settings(argv: list[str]) -> dict[str, str]:
    """The options that are set, by flag or environment, which loses them. Raises ShimError."""
    variables = {name: f"PACERELLE_{name.upper().replace('TOKEN', 'AGENT_TOKEN')}" for name in OPTIONS[:5]}
    values = {name: value for name, variable in variables.items() if (value := os.environ.pop(variable, ""))}
    words = iter(argv)
    for word in words:
        flag, given, value = word.partition("=")
        name = flag[2:].replace("-", "_") if flag.startswith("--") else ""
        if word in ("--no-e2ee", "--channel"):
            values[name] = word
        elif name not in OPTIONS:  # what is no option may be a secret, and is not named
            what = f"the unknown option {flag}" if name else "an argument that is no option"
            raise ShimError(f"pacerelle-mcp was given {what}: correct the host's settings (see pacerelle-mcp --help).")
        elif not (value := value if given else next(words, "")):
            raise ShimError(f"pacerelle-mcp was given {flag} without a value: correct the host's settings.")
        else:
            values[name] = value
            if name == "token":
                values["token_visible"] = word
    return values


class Shim:
    """One host's session. Without `sock` it looks for a daemon; `ready` says that the daemon has welcomed it."""

    def __init__(self, argv: list[str]) -> None:
        self.host, self.session, self.offers = os.getppid(), os.urandom(16).hex(), ""
        self.sock: socket | None = None
        self.ready = self.served = False  # now; ever
        self.next_try, self.delay = 0.0, 0.01  # monotonic time; seconds
        self.from_host, self.from_daemon = bytearray(), bytearray()  # beginnings of lines
        self.to_host, self.to_daemon, self.waiting = bytearray(), bytearray(), bytearray()
        self.calls: dict[str, tuple[bytes, float, float]] = {}  # the unanswered: id → line, made at, waiting since
        self.kept = 0  # bytes of them
        self.repeat: dict[str, tuple[str, bytes]] = {}  # of the kinds in REPEATED: what → id, line
        self.swallow: set[str] = set()  # ids of what was repeated: the host has the answers
        self.streams: set[str] = set()  # ids of the calls that are subscriptions, once acknowledged
        self.passing = self.eof = False  # within a line over the limit; stdin is at its end
        self.end = NEVER  # monotonic time to stop at
        self.broken: ShimError | None = None  # what is wrong with the settings
        try:
            self.options = settings(argv)
            self.daemon = Daemon(self.options)
        except ShimError as error:
            self.broken = error

    def run(self) -> int:
        """Until the host is gone. Returns the exit code. Raises OSError: stdin or stdout broke."""
        while os.getppid() == self.host:
            now = monotonic()
            if not self.sock and now >= self.next_try:
                self._look_for_daemon(now)
            self._give_up(now)
            idle = not (self.calls or self.to_host or self.to_daemon or self.waiting)
            if now >= self.end or (self.eof and idle):
                break
            room = max(len(self.to_daemon), len(self.waiting)) < ROOM and self.kept + len(self.from_host) < KEEP
            poller = poll()
            if not self.eof and (room or self.end == NEVER):
                poller.register(0, POLLIN if room else 0)
            poller.register(1, POLLOUT if self.to_host else 0)
            if self.sock:
                reading = POLLIN if len(self.to_host) < ROOM else 0
                poller.register(self.sock, reading | (POLLOUT if self.to_daemon else 0))
            until = min(now + 1.0, self.end, NEVER if self.sock else self.next_try)
            found = dict(poller.poll(max(0.0, until - now) * 1000))
            if found.get(1, POLLOUT) != POLLOUT:
                break
            if 1 in found:
                del self.to_host[: os.write(1, self.to_host[:PIPE_BUF])]  # as much as surely does not block
            if self.sock and self.sock.fileno() in found:
                self._serve_daemon(self.sock)
            if 0 in found and room:
                self._read_host()
            elif 0 in found:
                self.end = monotonic() + LINGER
        return 2 if self.broken else 0

    def _read_host(self) -> None:
        data = os.read(0, CHUNK)
        if not data:
            self.eof, self.end = True, monotonic() + LINGER
            data = b"\n"[: len(self.from_host)]
        for line in take_lines(self.from_host, data):
            if not self.passing:
                self._from_host(line)
            elif self.ready:
                self.to_daemon += line
            self.passing = False
        if len(self.from_host) > MAX_LINE and self.ready:  # the daemon's to refuse
            self.to_daemon += self.from_host
            self.from_host.clear()
            self.passing = True

    def _from_host(self, line: bytes) -> None:
        message = parse(line)
        method, key, params = message.get("method"), as_key(message.get("id")), message.get("params")
        about = params if isinstance(params, dict) else {}
        if method in REPEATED:
            self.repeat[f"{method} {about.get('uri')}"] = key, line
        elif method == "resources/unsubscribe":
            self.repeat.pop(f"resources/subscribe {about.get('uri')}", None)
        elif method == "notifications/cancelled":
            self._forget(as_key(about.get("requestId")))
        if key and method:
            self._forget(key)
            self.calls[key] = line, monotonic(), monotonic()
            self.kept += len(line) + 300
            self.next_try = 0.0 if self.next_try == NEVER else self.next_try
        if self.ready:
            self.to_daemon += line
        elif not (key and method) and method not in REPEATED:
            self.waiting += line

    def _forget(self, key: str) -> None:
        if key in self.calls:
            self.kept -= len(self.calls.pop(key)[0]) + 300
            self.streams.discard(key)

    def _look_for_daemon(self, now: float) -> None:
        self.delay = min(self.delay * 1.5, 0.1 if self.calls or not self.served else 1.0)
        self.next_try = now + self.delay
        try:
            if self.broken:
                raise self.broken
            self.sock = self.daemon.reach(wanted=bool(self.calls) or not self.served)
            self.to_daemon += self._hello() if self.sock else b""
        except ShimError as error:
            self._fail(str(error))
        except OSError as error:
            where = f"Its place is {self.daemon.state}; --store-root names another."
            self._fail(f"The Pacerelle daemon can be neither reached nor started: {error}. {where}")

    def _hello(self) -> bytes:
        texts = {name: self.options.get(name) for name in OPTIONS[:4]}
        texts |= {"session": self.session, "shim": VERSION, "offers": self.offers}
        try:
            texts["cwd"] = os.fsencode(os.getcwd()).decode(errors="replace")
            with open(f"/proc/{self.host}/comm", errors="replace") as file:  # not on macOS
                texts["host"] = file.read().strip()
        except OSError:
            pass
        pairs = [f'"{name}":{quoted(text) if text else "null"}' for name, text in texts.items()]
        e2ee = "false" if "no_e2ee" in self.options else "true"
        pairs += ['"channel":true'] if "channel" in self.options else []
        pairs += ['"token_visible":true'] if "token_visible" in self.options else []
        ages = [f"{quoted(key)}:{monotonic() - made:.3f}" for key, (_, made, _) in self.calls.items()]
        pairs += [f'"e2ee":{e2ee}', f'"in_flight":{{{",".join(ages)}}}' if self.served else '"in_flight":null']
        return f'{{"pacerelle":"hello","v":{PROTOCOL},"pid":{os.getpid()},{",".join(pairs)}}}\n'.encode()

    def _serve_daemon(self, sock: socket) -> None:
        try:
            del self.to_daemon[: sock.send(self.to_daemon[:CHUNK]) if self.to_daemon else 0]
        except BlockingIOError:
            pass
        except OSError:
            self.to_daemon.clear()  # it is gone, but its last answers may still be there to read
        try:
            data = sock.recv(CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        for line in take_lines(self.from_daemon, data):
            self._from_daemon(line)
        if len(self.from_daemon) > MAX_LINE:
            self._fail("The Pacerelle daemon's answer is longer than 16 MiB.")
            data = b""
        if self.sock and not data:
            self._lose()

    def _from_daemon(self, line: bytes) -> None:
        message = parse(line)
        key = "" if "method" in message else as_key(message.get("id"))
        if not self.ready:
            self._welcome(message)
        elif key in self.swallow:
            self.swallow.discard(key)
        elif message and not self._is_known(message):
            self._forget(key)
            self.to_host += line

    def _is_known(self, message: dict[str, object]) -> bool:
        """Whether this acknowledges a subscription that the host knows to be acknowledged."""
        if message.get("method") != "notifications/subscriptions/acknowledged":
            return False
        params = message.get("params")
        meta = params.get("_meta") if isinstance(params, dict) else None
        key = as_key(meta.get("io.modelcontextprotocol/subscriptionId")) if isinstance(meta, dict) else ""
        known = key in self.streams
        self.streams |= {key} & self.calls.keys()
        return known

    def _welcome(self, message: dict[str, object]) -> None:
        if message.get("pacerelle") != "welcome":
            self._lose()
            if message.get("retry") is not True:
                self._fail(f"The Pacerelle daemon refused: {message.get('message')} {message.get('hint')}")
            return
        if message.get("v") not in (PROTOCOL - 1, PROTOCOL, PROTOCOL + 1):
            self._lose()
            what = f"version {message.get('v')} of the local protocol, pacerelle-mcp {VERSION} version {PROTOCOL}"
            then = "`pip install --upgrade pacerelled`, `pacerelle stop`, and restart this host"
            self._fail(f"The Pacerelle daemon speaks {what}, which is too far apart: upgrade the older ({then}).")
            return
        self.daemon.release()
        self.ready, self.served, self.delay, self.offers = True, True, 0.01, str(message.get("offers") or "")
        first = list(self.repeat.values())
        self.swallow = {key for key, _ in first} - self.calls.keys() - {""}
        rest = [line for key, (line, *_) in self.calls.items() if (key, line) not in first]
        self.to_daemon += b"".join([*(line for _, line in first), *rest, self.waiting])
        self.waiting.clear()

    def _lose(self) -> None:
        """The connection is over; the calls in flight wait for the next."""
        if self.sock:
            self.sock.close()
        now, self.sock, self.ready = monotonic(), None, False
        self.next_try = now + self.delay
        self.calls = {key: (line, made, now) for key, (line, made, _) in self.calls.items()}
        self.from_daemon.clear()
        self.to_daemon.clear()

    def _give_up(self, now: float) -> None:
        wait = CALL_WAIT if self.served else START_WAIT
        late = [] if self.ready else [key for key, (_, _, since) in self.calls.items() if now - since > wait]
        if late:
            what = "does not answer" if self.sock else "is not there, and does not start"
            log = self.daemon.place_of_log()
            self._answer(late, f"The Pacerelle daemon {what}. Try `pacerelle status`. Its log: {log}")

    def _fail(self, why: str) -> None:
        self._answer(list(self.calls), why)
        self.next_try = NEVER  # until the next call
        if not self.broken:
            self.daemon.release()

    def _answer(self, keys: list[str], why: str) -> None:
        for key in keys:
            self._forget(key)
            error = f'{{"code":{UNAVAILABLE},"message":{quoted(why)}}}'
            self.to_host += f'{{"jsonrpc":"2.0","id":{key},"error":{error}}}\n'.encode()
            if key == self.repeat.get("initialize None", ("",))[0]:
                self.repeat.clear()  # the handshake failed: the host begins anew


def main() -> int:
    """The command `pacerelle-mcp`. Returns the exit code."""
    argv = sys.argv[1:]
    if "--help" in argv or "--version" in argv:
        print(HELP if "--help" in argv else VERSION)
        return 0
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:  # what the host left closed must not become a socket
        pass
    os.close(fd)
    os.umask(0o077)
    shim = Shim(argv)
    if shim.broken:
        os.write(2, f"{shim.broken}\n".encode())
    elif "token_visible" in shim.options:
        os.write(2, VISIBLE)
    try:
        return shim.run()
    except (OSError, KeyboardInterrupt):
        return 0
