"""A stand-in for the daemon, run as `pacerelled` in a throwaway environment: the hello, then an answer to each request.

Files in the store root steer it: `starts` gets a line of JSON for each start, `fail` holds what to complain of and end
with, `slow` the seconds before the socket opens. Methods: `die` writes half an answer and kills the process (once),
`hold` is never answered, all others tell what this connection has seen.
"""

import argparse
import contextlib
import fcntl
import json
import os
import signal
import socket
import stat
import sys
import threading
import time
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--store-root", type=Path, required=True)
    parser.add_argument("--socket", type=Path)
    arguments = parser.parse_args()
    root: Path = arguments.store_root
    path = arguments.socket or root / "pacerelled" / "mcp.sock"
    started = {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "sid": os.getsid(0),
        "argv": sys.argv,
        "executable": sys.executable,
        "env": dict(os.environ),
        "cwd": os.getcwd(),
        "stdin": os.readlink("/proc/self/fd/0") if os.path.exists("/proc/self/fd/0") else "/dev/null",
        "open": [fd for fd in range(64) if _is_open(fd)],
    }
    with (root / "starts").open("a") as file:
        file.write(json.dumps(started) + "\n")
    if (root / "fail").exists():
        sys.exit((root / "fail").read_text())
    lock = os.open(root / "pacerelled" / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("pacerelled: Another pacerelled is running for this store")
    if (root / "slow").exists():
        time.sleep(float((root / "slow").read_text()))
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            sys.exit(f"pacerelled: {path} exists and is not a socket; it was left alone")
        path.unlink()
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(64)
    signal.signal(signal.SIGTERM, lambda *_: (path.unlink(), os._exit(0)))
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_serve, args=(connection, root), daemon=True).start()


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _serve(connection: socket.socket, root: Path) -> None:
    lines = connection.makefile("rb")
    hello = json.loads(lines.readline())
    connection.sendall(json.dumps({"pacerelle": "welcome", "v": 1, "session": hello["session"]}).encode() + b"\n")
    seen: list[str] = []
    for line in lines:
        message = json.loads(line)
        seen.append(message["method"])
        if "id" not in message or message["method"] == "hold":
            continue
        result = {"pid": os.getpid(), "session": hello["session"], "seen": seen, "hello": hello}
        answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n"
        if message["method"] == "die" and not (root / "died").exists():
            (root / "died").touch()
            connection.sendall(answer[: len(answer) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        with contextlib.suppress(OSError):
            connection.sendall(answer)


if __name__ == "__main__":
    main()
